// Dropout, the loss, and the optimizer's arithmetic.

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/rng.h"
#include "kernels/cpu/training_ops.h"

// One copy of this file per instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/training_update.cc"
#include <hwy/foreach_target.h>
// After foreach_target.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();

namespace penstock::kernels {
namespace HWY_NAMESPACE {

#include "kernels/cpu/math_inl.h"
// After math_inl.h.
#include "kernels/cpu/rows_inl.h"

using DU32 = hn::RebindToUnsigned<DF>;
using VU32 = hn::Vec<DU32>;

struct Product {
  VU32 high;
  VU32 low;
};

// The 64-bit products of each lane with `factor`.
HWY_INLINE Product WideMul(VU32 x, uint32_t factor) {
  const DU32 d;
#if HWY_TARGET == HWY_SCALAR
  const uint64_t product = uint64_t{hn::GetLane(x)} * factor;
  return {hn::Set(d, static_cast<uint32_t>(product >> 32)),
          hn::Set(d, static_cast<uint32_t>(product))};
#else
  const hn::Repartition<uint64_t, DU32> d64;
  const VU32 f = hn::Set(d, factor);
  const auto even = hn::MulEven(x, f);
  const auto odd = hn::MulEven(hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(d64, x))), f);
  return {hn::OddEven(hn::BitCast(d, odd), hn::BitCast(d, hn::ShiftRight<32>(even))),
          hn::OddEven(hn::BitCast(d, hn::ShiftLeft<32>(odd)), hn::BitCast(d, even))};
#endif
}

// Philox (base/rng.h) of a counter per lane, in place.
HWY_INLINE void PhiloxLanes(VU32 (&c)[4], uint64_t key) {
  const DU32 d;
  auto k0 = static_cast<uint32_t>(key);
  auto k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const Product p0 = WideMul(c[0], 0xD2511F53);
    const Product p1 = WideMul(c[2], 0xCD9E8D57);
    c[0] = hn::Xor(hn::Xor(p1.high, c[1]), hn::Set(d, k0));
    c[1] = p1.low;
    c[2] = hn::Xor(hn::Xor(p0.high, c[3]), hn::Set(d, k1));
    c[3] = p0.low;
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
}

// Element (row, column) has word column % 4 of the draw (column / 4, row, op, micro-batch).
void Drop(Tensor x, const DropoutKey& key, uint64_t philox_key, uint32_t threshold, float scale,
          bool accumulate, Tensor out, RowRange rows) {
  const DF d;
  const DI di;
  const DU32 du;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const VF factor = hn::Set(d, scale);
  HWY_ALIGN uint32_t words[4 * (HWY_MAX_BYTES / 4)];
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float* in = In(x, r);
    float* to = Out(out, r);
    for (int64_t c = 0; c < x.columns(); c += 4 * lanes) {
      VU32 draw[4] = {hn::Iota(du, static_cast<uint32_t>(c / 4)),
                      hn::Set(du, key.first_row + static_cast<uint32_t>(r)), hn::Set(du, key.op),
                      hn::Set(du, key.micro_batch)};
      PhiloxLanes(draw, philox_key);
      hn::StoreInterleaved4(draw[0], draw[1], draw[2], draw[3], du, words);
      for (int64_t i = 0; i < 4 * lanes && c + i < x.columns(); i += lanes) {
        const int64_t n = std::min(lanes, x.columns() - c - i);
        const auto uniform = hn::ShiftRight<8>(hn::Load(du, words + i));
        // 24 bits: signed numbers compare alike.
        const auto dropped =
            hn::Lt(hn::BitCast(di, uniform), hn::Set(di, static_cast<int32_t>(threshold)));
        const VF kept = hn::IfThenZeroElse(hn::RebindMask(d, dropped),
                                           hn::Mul(LoadFirst(d, in + c + i, n), factor));
        const VF value = accumulate ? hn::Add(LoadFirst(d, to + c + i, n), kept) : kept;
        StoreFirst(d, value, to + c + i, n);
      }
    }
  }
}

// Maximum of a row; a NaN among its numbers may be passed over.
HWY_INLINE float RowMaximum(const float* p, int64_t n) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const VF lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  VF m0 = lowest;
  VF m1 = lowest;
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    m0 = hn::Max(m0, hn::LoadU(d, p + i));
    m1 = hn::Max(m1, hn::LoadU(d, p + i + lanes));
  }
  for (; i < n; i += lanes) {
    const auto inside = hn::FirstN(d, static_cast<size_t>(std::min(lanes, n - i)));
    m0 = hn::Max(m0, hn::IfThenElse(inside, hn::MaskedLoad(inside, d, p + i), lowest));
  }
  return hn::GetLane(hn::MaxOfLanes(d, hn::Max(m0, m1)));
}

// Sum of e^(x - most), in float32 over pieces of the row and in float64 over the pieces.
HWY_INLINE double RowExponentials(const float* p, int64_t n, float most) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const VF shift = hn::Set(d, most);
  constexpr int64_t kPiece = 1024;
  double sum = 0;
  for (int64_t begin = 0; begin < n; begin += kPiece) {
    const int64_t end = std::min(n, begin + kPiece);
    VF s0 = hn::Zero(d);
    VF s1 = s0;
    int64_t i = begin;
    for (; i + 2 * lanes <= end; i += 2 * lanes) {
      s0 = hn::Add(s0, ExpNonPositive(d, hn::Sub(hn::LoadU(d, p + i), shift)));
      s1 = hn::Add(s1, ExpNonPositive(d, hn::Sub(hn::LoadU(d, p + i + lanes), shift)));
    }
    for (; i < end; i += lanes) {
      const auto inside = hn::FirstN(d, static_cast<size_t>(std::min(lanes, end - i)));
      const VF e = ExpNonPositive(d, hn::Sub(hn::MaskedLoad(inside, d, p + i), shift));
      s0 = hn::Add(s0, hn::IfThenElseZero(inside, e));
    }
    sum += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, hn::Add(s0, s1))));
  }
  return sum;
}

void Loss(Tensor logits, std::span<const int32_t> targets, std::span<double> nll, Tensor lse,
          RowRange rows) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const auto i = static_cast<size_t>(r);
    nll[i] = 0;
    Out(lse, r)[0] = 0;
    if (targets[i] < 0) {
      continue;
    }
    const float* p = In(logits, r);
    const float most = RowMaximum(p, logits.columns());
    const double log_sum =
        static_cast<double>(most) + std::log(RowExponentials(p, logits.columns(), most));
    nll[i] = log_sum - static_cast<double>(p[targets[i]]);
    Out(lse, r)[0] = static_cast<float>(log_sum);
  }
}

void LossBack(Tensor logits, std::span<const int32_t> targets, Tensor lse, float factor,
              Tensor dlogits, RowRange rows) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const VF f = hn::Set(d, factor);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const int32_t target = targets[static_cast<size_t>(r)];
    float* to = Out(dlogits, r);
    if (target < 0) {
      std::fill_n(to, dlogits.columns(), 0.0F);
      continue;
    }
    const float* p = In(logits, r);
    const VF shift = hn::Set(d, In(lse, r)[0]);
    // Not ExpNonPositive: rounding may leave a logit above its lse.
    const auto gradient = [&](VF x) HWY_ATTR { return hn::Mul(Exp(d, hn::Sub(x, shift)), f); };
    int64_t i = 0;
    for (; i + lanes <= logits.columns(); i += lanes) {
      hn::StoreU(gradient(hn::LoadU(d, p + i)), d, to + i);
    }
    if (i < logits.columns()) {
      const int64_t n = logits.columns() - i;
      StoreFirst(d, gradient(LoadFirst(d, p + i, n)), to + i, n);
    }
    to[target] -= factor;
  }
}

double Squares(const float* x, int64_t n) {
  const hn::ScalableTag<double> d;
  const hn::Rebind<float, hn::ScalableTag<double>> narrow;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  auto s0 = hn::Zero(d);
  auto s1 = s0;
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    const auto a = hn::PromoteTo(d, hn::LoadU(narrow, x + i));
    const auto b = hn::PromoteTo(d, hn::LoadU(narrow, x + i + lanes));
    s0 = hn::MulAdd(a, a, s0);
    s1 = hn::MulAdd(b, b, s1);
  }
  double sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(s0, s1)));
  for (; i < n; ++i) {
    sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  }
  return sum;
}

void Adam(const AdamWFactors& f, Tensor g, Tensor w, Tensor m, Tensor v, RowRange rows) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float* pg = In(g, r);
    float* pw = Out(w, r);
    float* pm = Out(m, r);
    float* pv = Out(v, r);
    for (int64_t i = 0; i < w.columns(); i += lanes) {
      const int64_t n = std::min(lanes, w.columns() - i);
      const VF gradient = hn::Mul(LoadFirst(d, pg + i, n), hn::Set(d, f.gradient));
      const VF mean = hn::MulAdd(gradient, hn::Set(d, f.keep1),
                                 hn::Mul(LoadFirst(d, pm + i, n), hn::Set(d, f.beta1)));
      const VF square = hn::MulAdd(hn::Mul(gradient, gradient), hn::Set(d, f.keep2),
                                   hn::Mul(LoadFirst(d, pv + i, n), hn::Set(d, f.beta2)));
      const VF root =
          hn::MulAdd(hn::Sqrt(square), hn::Set(d, f.inverse_root), hn::Set(d, f.epsilon));
      const VF decayed = hn::Mul(LoadFirst(d, pw + i, n), hn::Set(d, f.decay));
      const VF next = hn::NegMulAdd(hn::Div(mean, root), hn::Set(d, f.step), decayed);
      StoreFirst(d, mean, pm + i, n);
      StoreFirst(d, square, pv + i, n);
      StoreFirst(d, next, pw + i, n);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace penstock::kernels

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace penstock::kernels {

HWY_EXPORT(Drop);
HWY_EXPORT(Loss);
HWY_EXPORT(LossBack);
HWY_EXPORT(Squares);
HWY_EXPORT(Adam);

void DropoutRows(Tensor x, const DropoutKey& key, float rate, bool accumulate, Tensor out,
                 RowRange rows) {
  // Kept where a uniform number of 24 bits is at least `rate`.
  const auto threshold = static_cast<uint32_t>(std::ceil(static_cast<double>(rate) * 0x1p24));
  const float scale = 1.0F / (1.0F - rate);
  HWY_DYNAMIC_DISPATCH(Drop)
  (x, key, MixKey(key.seed, key.step), threshold, scale, accumulate, out, rows);
}

void CrossEntropyRows(Tensor logits, std::span<const int32_t> targets, std::span<double> nll,
                      Tensor lse, RowRange rows) {
  HWY_DYNAMIC_DISPATCH(Loss)(logits, targets, nll, lse, rows);
}

void CrossEntropyBackwardRows(Tensor logits, std::span<const int32_t> targets, Tensor lse,
                              float factor, Tensor dlogits, RowRange rows) {
  HWY_DYNAMIC_DISPATCH(LossBack)(logits, targets, lse, factor, dlogits, rows);
}

double SumOfSquaresOf(const float* x, int64_t n) {
  return HWY_DYNAMIC_DISPATCH(Squares)(x, n);
}

AdamWFactors FactorsOf(const AdamWParams& params) {
  const auto step = static_cast<double>(params.step);
  const double correction1 = 1.0 - std::pow(static_cast<double>(params.beta1), step);
  const double correction2 = 1.0 - std::pow(static_cast<double>(params.beta2), step);
  return {
      .gradient = static_cast<float>(params.gradient_factor),
      .decay = static_cast<float>(1.0 - static_cast<double>(params.lr) * params.weight_decay),
      .beta1 = params.beta1,
      .beta2 = params.beta2,
      .keep1 = static_cast<float>(1.0 - static_cast<double>(params.beta1)),
      .keep2 = static_cast<float>(1.0 - static_cast<double>(params.beta2)),
      .step = static_cast<float>(static_cast<double>(params.lr) / correction1),
      .inverse_root = static_cast<float>(1.0 / std::sqrt(correction2)),
      .epsilon = params.epsilon,
  };
}

void AdamWRows(const AdamWFactors& factors, Tensor g, Tensor w, Tensor m, Tensor v, RowRange rows) {
  HWY_DYNAMIC_DISPATCH(Adam)(factors, g, w, m, v, rows);
}

}  // namespace penstock::kernels

#endif  // HWY_ONCE
