// Loads, stores and sums over rows, shared by the Highway kernels. Included once per target, inside
// HWY_NAMESPACE, after math_inl.h. No include guard: included several times.

HWY_INLINE const float* In(Tensor t, int64_t row) {
  return t.Row<float>(row).data();
}

HWY_INLINE float* Out(Tensor t, int64_t row) {
  return t.Row<float>(row).data();
}

HWY_INLINE VF LoadFirst(DF d, const float* p, int64_t n) {
  return hn::MaskedLoad(hn::FirstN(d, static_cast<size_t>(n)), d, p);
}

HWY_INLINE void StoreFirst(DF d, VF v, float* p, int64_t n) {
  hn::BlendedStore(v, hn::FirstN(d, static_cast<size_t>(n)), d, p);
}

// Sum over i of a[i] b[i]: four running sums, then one fixed tree.
HWY_INLINE float Dot(const float* a, const float* b, int64_t n) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  VF s0 = hn::Zero(d);
  VF s1 = s0;
  VF s2 = s0;
  VF s3 = s0;
  int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    s0 = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), s0);
    s1 = hn::MulAdd(hn::LoadU(d, a + i + lanes), hn::LoadU(d, b + i + lanes), s1);
    s2 = hn::MulAdd(hn::LoadU(d, a + i + 2 * lanes), hn::LoadU(d, b + i + 2 * lanes), s2);
    s3 = hn::MulAdd(hn::LoadU(d, a + i + 3 * lanes), hn::LoadU(d, b + i + 3 * lanes), s3);
  }
  for (; i < n; i += lanes) {
    const int64_t left = std::min(lanes, n - i);
    s0 = hn::MulAdd(LoadFirst(d, a + i, left), LoadFirst(d, b + i, left), s0);
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))));
}
