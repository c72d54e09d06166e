#include "kernels/cpu/training_depth_ops.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/depth_ops.h"

// One copy of this file per instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/training_depth_ops.cc"
#include <hwy/foreach_target.h>
// After foreach_target.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();

namespace penstock::kernels {
namespace HWY_NAMESPACE {

#include "kernels/cpu/math_inl.h"
// After math_inl.h.
#include "kernels/cpu/rows_inl.h"

HWY_INLINE float ScalarExp(float x) {
  const DF d;
  return hn::GetLane(Exp(d, hn::Set(d, x)));
}

// query * key_norm, or query alone.
HWY_INLINE VF Key(DF d, const float* query, const float* key_norm, int64_t i, int64_t n) {
  const VF q = LoadFirst(d, query + i, n);
  return key_norm == nullptr ? q : hn::Mul(q, LoadFirst(d, key_norm + i, n));
}

// Sum over i of query[i] key_norm[i] s[i].
HWY_INLINE float KeyDot(const float* query, const float* key_norm, const float* s, int64_t n) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  VF sum = hn::Zero(d);
  for (int64_t i = 0; i < n; i += lanes) {
    const int64_t left = std::min(lanes, n - i);
    sum = hn::MulAdd(LoadFirst(d, s + i, left), Key(d, query, key_norm, i, left), sum);
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

HWY_INLINE float InverseRoot(const float* s, float epsilon, int64_t n) {
  return 1.0F / std::sqrt(Dot(s, s, n) / static_cast<float>(n) + epsilon);
}

// Softmax in place of n scores, then the gradients of the scores: a_j (t_j - sum of a_i t_i).
// `a` is left holding the weights, `dz` receives the gradients.
HWY_INLINE void SoftmaxGradient(float* a, const float* t, float* dz, int64_t n) {
  float most = a[0];
  for (int64_t j = 1; j < n; ++j) {
    most = a[j] > most ? a[j] : most;
  }
  float sum = 0.0F;
  for (int64_t j = 0; j < n; ++j) {
    a[j] = ScalarExp(a[j] - most);
    sum += a[j];
  }
  float mean = 0.0F;
  for (int64_t j = 0; j < n; ++j) {
    a[j] /= sum;
    mean += a[j] * t[j];
  }
  for (int64_t j = 0; j < n; ++j) {
    dz[j] = a[j] * (t[j] - mean);
  }
}

void DepthReadBackward(const DepthReadGradient& read, Tensor dy,
                       std::span<const uint8_t> accumulate, std::span<const Tensor> dsources,
                       Tensor factors, RowRange rows) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t n = dy.columns();
  const auto count = static_cast<int64_t>(read.sources.size());
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float* g = In(dy, r);
    float* weight = Out(factors, r);  // scores, then the softmax's weights, then the factors
    float* inverse = weight + count;
    float* dot = inverse + count;  // with dy, then the gradients of the scores
    for (int64_t j = 0; j < count; ++j) {
      const float* s = In(read.sources[static_cast<size_t>(j)], r);
      inverse[j] = InverseRoot(s, read.epsilon, n);
      weight[j] = KeyDot(read.query, read.key_norm, s, n) * inverse[j];
      dot[j] = Dot(g, s, n);
    }
    SoftmaxGradient(weight, dot, dot, count);
    for (int64_t j = 0; j < count; ++j) {
      const Tensor& into = dsources[static_cast<size_t>(j)];
      const float factor = dot[j] * inverse[j];
      if (!into.empty()) {
        const float* s = In(read.sources[static_cast<size_t>(j)], r);
        float* to = Out(into, r);
        const float score = KeyDot(read.query, read.key_norm, s, n) * inverse[j];
        const VF a = hn::Set(d, weight[j]);
        const VF f = hn::Set(d, factor);
        const VF back = hn::Set(d, -factor * score * inverse[j] / static_cast<float>(n));
        for (int64_t i = 0; i < n; i += lanes) {
          const int64_t left = std::min(lanes, n - i);
          VF sum = hn::Mul(LoadFirst(d, g + i, left), a);
          sum = hn::MulAdd(Key(d, read.query, read.key_norm, i, left), f, sum);
          sum = hn::MulAdd(LoadFirst(d, s + i, left), back, sum);
          if (accumulate[static_cast<size_t>(j)] != 0) {
            sum = hn::Add(LoadFirst(d, to + i, left), sum);
          }
          StoreFirst(d, sum, to + i, left);
        }
      }
      weight[j] = factor;
    }
  }
}

void DepthReadWeight(const DepthReadGradient& read, Tensor factors, float* dquery, float* dkey_norm,
                     RowRange columns) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = columns.begin; i < columns.end; i += lanes) {
    const int64_t left = std::min(lanes, columns.end - i);
    VF sum = hn::Zero(d);
    for (int64_t r = 0; r < factors.rows(); ++r) {
      const float* factor = In(factors, r);
      for (size_t j = 0; j < read.sources.size(); ++j) {
        sum =
            hn::MulAdd(LoadFirst(d, In(read.sources[j], r) + i, left), hn::Set(d, factor[j]), sum);
      }
    }
    const VF query = LoadFirst(d, read.query + i, left);
    const VF before = LoadFirst(d, dquery + i, left);
    if (read.key_norm == nullptr) {
      StoreFirst(d, hn::Add(before, sum), dquery + i, left);
    } else {
      const VF norm = LoadFirst(d, read.key_norm + i, left);
      StoreFirst(d, hn::Add(before, hn::Mul(sum, norm)), dquery + i, left);
      StoreFirst(d, hn::Add(LoadFirst(d, dkey_norm + i, left), hn::Mul(sum, query)), dkey_norm + i,
                 left);
    }
  }
}

// factors of a row: per stream and coefficient first the gradient of its score over the stream's
// root, then (behind all of them) the tanh.
void StreamWeightsBackward(const StreamParams& params, Tensor x, Tensor dc, bool accumulate,
                           Tensor dx, Tensor factors, RowRange rows) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t n = params.streams;
  const int64_t each = n + 2;
  const int64_t width = x.columns() / n;
  const float* norm = In(params.norm, 0);
  const float* scale = In(params.scale, 0);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    for (int64_t k = 0; k < n; ++k) {
      const float* s = In(x, r) + k * width;
      const float* gradient = In(dc, r) + k * each;
      float* factor = Out(factors, r) + k * each;
      float* tanh = Out(factors, r) + (n + k) * each;
      const float inverse = InverseRoot(s, params.epsilon, width);
      float back = 0.0F;
      for (int64_t j = 0; j < each; ++j) {
        const float score = KeyDot(In(params.mix, j), norm, s, width) * inverse;
        tanh[j] = std::tanh(score);
        factor[j] = gradient[j] * scale[j == n + 1 ? 1 : 0] * (1.0F - tanh[j] * tanh[j]) * inverse;
        back += factor[j] * score;
      }
      const VF shrink = hn::Set(d, -back * inverse / static_cast<float>(width));
      float* to = Out(dx, r) + k * width;
      for (int64_t i = 0; i < width; i += lanes) {
        const int64_t left = std::min(lanes, width - i);
        VF sum = hn::Zero(d);
        for (int64_t j = 0; j < each; ++j) {
          sum = hn::MulAdd(LoadFirst(d, In(params.mix, j) + i, left), hn::Set(d, factor[j]), sum);
        }
        sum = hn::MulAdd(LoadFirst(d, s + i, left), shrink,
                         hn::Mul(sum, LoadFirst(d, norm + i, left)));
        if (accumulate) {
          sum = hn::Add(LoadFirst(d, to + i, left), sum);
        }
        StoreFirst(d, sum, to + i, left);
      }
    }
  }
}

void StreamMix(const StreamParams& params, Tensor x, Tensor factors, Tensor dmix, float* dnorm,
               RowRange columns) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t n = params.streams;
  const int64_t each = n + 2;
  const int64_t width = x.columns() / n;
  for (int64_t i = columns.begin; i < columns.end; i += lanes) {
    const int64_t left = std::min(lanes, columns.end - i);
    const VF norm = LoadFirst(d, In(params.norm, 0) + i, left);
    VF norm_sum = hn::Zero(d);
    for (int64_t j = 0; j < each; ++j) {
      VF sum = hn::Zero(d);
      for (int64_t r = 0; r < x.rows(); ++r) {
        for (int64_t k = 0; k < n; ++k) {
          sum = hn::MulAdd(LoadFirst(d, In(x, r) + k * width + i, left),
                           hn::Set(d, In(factors, r)[k * each + j]), sum);
        }
      }
      float* to = Out(dmix, j) + i;
      StoreFirst(d, hn::Add(LoadFirst(d, to, left), hn::Mul(sum, norm)), to, left);
      norm_sum = hn::MulAdd(sum, LoadFirst(d, In(params.mix, j) + i, left), norm_sum);
    }
    StoreFirst(d, hn::Add(LoadFirst(d, dnorm + i, left), norm_sum), dnorm + i, left);
  }
}

// to (+)= sum over j of weights[j * stride] * from[j * n ...].
HWY_INLINE void AddMix(const float* from, int64_t count, const float* weights, int64_t stride,
                       bool accumulate, float* to, int64_t n) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i < n; i += lanes) {
    const int64_t left = std::min(lanes, n - i);
    VF sum = hn::Mul(LoadFirst(d, from + i, left), hn::Set(d, weights[0]));
    for (int64_t j = 1; j < count; ++j) {
      sum = hn::MulAdd(LoadFirst(d, from + j * n + i, left), hn::Set(d, weights[j * stride]), sum);
    }
    if (accumulate) {
      sum = hn::Add(LoadFirst(d, to + i, left), sum);
    }
    StoreFirst(d, sum, to + i, left);
  }
}

HWY_INLINE void Deposit(float value, bool accumulate, float* to) {
  *to = accumulate ? *to + value : value;
}

void StreamReadBackward(int64_t streams, Tensor x, Tensor c, Tensor dout, bool accumulate_x,
                        Tensor dx, bool accumulate_c, Tensor dc, RowRange rows) {
  const int64_t width = dout.columns();
  const int64_t each = streams + 2;
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float* g = In(dout, r);
    for (int64_t k = 0; k < streams; ++k) {
      AddMix(g, 1, In(c, r) + k * each, 0, accumulate_x, Out(dx, r) + k * width, width);
      float* to = Out(dc, r) + k * each;
      Deposit(Dot(In(x, r) + k * width, g, width), accumulate_c, to);
      if (!accumulate_c) {
        std::fill(to + 1, to + each, 0.0F);
      }
    }
  }
}

void StreamWriteBackward(int64_t streams, Tensor x, Tensor c, Tensor y, Tensor dout,
                         bool accumulate_x, Tensor dx, bool accumulate_c, Tensor dc,
                         bool accumulate_y, Tensor dy, RowRange rows) {
  const int64_t width = y.columns();
  const int64_t each = streams + 2;
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float* g = In(dout, r);
    const float* share = In(c, r);
    for (int64_t k = 0; k < streams; ++k) {
      AddMix(g, streams, share + k * each + 1, 1, accumulate_x, Out(dx, r) + k * width, width);
      float* to = Out(dc, r) + k * each;
      if (!accumulate_c) {
        to[0] = 0.0F;
      }
      for (int64_t j = 0; j < streams; ++j) {
        Deposit(Dot(In(x, r) + k * width, g + j * width, width), accumulate_c, to + j + 1);
      }
      Deposit(Dot(In(y, r), g + k * width, width), accumulate_c, to + streams + 1);
    }
    AddMix(g, streams, share + streams + 1, each, accumulate_y, Out(dy, r), width);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace penstock::kernels

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace penstock::kernels {

HWY_EXPORT(DepthReadBackward);
HWY_EXPORT(DepthReadWeight);
HWY_EXPORT(StreamWeightsBackward);
HWY_EXPORT(StreamMix);
HWY_EXPORT(StreamReadBackward);
HWY_EXPORT(StreamWriteBackward);

void DepthReadBackwardRows(const DepthReadGradient& read, Tensor dy,
                           std::span<const uint8_t> accumulate, std::span<const Tensor> dsources,
                           Tensor factors, RowRange rows) {
  HWY_DYNAMIC_DISPATCH(DepthReadBackward)(read, dy, accumulate, dsources, factors, rows);
}

void DepthReadWeightColumns(const DepthReadGradient& read, Tensor factors, float* dquery,
                            float* dkey_norm, RowRange columns) {
  HWY_DYNAMIC_DISPATCH(DepthReadWeight)(read, factors, dquery, dkey_norm, columns);
}

void StreamWeightsBackwardRows(const StreamParams& params, Tensor x, Tensor dc, bool accumulate,
                               Tensor dx, Tensor factors, RowRange rows) {
  HWY_DYNAMIC_DISPATCH(StreamWeightsBackward)(params, x, dc, accumulate, dx, factors, rows);
}

void StreamMixColumns(const StreamParams& params, Tensor x, Tensor factors, Tensor dmix,
                      float* dnorm, RowRange columns) {
  HWY_DYNAMIC_DISPATCH(StreamMix)(params, x, factors, dmix, dnorm, columns);
}

void StreamReadBackwardRows(int64_t streams, Tensor x, Tensor c, Tensor dout, bool accumulate_x,
                            Tensor dx, bool accumulate_c, Tensor dc, RowRange rows) {
  HWY_DYNAMIC_DISPATCH(StreamReadBackward)
  (streams, x, c, dout, accumulate_x, dx, accumulate_c, dc, rows);
}

void StreamWriteBackwardRows(int64_t streams, Tensor x, Tensor c, Tensor y, Tensor dout,
                             bool accumulate_x, Tensor dx, bool accumulate_c, Tensor dc,
                             bool accumulate_y, Tensor dy, RowRange rows) {
  HWY_DYNAMIC_DISPATCH(StreamWriteBackward)
  (streams, x, c, y, dout, accumulate_x, dx, accumulate_c, dc, accumulate_y, dy, rows);
}

}  // namespace penstock::kernels

#endif  // HWY_ONCE
