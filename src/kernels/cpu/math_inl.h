// Vector functions shared by the Highway kernels; errors in units of the last place of float32.
// Included once per target, inside HWY_NAMESPACE. No include guard: included several times.

namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;
using DI = hn::RebindToSigned<DF>;

// e^x within 2 units; exactly 1 at 0; 0 below -104, infinity above 89; NaN stays.
// Reduction by ln 2 in two parts (Cody and Waite), then the Taylor polynomial of degree 7 on
// |r| <= ln 2 / 2, whose remainder is 5e-9.
HWY_INLINE VF Exp(DF d, VF x) {
  const DI di;
  const VF clamped = hn::Min(hn::Max(x, hn::Set(d, -111.0F)), hn::Set(d, 101.0F));
  const VF n = hn::Round(hn::Mul(clamped, hn::Set(d, 1.44269504F)));
  VF r = hn::NegMulAdd(n, hn::Set(d, 0.693359375F), clamped);
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4F), r);
  VF p = hn::Set(d, 1.0F / 5040.0F);
  p = hn::MulAdd(p, r, hn::Set(d, 1.0F / 720.0F));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0F / 120.0F));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0F / 24.0F));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0F / 6.0F));
  p = hn::MulAdd(p, r, hn::Set(d, 0.5F));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0F));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0F));
  // 2^n in two factors, since n passes the exponent's range at both ends.
  const auto k = hn::ConvertTo(di, n);
  const auto half = hn::ShiftRight<1>(k);
  const auto bias = hn::Set(di, 127);
  const VF s1 = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(half, bias)));
  const VF s2 = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(hn::Sub(k, half), bias)));
  const VF result = hn::Mul(hn::Mul(p, s1), s2);
  return hn::IfThenElse(hn::Eq(x, x), result, x);
}

// e^x within 2 units for x <= 0 (infinity too), exactly 1 at 0, 0 below -87; NaN stays. Cheaper
// than Exp: rounding by a large constant leaves n in the low bits, and 2^n is added to the
// exponent.
HWY_INLINE VF ExpNonPositive(DF d, VF x) {
  const DI di;
  const VF large = hn::Set(d, 12582912.0F);  // 1.5 * 2^23
  const VF shifted = hn::MulAdd(x, hn::Set(d, 1.44269504F), large);
  const VF n = hn::Sub(shifted, large);
  VF r = hn::NegMulAdd(n, hn::Set(d, 0.693359375F), x);
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4F), r);
  VF p = hn::Set(d, 1.0F / 5040.0F);
  p = hn::MulAdd(p, r, hn::Set(d, 1.0F / 720.0F));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0F / 120.0F));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0F / 24.0F));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0F / 6.0F));
  p = hn::MulAdd(p, r, hn::Set(d, 0.5F));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0F));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0F));
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(di, shifted));
  const VF result = hn::BitCast(d, hn::Add(hn::BitCast(di, p), exponent));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -87.0F)), result);
}

HWY_INLINE VF Sigmoid(DF d, VF x) {
  const VF one = hn::Set(d, 1.0F);
  return hn::Div(one, hn::Add(one, Exp(d, hn::Neg(x))));
}

// Absolute error below 2e-7. Up to |x| = 1 the Taylor series; above, formula 7.1.26 of Abramowitz
// and Stegun, Handbook of Mathematical Functions.
HWY_INLINE VF Erf(DF d, VF x) {
  const VF a = hn::Abs(x);
  const VF x2 = hn::Mul(x, x);
  const VF one = hn::Set(d, 1.0F);
  // Coefficients (-1)^n / (n! (2n + 1)).
  VF s = hn::Set(d, 1.0F / 76204800.0F);
  s = hn::MulAdd(s, x2, hn::Set(d, -1.0F / 6894720.0F));
  s = hn::MulAdd(s, x2, hn::Set(d, 1.0F / 685440.0F));
  s = hn::MulAdd(s, x2, hn::Set(d, -1.0F / 75600.0F));
  s = hn::MulAdd(s, x2, hn::Set(d, 1.0F / 9360.0F));
  s = hn::MulAdd(s, x2, hn::Set(d, -1.0F / 1320.0F));
  s = hn::MulAdd(s, x2, hn::Set(d, 1.0F / 216.0F));
  s = hn::MulAdd(s, x2, hn::Set(d, -1.0F / 42.0F));
  s = hn::MulAdd(s, x2, hn::Set(d, 0.1F));
  s = hn::MulAdd(s, x2, hn::Set(d, -1.0F / 3.0F));
  s = hn::MulAdd(s, x2, one);
  const VF small = hn::Mul(hn::Mul(hn::Set(d, 1.12837917F), x), s);

  const VF t = hn::Div(one, hn::MulAdd(hn::Set(d, 0.3275911F), a, one));
  VF q = hn::Set(d, 1.061405429F);
  q = hn::MulAdd(q, t, hn::Set(d, -1.453152027F));
  q = hn::MulAdd(q, t, hn::Set(d, 1.421413741F));
  q = hn::MulAdd(q, t, hn::Set(d, -0.284496736F));
  q = hn::MulAdd(q, t, hn::Set(d, 0.254829592F));
  const VF tail = hn::Mul(hn::Mul(q, t), Exp(d, hn::Neg(x2)));
  const VF large = hn::CopySign(hn::Sub(one, tail), x);
  return hn::IfThenElse(hn::Gt(a, one), large, small);
}

HWY_INLINE VF Activate(DF d, Activation activation, VF x) {
  const VF zero = hn::Zero(d);
  switch (activation) {
    case Activation::kSilu:
      return hn::Mul(x, Sigmoid(d, x));
    case Activation::kGeluTanh: {
      // 0.5 x (1 + tanh u) = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3).
      const VF x2 = hn::Mul(x, x);
      const VF inner = hn::MulAdd(hn::Mul(x2, x), hn::Set(d, 0.044715F), x);
      return hn::Mul(x, Sigmoid(d, hn::Mul(hn::Set(d, 1.59576912F), inner)));
    }
    case Activation::kGelu: {
      const VF erf = Erf(d, hn::Mul(x, hn::Set(d, 0.707106781F)));
      return hn::Mul(hn::Mul(hn::Set(d, 0.5F), x), hn::Add(hn::Set(d, 1.0F), erf));
    }
    case Activation::kRelu:
      return hn::IfThenElse(hn::Lt(x, zero), zero, x);
    case Activation::kReluSquared: {
      const VF positive = hn::IfThenElse(hn::Lt(x, zero), zero, x);
      return hn::Mul(positive, positive);
    }
    case Activation::kSigmoid:
      return Sigmoid(d, x);
    case Activation::kSitu:
      break;  // a gated unit
  }
  return x;
}
