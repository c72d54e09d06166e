#include "kernels/cpu/vector_ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

// One copy of this file per instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/vector_ops.cc"
#include <hwy/foreach_target.h>
// After foreach_target.
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();

namespace penstock::kernels {
namespace HWY_NAMESPACE {

#include "kernels/cpu/math_inl.h"
#include "kernels/cpu/rows_inl.h"

// out[i] = op(a[i], b[i]); a and b may be the same.
template <class Op>
HWY_INLINE void MapRow(const Op& op, const float* a, const float* b, float* out, int64_t n) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    hn::StoreU(op(d, hn::LoadU(d, a + i), hn::LoadU(d, b + i)), d, out + i);
  }
  if (i < n) {
    StoreFirst(d, op(d, LoadFirst(d, a + i, n - i), LoadFirst(d, b + i, n - i)), out + i, n - i);
  }
}

template <class Op>
HWY_INLINE void Map(const Op& op, Tensor a, Tensor b, Tensor out, RowRange rows) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    MapRow(op, In(a, r), In(b, r), Out(out, r), out.columns());
  }
}

template <Activation kActivation>
struct GatedOp {
  HWY_INLINE VF operator()(DF d, VF gate, VF up) const {
    return hn::Mul(Activate(d, kActivation, gate), up);
  }
};

template <Activation kActivation>
struct ActOp {
  HWY_INLINE VF operator()(DF d, VF x, VF /*same*/) const { return Activate(d, kActivation, x); }
};

struct SituOp {
  float beta;
  float linear_beta;

  HWY_INLINE VF operator()(DF d, VF gate, VF up) const {
    const VF b = hn::Set(d, beta);
    const VF left = hn::Mul(hn::Mul(b, hn::Tanh(d, hn::Div(gate, b))), Sigmoid(d, gate));
    if (linear_beta > 0) {
      const VF l = hn::Set(d, linear_beta);
      return hn::Mul(left, hn::Mul(l, hn::Tanh(d, hn::Div(up, l))));
    }
    return hn::Mul(left, up);
  }
};

struct AddOp {
  HWY_INLINE VF operator()(DF /*d*/, VF a, VF b) const { return hn::Add(a, b); }
};

struct ScaleOp {
  float factor;

  HWY_INLINE VF operator()(DF d, VF x, VF /*same*/) const { return hn::Mul(x, hn::Set(d, factor)); }
};

struct SoftCapOp {
  float cap;

  HWY_INLINE VF operator()(DF d, VF x, VF /*same*/) const {
    const VF c = hn::Set(d, cap);
    return hn::Mul(c, hn::Tanh(d, hn::Div(x, c)));
  }
};

struct AddScaledOp {
  float factor;

  HWY_INLINE VF operator()(DF d, VF x, VF sum) const {
    return hn::MulAdd(x, hn::Set(d, factor), sum);
  }
};

template <template <Activation> class Op>
void MapActivation(Activation activation, Tensor a, Tensor b, Tensor out, RowRange rows) {
  switch (activation) {
    case Activation::kSilu:
      return Map(Op<Activation::kSilu>(), a, b, out, rows);
    case Activation::kGeluTanh:
      return Map(Op<Activation::kGeluTanh>(), a, b, out, rows);
    case Activation::kGelu:
      return Map(Op<Activation::kGelu>(), a, b, out, rows);
    case Activation::kRelu:
      return Map(Op<Activation::kRelu>(), a, b, out, rows);
    case Activation::kReluSquared:
      return Map(Op<Activation::kReluSquared>(), a, b, out, rows);
    case Activation::kSigmoid:
      return Map(Op<Activation::kSigmoid>(), a, b, out, rows);
    case Activation::kSitu:
      PENSTOCK_CHECK(false, "situ has parameters; call Situ");
  }
}

void Gated(Activation activation, Tensor gate, Tensor up, Tensor out, RowRange rows) {
  MapActivation<GatedOp>(activation, gate, up, out, rows);
}

void Situ(const SituParams& params, Tensor gate, Tensor up, Tensor out, RowRange rows) {
  Map(SituOp{params.beta, params.linear_beta}, gate, up, out, rows);
}

void Act(Activation activation, Tensor x, Tensor out, RowRange rows) {
  MapActivation<ActOp>(activation, x, x, out, rows);
}

void Add(Tensor a, Tensor b, Tensor out, RowRange rows) {
  Map(AddOp(), a, b, out, rows);
}

void Scale(Tensor x, float factor, Tensor out, RowRange rows) {
  Map(ScaleOp{factor}, x, x, out, rows);
}

void SoftCap(Tensor x, float cap, Tensor out, RowRange rows) {
  Map(SoftCapOp{cap}, x, x, out, rows);
}

void AddScaled(Tensor x, const int32_t* target, const float* factor, Tensor out, RowRange rows) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    float* sum = Out(out, target[r]);
    MapRow(AddScaledOp{factor[r]}, In(x, r), sum, sum, x.columns());
  }
}

void Router(Tensor x, Tensor weight, float* out, RowRange rows) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    for (int64_t e = 0; e < weight.rows(); ++e) {
      out[r * weight.rows() + e] = Dot(In(x, r), In(weight, e), x.columns());
    }
  }
}

void RmsNorm(Tensor x, const float* weight, float epsilon, bool add_one, int64_t group, Tensor out,
             RowRange rows) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const VF plus = hn::Set(d, add_one ? 1.0F : 0.0F);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    for (int64_t g = 0; g < x.columns(); g += group) {
      const float* in = In(x, r) + g;
      float* to = Out(out, r) + g;
      const float mean = Dot(in, in, group) / static_cast<float>(group);
      const VF inverse = hn::Set(d, 1.0F / std::sqrt(mean + epsilon));
      int64_t i = 0;
      for (; i + lanes <= group; i += lanes) {
        const VF w = hn::Add(hn::LoadU(d, weight + i), plus);
        hn::StoreU(hn::Mul(hn::Mul(hn::LoadU(d, in + i), inverse), w), d, to + i);
      }
      if (i < group) {
        const VF w = hn::Add(LoadFirst(d, weight + i, group - i), plus);
        StoreFirst(d, hn::Mul(hn::Mul(LoadFirst(d, in + i, group - i), inverse), w), to + i,
                   group - i);
      }
    }
  }
}

void Softmax(Tensor x, RowRange rows) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    float* p = Out(x, r);
    const int64_t n = x.columns();
    float most = -std::numeric_limits<float>::infinity();
    for (int64_t i = 0; i < n; ++i) {
      most = p[i] > most || std::isnan(p[i]) ? p[i] : most;
    }
    VF sum = hn::Zero(d);
    for (int64_t i = 0; i < n; i += lanes) {
      const int64_t left = std::min(lanes, n - i);
      const auto mask = hn::FirstN(d, static_cast<size_t>(left));
      const VF e =
          hn::IfThenElseZero(mask, Exp(d, hn::Sub(LoadFirst(d, p + i, left), hn::Set(d, most))));
      sum = hn::Add(sum, e);
      StoreFirst(d, e, p + i, left);
    }
    const float total = hn::GetLane(hn::SumOfLanes(d, sum));
    MapRow(ScaleOp{1.0F / total}, p, p, p, n);
  }
}

int64_t NonFinite(Tensor x, RowRange rows) {
  const DF d;
  const DI di;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float* p = In(x, r);
    auto most = hn::Zero(di);
    int64_t i = 0;
    for (; i + lanes <= x.columns(); i += lanes) {
      most = hn::Max(most, hn::BitCast(di, hn::Abs(hn::LoadU(d, p + i))));
    }
    if (i < x.columns()) {
      most = hn::Max(most, hn::BitCast(di, hn::Abs(LoadFirst(d, p + i, x.columns() - i))));
    }
    if (hn::GetLane(hn::MaxOfLanes(di, most)) >= 0x7f800000) {
      return r;
    }
  }
  return -1;
}

HWY_INLINE void RopeHalves(const float* x, const float* c, const float* s, int64_t half,
                           float* out) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i < half; i += lanes) {
    const int64_t n = std::min(lanes, half - i);
    const VF a = LoadFirst(d, x + i, n);
    const VF b = LoadFirst(d, x + half + i, n);
    const VF vc = LoadFirst(d, c + i, n);
    const VF vs = LoadFirst(d, s + i, n);
    StoreFirst(d, hn::NegMulAdd(b, vs, hn::Mul(a, vc)), out + i, n);
    StoreFirst(d, hn::MulAdd(a, vs, hn::Mul(b, vc)), out + half + i, n);
  }
}

HWY_INLINE void RopePairs(const float* x, const float* c, const float* s, int64_t half,
                          float* out) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= half; i += lanes) {
    VF a;
    VF b;
    hn::LoadInterleaved2(d, x + 2 * i, a, b);
    const VF vc = hn::LoadU(d, c + i);
    const VF vs = hn::LoadU(d, s + i);
    hn::StoreInterleaved2(hn::NegMulAdd(b, vs, hn::Mul(a, vc)), hn::MulAdd(a, vs, hn::Mul(b, vc)),
                          d, out + 2 * i);
  }
  for (; i < half; ++i) {
    const float a = x[2 * i];
    const float b = x[2 * i + 1];
    out[2 * i] = std::fma(-b, s[i], a * c[i]);
    out[2 * i + 1] = std::fma(a, s[i], b * c[i]);
  }
}

void Rope(Tensor x, const RopeParams& params, const float* cos, const float* sin, Tensor out,
          RowRange rows) {
  const int64_t half = params.rotary_dim / 2;
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    for (int64_t h = 0; h < params.heads; ++h) {
      const float* head = In(x, r) + h * params.head_dim;
      float* to_head = Out(out, r) + h * params.head_dim;
      const float* in = head + params.offset;
      float* to = to_head + params.offset;
      if (params.interleaved) {
        RopePairs(in, cos + r * half, sin + r * half, half, to);
      } else {
        RopeHalves(in, cos + r * half, sin + r * half, half, to);
      }
      if (in != to) {
        std::copy(head, in, to_head);
        std::copy(in + params.rotary_dim, head + params.head_dim, to + params.rotary_dim);
      }
    }
  }
}

// Largest |x| of [0, n), by its bits: NaN and infinity come out above all numbers.
HWY_INLINE int32_t LargestBits(const float* p, int64_t n) {
  const DF d;
  const DI di;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  auto m0 = hn::Zero(di);
  auto m1 = m0;
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    m0 = hn::Max(m0, hn::BitCast(di, hn::Abs(hn::LoadU(d, p + i))));
    m1 = hn::Max(m1, hn::BitCast(di, hn::Abs(hn::LoadU(d, p + i + lanes))));
  }
  for (; i < n; i += lanes) {
    m0 = hn::Max(m0, hn::BitCast(di, hn::Abs(LoadFirst(d, p + i, std::min(lanes, n - i)))));
  }
  return hn::GetLane(hn::MaxOfLanes(di, hn::Max(m0, m1)));
}

struct Quantizer {
  float scale;    // value of one step
  float inverse;  // steps per value
};

// Steps of 1/127 of the largest magnitude. Magnitudes whose inverse would overflow count as zero;
// NaN and infinity give a NaN scale and zero steps.
HWY_INLINE Quantizer ChooseQuantizer(int32_t largest_bits) {
  if (largest_bits >= 0x7f800000) {
    return {std::numeric_limits<float>::quiet_NaN(), 0.0F};
  }
  float largest;
  std::memcpy(&largest, &largest_bits, sizeof(largest));
  if (largest < 1e-36F) {
    return {0.0F, 0.0F};
  }
  return {largest / 127.0F, 127.0F / largest};
}

// round(x * inverse); zero steps whatever x is where inverse is 0 (x may be NaN).
HWY_INLINE hn::Vec<DI> Steps(DF d, VF x, float inverse) {
  const DI di;
  if (inverse == 0.0F) {
    return hn::Zero(di);
  }
  return hn::NearestInt(hn::Mul(x, hn::Set(d, inverse)));
}

// Columns [begin, end) of one row as bytes at `to`; `offset` is added to each.
HWY_INLINE void StepBytes(const float* p, int64_t n, float inverse, bool offset, std::byte* to) {
  const DF d;
  const DI di;
  const hn::Rebind<uint8_t, DF> du8;
  const hn::Rebind<int8_t, DF> di8;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto steps = Steps(d, hn::LoadU(d, p + i), inverse);
    if (offset) {
      hn::StoreU(hn::DemoteTo(du8, hn::Add(steps, hn::Set(di, 128))), du8,
                 reinterpret_cast<uint8_t*>(to + i));
    } else {
      hn::StoreU(hn::DemoteTo(di8, steps), di8, reinterpret_cast<int8_t*>(to + i));
    }
  }
  if (i < n) {
    HWY_ALIGN int32_t tail[HWY_MAX_BYTES / 4];
    hn::Store(Steps(d, LoadFirst(d, p + i, n - i), inverse), di, tail);
    for (int64_t j = 0; i + j < n; ++j) {
      to[i + j] = static_cast<std::byte>(tail[j] + (offset ? 128 : 0));
    }
  }
}

void QuantizeInt8(Tensor x, bool offset, const ActivationLayout& layout, std::byte* dst,
                  float* scale, RowRange rows) {
  const int64_t n = x.columns();
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float* p = In(x, r);
    const Quantizer quantizer = ChooseQuantizer(LargestBits(p, n));
    scale[r] = quantizer.scale;
    std::byte* to = dst + r * layout.row_stride;
    for (int64_t c = 0; c < layout.columns; c += layout.block_columns) {
      const int64_t count = std::min(layout.block_columns, n - c);
      StepBytes(p + c, count, quantizer.inverse, offset, to);
      const int64_t padded = std::min(layout.block_columns, layout.columns - c);
      std::fill(to + count, to + padded, std::byte{offset ? uint8_t{128} : uint8_t{0}});
      to += layout.block_stride();
    }
  }
}

void QuantizeInt4(Tensor x, bool minima, const ActivationLayout& layout, std::byte* dst,
                  RowRange rows) {
  constexpr int64_t kBlock = 32;
  const DF d;
  const DI di;
  const hn::Rebind<int8_t, DF> di8;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    std::byte* to = nullptr;
    for (int64_t c = 0; c < x.columns(); c += kBlock, to += kBlock + 8) {
      if (c % layout.block_columns == 0) {
        to = dst + c / layout.block_columns * layout.block_stride() + r * layout.row_stride;
      }
      const float* p = In(x, r) + c;
      const Quantizer quantizer = ChooseQuantizer(LargestBits(p, kBlock));
      auto sums = hn::Zero(di);
      for (int64_t i = 0; i < kBlock; i += lanes) {
        const auto steps = Steps(d, hn::LoadU(d, p + i), quantizer.inverse);
        sums = hn::Add(sums, steps);
        hn::StoreU(hn::DemoteTo(di8, steps), di8, reinterpret_cast<int8_t*>(to + i));
      }
      const int32_t sum = hn::GetLane(hn::SumOfLanes(di, sums));
      std::memcpy(to + kBlock, &quantizer.scale, 4);
      if (minima) {
        const float scaled = quantizer.scale * static_cast<float>(sum);
        std::memcpy(to + kBlock + 4, &scaled, 4);
      } else {
        const int32_t shifted = -8 * sum;
        std::memcpy(to + kBlock + 4, &shifted, 4);
      }
    }
  }
}

// The upper 16 bits of x rounded to bf16, in place in 32 bits.
HWY_INLINE hn::Vec<hn::RebindToUnsigned<DF>> RoundedBits([[maybe_unused]] DF d, VF x) {
  const hn::RebindToUnsigned<DF> du;
  const auto bits = hn::BitCast(du, x);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fff)));
  const auto quiet = hn::Or(bits, hn::Set(du, 0x00400000));
  const auto number = hn::RebindMask(du, hn::Eq(x, x));
  return hn::And(hn::IfThenElse(number, rounded, quiet), hn::Set(du, 0xffff0000U));
}

// n columns of one row at `to`, as bf16 or as float32.
HWY_INLINE void RoundedColumns(const float* p, int64_t n, bool as_f32, std::byte* to) {
  const DF d;
  const DI di;
  const hn::RebindToUnsigned<DF> du;
  const hn::Rebind<uint16_t, DF> du16;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t size = as_f32 ? 4 : 2;
  HWY_ALIGN uint32_t tail[HWY_MAX_BYTES / 4];
  for (int64_t i = 0; i < n; i += lanes) {
    const int64_t left = std::min(lanes, n - i);
    const auto bits = RoundedBits(d, LoadFirst(d, p + i, left));
    if (left == lanes && as_f32) {
      hn::StoreU(bits, du, reinterpret_cast<uint32_t*>(to + i * 4));
    } else if (left == lanes) {
      hn::StoreU(hn::DemoteTo(du16, hn::BitCast(di, hn::ShiftRight<16>(bits))), du16,
                 reinterpret_cast<uint16_t*>(to + i * 2));
    } else {
      hn::Store(bits, du, tail);
      for (int64_t j = 0; j < left; ++j) {
        // Little-endian: the upper half is the last two bytes.
        std::memcpy(to + (i + j) * size, reinterpret_cast<std::byte*>(tail + j) + 4 - size,
                    static_cast<size_t>(size));
      }
    }
  }
}

void RoundBf16(Tensor x, bool as_f32, const ActivationLayout& layout, std::byte* dst,
               RowRange rows) {
  const int64_t size = as_f32 ? 4 : 2;
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    std::byte* to = dst + r * layout.row_stride;
    for (int64_t c = 0; c < layout.columns; c += layout.block_columns) {
      const int64_t count = std::min(layout.block_columns, x.columns() - c);
      RoundedColumns(In(x, r) + c, count, as_f32, to);
      const int64_t padded = std::min(layout.block_columns, layout.columns - c);
      std::fill(to + count * size, to + padded * size, std::byte{0});
      to += layout.block_stride();
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace penstock::kernels

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace penstock::kernels {

HWY_EXPORT(RmsNorm);
HWY_EXPORT(Gated);
HWY_EXPORT(Act);
HWY_EXPORT(Situ);
HWY_EXPORT(Add);
HWY_EXPORT(Scale);
HWY_EXPORT(SoftCap);
HWY_EXPORT(AddScaled);
HWY_EXPORT(Router);
HWY_EXPORT(Softmax);
HWY_EXPORT(NonFinite);
HWY_EXPORT(Rope);
HWY_EXPORT(QuantizeInt8);
HWY_EXPORT(QuantizeInt4);
HWY_EXPORT(RoundBf16);

void RmsNormRows(Tensor x, const float* weight, float epsilon, bool add_one, int64_t group,
                 Tensor out, RowRange rows) {
  HWY_DYNAMIC_DISPATCH(RmsNorm)(x, weight, epsilon, add_one, group, out, rows);
}

void GatedRows(Activation activation, Tensor gate, Tensor up, Tensor out, RowRange rows) {
  HWY_DYNAMIC_DISPATCH(Gated)(activation, gate, up, out, rows);
}

void SituRows(const SituParams& params, Tensor gate, Tensor up, Tensor out, RowRange rows) {
  HWY_DYNAMIC_DISPATCH(Situ)(params, gate, up, out, rows);
}

void ActRows(Activation activation, Tensor x, Tensor out, RowRange rows) {
  HWY_DYNAMIC_DISPATCH(Act)(activation, x, out, rows);
}

void AddRows(Tensor a, Tensor b, Tensor out, RowRange rows) {
  HWY_DYNAMIC_DISPATCH(Add)(a, b, out, rows);
}

void ScaleRows(Tensor x, float factor, Tensor out, RowRange rows) {
  HWY_DYNAMIC_DISPATCH(Scale)(x, factor, out, rows);
}

void SoftCapRows(Tensor x, float cap, Tensor out, RowRange rows) {
  HWY_DYNAMIC_DISPATCH(SoftCap)(x, cap, out, rows);
}

void AddScaledRows(Tensor x, const int32_t* target, const float* factor, Tensor out,
                   RowRange rows) {
  HWY_DYNAMIC_DISPATCH(AddScaled)(x, target, factor, out, rows);
}

void RouterRows(Tensor x, Tensor weight, float* out, RowRange rows) {
  HWY_DYNAMIC_DISPATCH(Router)(x, weight, out, rows);
}

void SoftmaxRows(Tensor x, RowRange rows) {
  HWY_DYNAMIC_DISPATCH(Softmax)(x, rows);
}

int64_t FirstNonFinite(Tensor x, RowRange rows) {
  return HWY_DYNAMIC_DISPATCH(NonFinite)(x, rows);
}

void RopeRows(Tensor x, const RopeParams& params, const float* cos, const float* sin, Tensor out,
              RowRange rows) {
  HWY_DYNAMIC_DISPATCH(Rope)(x, params, cos, sin, out, rows);
}

void QuantizeRowsInt8(Tensor x, bool offset, const ActivationLayout& layout, std::byte* dst,
                      float* scale, RowRange rows) {
  HWY_DYNAMIC_DISPATCH(QuantizeInt8)(x, offset, layout, dst, scale, rows);
}

void QuantizeRowsInt4(Tensor x, bool minima, const ActivationLayout& layout, std::byte* dst,
                      RowRange rows) {
  HWY_DYNAMIC_DISPATCH(QuantizeInt4)(x, minima, layout, dst, rows);
}

void CopyRows(Tensor x, const ActivationLayout& layout, std::byte* dst, RowRange rows) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float* p = x.Row<float>(r).data();
    std::byte* to = dst + r * layout.row_stride;
    for (int64_t c = 0; c < x.columns(); c += layout.block_columns) {
      const int64_t count = std::min(layout.block_columns, x.columns() - c);
      std::memcpy(to, p + c, static_cast<size_t>(count) * 4);
      to += layout.block_stride();
    }
  }
}

void RoundRowsBf16(Tensor x, bool as_f32, const ActivationLayout& layout, std::byte* dst,
                   RowRange rows) {
  HWY_DYNAMIC_DISPATCH(RoundBf16)(x, as_f32, layout, dst, rows);
}

}  // namespace penstock::kernels

#endif  // HWY_ONCE
