// What the forward and backward kernels of delta attention share. Included once per target, inside
// HWY_NAMESPACE, after math_inl.h. No include guard: included several times.

// A row of one head: `dim` numbers, then zeros up to `padded`, a multiple of 16.
struct RowShape {
  int64_t dim;
  int64_t padded;
};

HWY_INLINE RowShape ShapeOf(int64_t dim) {
  return {dim, (dim + 15) / 16 * 16};
}

HWY_INLINE VF LoadFirst(DF d, const float* p, int64_t n) {
  return hn::MaskedLoad(hn::FirstN(d, static_cast<size_t>(n)), d, p);
}

// How many of the vector at column c hold numbers.
HWY_INLINE int64_t Filled(const RowShape& s, int64_t c) {
  return std::clamp<int64_t>(s.dim - c, 0, static_cast<int64_t>(hn::Lanes(DF())));
}

// to[0, padded) = x / sqrt(sum x^2 + 1e-6) * factor; returns 1 / sqrt(...).
HWY_INLINE float Normalize(const RowShape& s, const float* x, float factor, float* to) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  VF sum = hn::Zero(d);
  for (int64_t c = 0; c < s.padded; c += lanes) {
    const VF value = LoadFirst(d, x + c, Filled(s, c));
    sum = hn::MulAdd(value, value, sum);
    hn::StoreU(value, d, to + c);
  }
  const float root = std::sqrt(hn::GetLane(hn::SumOfLanes(d, sum)) + 1e-6F);
  const VF scale = hn::Set(d, factor / root);
  for (int64_t c = 0; c < s.padded; c += lanes) {
    hn::StoreU(hn::Mul(hn::LoadU(d, to + c), scale), d, to + c);
  }
  return 1.0F / root;
}

// The decay g of key columns [c, c + lanes): of z = f + dt_bias at rate a = exp(a_log).
HWY_INLINE VF DecayOf(DF d, const DeltaParams& params, VF a, VF z) {
  if (params.bounded) {
    return hn::Mul(hn::Set(d, params.lower_bound), Sigmoid(d, hn::Mul(a, z)));
  }
  const VF tail = hn::Log1p(d, Exp(d, hn::Neg(hn::Abs(z))));
  return hn::Neg(hn::Mul(a, hn::Add(hn::Max(z, hn::Zero(d)), tail)));
}

HWY_INLINE float RateOf(const DeltaParams& params, int64_t head) {
  return std::exp(params.a_log.Row<float>(0)[static_cast<size_t>(head)]);
}

// decay = before + g of one row (`before` null: zero), factor = exp g.
HWY_INLINE void AddDecay(const RowShape& s, const DeltaParams& params, int64_t head, const float* f,
                         const float* before, float* decay, float* factor) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const VF a = hn::Set(d, RateOf(params, head));
  const float* bias = params.dt_bias.Row<float>(0).data() + head * s.dim;
  for (int64_t c = 0; c < s.padded; c += lanes) {
    const int64_t n = Filled(s, c);
    const VF z = hn::Add(LoadFirst(d, f + c, n), LoadFirst(d, bias + c, n));
    const VF g =
        hn::IfThenElseZero(hn::FirstN(d, static_cast<size_t>(n)), DecayOf(d, params, a, z));
    const VF sum = before == nullptr ? g : hn::Add(hn::LoadU(d, before + c), g);
    hn::StoreU(sum, d, decay + c);
    hn::StoreU(ExpNonPositive(d, g), d, factor + c);
  }
}
