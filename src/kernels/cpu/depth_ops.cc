#include "kernels/cpu/depth_ops.h"

#include <algorithm>
#include <cmath>

// One copy of this file per instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/depth_ops.cc"
#include <hwy/foreach_target.h>
// After foreach_target.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();

namespace penstock::kernels {
namespace HWY_NAMESPACE {

#include "kernels/cpu/math_inl.h"

HWY_INLINE VF LoadFirst(DF d, const float* p, int64_t n) {
  return hn::MaskedLoad(hn::FirstN(d, static_cast<size_t>(n)), d, p);
}

HWY_INLINE void StoreFirst(DF d, VF v, float* p, int64_t n) {
  hn::BlendedStore(v, hn::FirstN(d, static_cast<size_t>(n)), d, p);
}

HWY_INLINE float ScalarExp(float x) {
  const DF d;
  return hn::GetLane(Exp(d, hn::Set(d, x)));
}

// query * key_norm, or query alone.
HWY_INLINE VF Key(DF d, const float* query, const float* key_norm, int64_t i, int64_t n) {
  const VF q = LoadFirst(d, query + i, n);
  return key_norm == nullptr ? q : hn::Mul(q, LoadFirst(d, key_norm + i, n));
}

// Score of one source: sum of query * key_norm * s over sqrt(mean(s^2) + epsilon). Two running sums
// of each kind, then one fixed tree.
HWY_INLINE float Score(const float* s, const float* query, const float* key_norm, float epsilon,
                       int64_t n) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  VF squares0 = hn::Zero(d);
  VF squares1 = squares0;
  VF dot0 = squares0;
  VF dot1 = squares0;
  for (int64_t i = 0; i < n; i += 2 * lanes) {
    const int64_t first = std::min(lanes, n - i);
    const VF a = LoadFirst(d, s + i, first);
    squares0 = hn::MulAdd(a, a, squares0);
    dot0 = hn::MulAdd(a, Key(d, query, key_norm, i, first), dot0);
    const int64_t second = std::min(lanes, n - i - lanes);
    if (second > 0) {
      const VF b = LoadFirst(d, s + i + lanes, second);
      squares1 = hn::MulAdd(b, b, squares1);
      dot1 = hn::MulAdd(b, Key(d, query, key_norm, i + lanes, second), dot1);
    }
  }
  const float squares = hn::GetLane(hn::SumOfLanes(d, hn::Add(squares0, squares1)));
  const float dot = hn::GetLane(hn::SumOfLanes(d, hn::Add(dot0, dot1)));
  return dot / std::sqrt(squares / static_cast<float>(n) + epsilon);
}

// out = out * keep + s * weight.
HWY_INLINE void Blend(const float* s, float weight, float keep, float* out, int64_t n) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const VF w = hn::Set(d, weight);
  const VF k = hn::Set(d, keep);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    hn::StoreU(hn::MulAdd(hn::LoadU(d, s + i), w, hn::Mul(hn::LoadU(d, out + i), k)), d, out + i);
  }
  if (i < n) {
    const VF sum =
        hn::MulAdd(LoadFirst(d, s + i, n - i), w, hn::Mul(LoadFirst(d, out + i, n - i), k));
    StoreFirst(d, sum, out + i, n - i);
  }
}

// out = sum over k of weights[k * stride] * x[k * n ...], then + y * share where y is there.
HWY_INLINE void MixRow(const float* x, int64_t n, int64_t count, const float* weights,
                       int64_t stride, const float* y, float share, float* out) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i < n; i += lanes) {
    const int64_t left = std::min(lanes, n - i);
    VF sum = hn::Mul(LoadFirst(d, x + i, left), hn::Set(d, weights[0]));
    for (int64_t k = 1; k < count; ++k) {
      sum = hn::MulAdd(LoadFirst(d, x + k * n + i, left), hn::Set(d, weights[k * stride]), sum);
    }
    if (y != nullptr) {
      sum = hn::MulAdd(LoadFirst(d, y + i, left), hn::Set(d, share), sum);
    }
    StoreFirst(d, sum, out + i, left);
  }
}

HWY_INLINE void ScaleRow(float factor, float* out, int64_t n) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i < n; i += lanes) {
    const int64_t left = std::min(lanes, n - i);
    StoreFirst(d, hn::Mul(LoadFirst(d, out + i, left), hn::Set(d, factor)), out + i, left);
  }
}

void DepthRead(std::span<const Tensor> sources, const float* query, const float* key_norm,
               float epsilon, Tensor out, RowRange rows) {
  const int64_t n = out.columns();
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    float* to = out.Row<float>(r).data();
    float most = 0.0F;
    float sum = 0.0F;
    for (size_t j = 0; j < sources.size(); ++j) {
      const float* s = sources[j].Row<float>(r).data();
      const float score = Score(s, query, key_norm, epsilon, n);
      if (j == 0) {
        std::copy(s, s + n, to);
        most = score;
        sum = 1.0F;
      } else if (score > most) {
        const float keep = ScalarExp(most - score);
        Blend(s, 1.0F, keep, to, n);
        sum = sum * keep + 1.0F;
        most = score;
      } else {
        const float weight = ScalarExp(score - most);
        Blend(s, weight, 1.0F, to, n);
        sum += weight;
      }
    }
    ScaleRow(1.0F / sum, to, n);
  }
}

void StreamWeights(const StreamParams& params, Tensor x, Tensor out, RowRange rows) {
  const int64_t n = params.streams;
  const int64_t width = x.columns() / n;
  const int64_t each = n + 2;
  const bool dynamic = !params.mix.empty();
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    float* to = out.Row<float>(r).data();
    for (int64_t k = 0; k < n; ++k) {
      const float* base = params.base.Row<float>(k).data();
      std::copy(base, base + each, to + k * each);
      if (!dynamic) {
        continue;
      }
      const float* s = x.Row<float>(r).data() + k * width;
      const float* scale = params.scale.Row<float>(0).data();
      for (int64_t j = 0; j < each; ++j) {
        const float score = Score(s, params.mix.Row<float>(j).data(),
                                  params.norm.Row<float>(0).data(), params.epsilon, width);
        to[k * each + j] += scale[j == n + 1 ? 1 : 0] * std::tanh(score);
      }
    }
  }
}

void StreamRead(int64_t streams, Tensor x, Tensor c, Tensor out, RowRange rows) {
  const int64_t width = out.columns();
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float* from = x.Row<float>(r).data();
    const float* weights = c.Row<float>(r).data();
    MixRow(from, width, streams, weights, streams + 2, nullptr, 0.0F, out.Row<float>(r).data());
  }
}

void StreamWrite(int64_t streams, Tensor x, Tensor c, Tensor y, Tensor out, RowRange rows) {
  const int64_t width = y.columns();
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float* from = x.Row<float>(r).data();
    const float* weights = c.Row<float>(r).data();
    for (int64_t j = 0; j < streams; ++j) {
      MixRow(from, width, streams, weights + j + 1, streams + 2, y.Row<float>(r).data(),
             weights[j * (streams + 2) + streams + 1], out.Row<float>(r).data() + j * width);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace penstock::kernels

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace penstock::kernels {

HWY_EXPORT(DepthRead);
HWY_EXPORT(StreamWeights);
HWY_EXPORT(StreamRead);
HWY_EXPORT(StreamWrite);

void DepthReadRows(std::span<const Tensor> sources, const float* query, const float* key_norm,
                   float epsilon, Tensor out, RowRange rows) {
  HWY_DYNAMIC_DISPATCH(DepthRead)(sources, query, key_norm, epsilon, out, rows);
}

void StreamWeightsRows(const StreamParams& params, Tensor x, Tensor out, RowRange rows) {
  HWY_DYNAMIC_DISPATCH(StreamWeights)(params, x, out, rows);
}

void StreamReadRows(int64_t streams, Tensor x, Tensor c, Tensor out, RowRange rows) {
  HWY_DYNAMIC_DISPATCH(StreamRead)(streams, x, c, out, rows);
}

void StreamWriteRows(int64_t streams, Tensor x, Tensor c, Tensor y, Tensor out, RowRange rows) {
  HWY_DYNAMIC_DISPATCH(StreamWrite)(streams, x, c, y, out, rows);
}

}  // namespace penstock::kernels

#endif  // HWY_ONCE
