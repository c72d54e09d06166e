#include "kernels/cpu/training_ops.h"

#include <algorithm>
#include <cmath>

// One copy of this file per instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/training_ops.cc"
#include <hwy/foreach_target.h>
// After foreach_target.
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();

namespace penstock::kernels {
namespace HWY_NAMESPACE {

#include "kernels/cpu/math_inl.h"
// After math_inl.h.
#include "kernels/cpu/rows_inl.h"

// Calls body(i, n) for the vectors of [0, columns); n lanes count.
template <class Body>
HWY_INLINE void ForVectors(int64_t columns, const Body& body) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(DF()));
  int64_t i = 0;
  for (; i + lanes <= columns; i += lanes) {
    body(i, lanes);
  }
  if (i < columns) {
    body(i, columns - i);
  }
}

// Writes or adds the first n lanes.
HWY_INLINE void Put(DF d, bool accumulate, VF v, float* p, int64_t n) {
  if (n == static_cast<int64_t>(hn::Lanes(d))) {
    hn::StoreU(accumulate ? hn::Add(hn::LoadU(d, p), v) : v, d, p);
  } else {
    StoreFirst(d, accumulate ? hn::Add(LoadFirst(d, p, n), v) : v, p, n);
  }
}

HWY_INLINE VF Get(DF d, const float* p, int64_t n) {
  return n == static_cast<int64_t>(hn::Lanes(d)) ? hn::LoadU(d, p) : LoadFirst(d, p, n);
}

struct ValueAndSlope {
  VF value;
  VF slope;
};

// x * sigmoid(u) with the slope of u given.
HWY_INLINE ValueAndSlope TimesSigmoid(DF d, VF x, VF u, VF u_slope) {
  const VF s = Sigmoid(d, u);
  const VF value = hn::Mul(x, s);
  // s + x s (1 - s) u'
  const VF rest = hn::Mul(hn::Sub(hn::Set(d, 1.0F), s), u_slope);
  return {value, hn::MulAdd(value, rest, s)};
}

HWY_INLINE ValueAndSlope ActivateBoth(DF d, Activation activation, VF x) {
  const VF zero = hn::Zero(d);
  const VF one = hn::Set(d, 1.0F);
  switch (activation) {
    case Activation::kSilu:
      return TimesSigmoid(d, x, x, one);
    case Activation::kGeluTanh: {
      // As in Activate. Far out the slope is that of x or of 0; large squares must not overflow.
      const VF near = hn::Min(hn::Max(x, hn::Set(d, -64.0F)), hn::Set(d, 64.0F));
      const VF x2 = hn::Mul(near, near);
      const VF inner = hn::MulAdd(hn::Mul(x2, near), hn::Set(d, 0.044715F), near);
      const VF slope = hn::MulAdd(x2, hn::Set(d, 3.0F * 0.044715F), one);
      const VF factor = hn::Set(d, 1.59576912F);
      return TimesSigmoid(d, x, hn::Mul(factor, inner), hn::Mul(factor, slope));
    }
    case Activation::kGelu: {
      const VF half = hn::Set(d, 0.5F);
      const VF erf = Erf(d, hn::Mul(x, hn::Set(d, 0.707106781F)));
      const VF share = hn::Mul(half, hn::Add(one, erf));
      const VF near = hn::Min(hn::Max(x, hn::Set(d, -64.0F)), hn::Set(d, 64.0F));
      const VF density = hn::Mul(hn::Set(d, 0.398942280F),
                                 ExpNonPositive(d, hn::Neg(hn::Mul(half, hn::Mul(near, near)))));
      const VF value = hn::Mul(hn::Mul(half, x), hn::Add(one, erf));
      return {value, hn::MulAdd(near, density, share)};
    }
    case Activation::kRelu: {
      const auto negative = hn::Le(x, zero);
      return {hn::IfThenElse(negative, zero, x), hn::IfThenElse(negative, zero, one)};
    }
    case Activation::kReluSquared: {
      const VF positive = hn::IfThenElse(hn::Le(x, zero), zero, x);
      return {hn::Mul(positive, positive), hn::Add(positive, positive)};
    }
    case Activation::kSigmoid: {
      const VF s = Sigmoid(d, x);
      return {s, hn::Mul(s, hn::Sub(one, s))};
    }
    case Activation::kSitu:
      break;  // a gated unit with a function of its own
  }
  return {x, one};
}

template <Activation kActivation>
void GatedBack(Tensor gate, Tensor up, Tensor dy, bool accumulate_gate, Tensor dgate,
               bool accumulate_up, Tensor dup, RowRange rows) {
  const DF d;
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float* pg = In(gate, r);
    const float* pu = In(up, r);
    const float* py = In(dy, r);
    float* to_gate = Out(dgate, r);
    float* to_up = Out(dup, r);
    ForVectors(dy.columns(), [&](int64_t i, int64_t n) HWY_ATTR {
      const ValueAndSlope act = ActivateBoth(d, kActivation, Get(d, pg + i, n));
      const VF y = Get(d, py + i, n);
      const VF slope = hn::Mul(hn::Mul(y, Get(d, pu + i, n)), act.slope);
      Put(d, accumulate_gate, slope, to_gate + i, n);
      Put(d, accumulate_up, hn::Mul(y, act.value), to_up + i, n);
    });
  }
}

template <Activation kActivation>
void ActBack(Tensor x, Tensor dy, bool accumulate, Tensor dx, RowRange rows) {
  const DF d;
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float* px = In(x, r);
    const float* py = In(dy, r);
    float* to = Out(dx, r);
    ForVectors(dy.columns(), [&](int64_t i, int64_t n) HWY_ATTR {
      const VF slope = ActivateBoth(d, kActivation, Get(d, px + i, n)).slope;
      Put(d, accumulate, hn::Mul(Get(d, py + i, n), slope), to + i, n);
    });
  }
}

void GatedBackAny(Activation activation, Tensor gate, Tensor up, Tensor dy, bool accumulate_gate,
                  Tensor dgate, bool accumulate_up, Tensor dup, RowRange rows) {
  const auto run = [&](auto back) {
    back(gate, up, dy, accumulate_gate, dgate, accumulate_up, dup, rows);
  };
  switch (activation) {
    case Activation::kSilu:
      return run(GatedBack<Activation::kSilu>);
    case Activation::kGeluTanh:
      return run(GatedBack<Activation::kGeluTanh>);
    case Activation::kGelu:
      return run(GatedBack<Activation::kGelu>);
    case Activation::kRelu:
      return run(GatedBack<Activation::kRelu>);
    case Activation::kReluSquared:
      return run(GatedBack<Activation::kReluSquared>);
    case Activation::kSigmoid:
      return run(GatedBack<Activation::kSigmoid>);
    case Activation::kSitu:
      PENSTOCK_CHECK(false, "situ has parameters; call SituBackward");
  }
}

void ActBackAny(Activation activation, Tensor x, Tensor dy, bool accumulate, Tensor dx,
                RowRange rows) {
  switch (activation) {
    case Activation::kSilu:
      return ActBack<Activation::kSilu>(x, dy, accumulate, dx, rows);
    case Activation::kGeluTanh:
      return ActBack<Activation::kGeluTanh>(x, dy, accumulate, dx, rows);
    case Activation::kGelu:
      return ActBack<Activation::kGelu>(x, dy, accumulate, dx, rows);
    case Activation::kRelu:
      return ActBack<Activation::kRelu>(x, dy, accumulate, dx, rows);
    case Activation::kReluSquared:
      return ActBack<Activation::kReluSquared>(x, dy, accumulate, dx, rows);
    case Activation::kSigmoid:
      return ActBack<Activation::kSigmoid>(x, dy, accumulate, dx, rows);
    case Activation::kSitu:
      break;
  }
}

// With z = x / rms and g = dy * weight: dx = (g - z * mean(g z)) / rms.
void NormBack(Tensor x, const float* weight, float epsilon, bool add_one, int64_t group, Tensor dy,
              bool accumulate, Tensor dx, RowRange rows) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const VF plus = hn::Set(d, add_one ? 1.0F : 0.0F);
  const auto size = static_cast<float>(group);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    for (int64_t at = 0; at < x.columns(); at += group) {
      const float* px = In(x, r) + at;
      const float* py = In(dy, r) + at;
      const float inverse = 1.0F / std::sqrt(Dot(px, px, group) / size + epsilon);
      // Sum of g x, in the order of Dot.
      VF s0 = hn::Zero(d);
      VF s1 = s0;
      const auto term = [&](int64_t i, int64_t n, VF sum) HWY_ATTR {
        const VF w = hn::Add(Get(d, weight + i, n), plus);
        return hn::MulAdd(hn::Mul(Get(d, py + i, n), w), Get(d, px + i, n), sum);
      };
      int64_t i = 0;
      for (; i + 2 * lanes <= group; i += 2 * lanes) {
        s0 = term(i, lanes, s0);
        s1 = term(i + lanes, lanes, s1);
      }
      for (; i < group; i += lanes) {
        s0 = term(i, std::min(lanes, group - i), s0);
      }
      const float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(s0, s1)));
      const VF back = hn::Set(d, sum / size * inverse * inverse);
      const VF factor = hn::Set(d, inverse);
      float* to = Out(dx, r) + at;
      ForVectors(group, [&](int64_t c, int64_t n) HWY_ATTR {
        const VF w = hn::Add(Get(d, weight + c, n), plus);
        const VF g = hn::Mul(Get(d, py + c, n), w);
        const VF v = hn::Mul(factor, hn::NegMulAdd(Get(d, px + c, n), back, g));
        Put(d, accumulate, v, to + c, n);
      });
    }
  }
}

void InverseNorm(Tensor x, float epsilon, int64_t group, float* inverse, RowRange rows) {
  const int64_t groups = x.columns() / group;
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    for (int64_t g = 0; g < groups; ++g) {
      const float* p = In(x, r) + g * group;
      const float mean = Dot(p, p, group) / static_cast<float>(group);
      inverse[r * groups + g] = 1.0F / std::sqrt(mean + epsilon);
    }
  }
}

// Column tiles of this many vectors keep their sums in registers.
inline constexpr int kTileVectors = 4;

void NormWeight(Tensor x, const float* inverse, int64_t group, Tensor dy, float* dweight,
                RowRange columns) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t groups = x.columns() / group;
  for (int64_t c = columns.begin; c < columns.end; c += kTileVectors * lanes) {
    const int64_t left = std::min(kTileVectors * lanes, columns.end - c);
    VF sum[kTileVectors] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
    for (int64_t r = 0; r < x.rows(); ++r) {
      for (int64_t g = 0; g < groups; ++g) {
        const float* px = In(x, r) + g * group + c;
        const float* py = In(dy, r) + g * group + c;
        const VF factor = hn::Set(d, inverse[r * groups + g]);
        for (int v = 0; v < kTileVectors; ++v) {
          const int64_t i = v * lanes;
          if (i < left) {
            const int64_t n = std::min(lanes, left - i);
            sum[v] = hn::MulAdd(hn::Mul(Get(d, py + i, n), Get(d, px + i, n)), factor, sum[v]);
          }
        }
      }
    }
    for (int v = 0; v * lanes < left; ++v) {
      Put(d, true, sum[v], dweight + c + v * lanes, std::min(lanes, left - v * lanes));
    }
  }
}

void SumColumns(Tensor x, float* out, RowRange columns) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t c = columns.begin; c < columns.end; c += kTileVectors * lanes) {
    const int64_t left = std::min(kTileVectors * lanes, columns.end - c);
    VF sum[kTileVectors] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
    for (int64_t r = 0; r < x.rows(); ++r) {
      const float* p = In(x, r) + c;
      for (int v = 0; v < kTileVectors; ++v) {
        if (v * lanes < left) {
          sum[v] = hn::Add(sum[v], Get(d, p + v * lanes, std::min(lanes, left - v * lanes)));
        }
      }
    }
    for (int v = 0; v * lanes < left; ++v) {
      Put(d, true, sum[v], out + c + v * lanes, std::min(lanes, left - v * lanes));
    }
  }
}

// The transpose of the rotation, by the same scaled cosines and sines.
HWY_INLINE void RopeBackHalves(const float* y, const float* c, const float* s, int64_t half,
                               bool accumulate, float* out) {
  const DF d;
  ForVectors(half, [&](int64_t i, int64_t n) HWY_ATTR {
    const VF a = Get(d, y + i, n);
    const VF b = Get(d, y + half + i, n);
    const VF vc = Get(d, c + i, n);
    const VF vs = Get(d, s + i, n);
    Put(d, accumulate, hn::MulAdd(b, vs, hn::Mul(a, vc)), out + i, n);
    Put(d, accumulate, hn::NegMulAdd(a, vs, hn::Mul(b, vc)), out + half + i, n);
  });
}

HWY_INLINE void RopeBackPairs(const float* y, const float* c, const float* s, int64_t half,
                              bool accumulate, float* out) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= half; i += lanes) {
    VF a;
    VF b;
    hn::LoadInterleaved2(d, y + 2 * i, a, b);
    const VF vc = hn::LoadU(d, c + i);
    const VF vs = hn::LoadU(d, s + i);
    VF da = hn::MulAdd(b, vs, hn::Mul(a, vc));
    VF db = hn::NegMulAdd(a, vs, hn::Mul(b, vc));
    if (accumulate) {
      VF old_a;
      VF old_b;
      hn::LoadInterleaved2(d, out + 2 * i, old_a, old_b);
      da = hn::Add(old_a, da);
      db = hn::Add(old_b, db);
    }
    hn::StoreInterleaved2(da, db, d, out + 2 * i);
  }
  for (; i < half; ++i) {
    const float a = y[2 * i];
    const float b = y[2 * i + 1];
    const float da = std::fma(b, s[i], a * c[i]);
    const float db = std::fma(-a, s[i], b * c[i]);
    out[2 * i] = accumulate ? out[2 * i] + da : da;
    out[2 * i + 1] = accumulate ? out[2 * i + 1] + db : db;
  }
}

// Columns that are not rotated.
HWY_INLINE void PassColumns(const float* y, int64_t n, bool accumulate, float* out) {
  const DF d;
  ForVectors(n, [&](int64_t i, int64_t count)
                    HWY_ATTR { Put(d, accumulate, Get(d, y + i, count), out + i, count); });
}

void RopeBack(Tensor dy, const RopeParams& params, const float* cos, const float* sin,
              bool accumulate, Tensor dx, RowRange rows) {
  const int64_t half = params.rotary_dim / 2;
  const int64_t end = params.offset + params.rotary_dim;
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    for (int64_t h = 0; h < params.heads; ++h) {
      const float* y = In(dy, r) + h * params.head_dim;
      float* to = Out(dx, r) + h * params.head_dim;
      const float* c = cos + r * half;
      const float* s = sin + r * half;
      if (params.interleaved) {
        RopeBackPairs(y + params.offset, c, s, half, accumulate, to + params.offset);
      } else {
        RopeBackHalves(y + params.offset, c, s, half, accumulate, to + params.offset);
      }
      PassColumns(y, params.offset, accumulate, to);
      PassColumns(y + end, params.head_dim - end, accumulate, to + end);
    }
  }
}

void ScaleIntoAny(Tensor dy, float factor, bool accumulate, Tensor dx, RowRange rows) {
  const DF d;
  const VF f = hn::Set(d, factor);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float* y = In(dy, r);
    float* to = Out(dx, r);
    ForVectors(dy.columns(), [&](int64_t i, int64_t n) HWY_ATTR {
      Put(d, accumulate, hn::Mul(Get(d, y + i, n), f), to + i, n);
    });
  }
}

void SoftCapBack(Tensor x, float cap, Tensor dy, bool accumulate, Tensor dx, RowRange rows) {
  const DF d;
  const VF c = hn::Set(d, cap);
  const VF one = hn::Set(d, 1.0F);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float* px = In(x, r);
    const float* py = In(dy, r);
    float* to = Out(dx, r);
    ForVectors(dy.columns(), [&](int64_t i, int64_t n) HWY_ATTR {
      const VF t = hn::Tanh(d, hn::Div(Get(d, px + i, n), c));
      Put(d, accumulate, hn::Mul(Get(d, py + i, n), hn::NegMulAdd(t, t, one)), to + i, n);
    });
  }
}

void AddRowsAtAny(Tensor dy, std::span<const int32_t> target, float factor, Tensor dx,
                  RowRange columns) {
  const DF d;
  const VF f = hn::Set(d, factor);
  for (size_t r = 0; r < target.size(); ++r) {
    const float* y = In(dy, static_cast<int64_t>(r)) + columns.begin;
    float* to = Out(dx, target[r]) + columns.begin;
    ForVectors(columns.end - columns.begin, [&](int64_t i, int64_t n) HWY_ATTR {
      Put(d, true, hn::Mul(Get(d, y + i, n), f), to + i, n);
    });
  }
}

void FillAny(Tensor x, float value, RowRange rows) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    std::ranges::fill(x.Row<float>(r), value);
  }
}

float DotAny(const float* a, const float* b, int64_t n) {
  return Dot(a, b, n);
}

}  // namespace HWY_NAMESPACE
}  // namespace penstock::kernels

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace penstock::kernels {

HWY_EXPORT(NormBack);
HWY_EXPORT(InverseNorm);
HWY_EXPORT(NormWeight);
HWY_EXPORT(RopeBack);
HWY_EXPORT(GatedBackAny);
HWY_EXPORT(ActBackAny);
HWY_EXPORT(ScaleIntoAny);
HWY_EXPORT(SoftCapBack);
HWY_EXPORT(AddRowsAtAny);
HWY_EXPORT(SumColumns);
HWY_EXPORT(FillAny);
HWY_EXPORT(DotAny);

void RmsNormBackwardRows(Tensor x, const float* weight, float epsilon, bool add_one, int64_t group,
                         Tensor dy, bool accumulate, Tensor dx, RowRange rows) {
  HWY_DYNAMIC_DISPATCH(NormBack)(x, weight, epsilon, add_one, group, dy, accumulate, dx, rows);
}

void InverseNormRows(Tensor x, float epsilon, int64_t group, float* inverse, RowRange rows) {
  HWY_DYNAMIC_DISPATCH(InverseNorm)(x, epsilon, group, inverse, rows);
}

void RmsNormWeightColumns(Tensor x, const float* inverse, int64_t group, Tensor dy, float* dweight,
                          RowRange columns) {
  HWY_DYNAMIC_DISPATCH(NormWeight)(x, inverse, group, dy, dweight, columns);
}

void RopeBackwardRows(Tensor dy, const RopeParams& params, const float* cos, const float* sin,
                      bool accumulate, Tensor dx, RowRange rows) {
  HWY_DYNAMIC_DISPATCH(RopeBack)(dy, params, cos, sin, accumulate, dx, rows);
}

void GatedBackwardRows(Activation activation, Tensor gate, Tensor up, Tensor dy,
                       bool accumulate_gate, Tensor dgate, bool accumulate_up, Tensor dup,
                       RowRange rows) {
  HWY_DYNAMIC_DISPATCH(GatedBackAny)
  (activation, gate, up, dy, accumulate_gate, dgate, accumulate_up, dup, rows);
}

void ActBackwardRows(Activation activation, Tensor x, Tensor dy, bool accumulate, Tensor dx,
                     RowRange rows) {
  HWY_DYNAMIC_DISPATCH(ActBackAny)(activation, x, dy, accumulate, dx, rows);
}

void ScaleIntoRows(Tensor dy, float factor, bool accumulate, Tensor dx, RowRange rows) {
  HWY_DYNAMIC_DISPATCH(ScaleIntoAny)(dy, factor, accumulate, dx, rows);
}

void SoftCapBackwardRows(Tensor x, float cap, Tensor dy, bool accumulate, Tensor dx,
                         RowRange rows) {
  HWY_DYNAMIC_DISPATCH(SoftCapBack)(x, cap, dy, accumulate, dx, rows);
}

void AddRowsAt(Tensor dy, std::span<const int32_t> target, float factor, Tensor dx,
               RowRange columns) {
  HWY_DYNAMIC_DISPATCH(AddRowsAtAny)(dy, target, factor, dx, columns);
}

void ColumnSums(Tensor x, float* out, RowRange columns) {
  HWY_DYNAMIC_DISPATCH(SumColumns)(x, out, columns);
}

void FillRows(Tensor x, float value, RowRange rows) {
  HWY_DYNAMIC_DISPATCH(FillAny)(x, value, rows);
}

float DotOf(const float* a, const float* b, int64_t n) {
  return HWY_DYNAMIC_DISPATCH(DotAny)(a, b, n);
}

}  // namespace penstock::kernels

#endif  // HWY_ONCE
