// What the forward and backward kernels of short convolutions share. Included once per target,
// inside HWY_NAMESPACE, after math_inl.h. No include guard: included several times.

constexpr int64_t kMaxTaps = 64;
// Columns at a time: rows of a sequence lie far apart, so each is visited for many columns.
constexpr int64_t kConvColumns = 256;

HWY_INLINE VF LoadFirst(DF d, const float* p, int64_t n) {
  return hn::MaskedLoad(hn::FirstN(d, static_cast<size_t>(n)), d, p);
}

// to [taps][kConvColumns] = weights of n columns, [n x taps] from `from` on.
HWY_INLINE void SpreadWeights(const float* from, int64_t n, int64_t taps, float* to) {
  std::fill_n(to, taps * kConvColumns, 0.0F);
  int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  if (taps == 4) {
    const DF d;
    const auto lanes = static_cast<int64_t>(hn::Lanes(d));
    for (; i + lanes <= n; i += lanes) {
      VF w0, w1, w2, w3;
      hn::LoadInterleaved4(d, from + i * 4, w0, w1, w2, w3);
      hn::StoreU(w0, d, to + i);
      hn::StoreU(w1, d, to + kConvColumns + i);
      hn::StoreU(w2, d, to + 2 * kConvColumns + i);
      hn::StoreU(w3, d, to + 3 * kConvColumns + i);
    }
  }
#endif
  for (; i < n; ++i) {
    for (int64_t j = 0; j < taps; ++j) {
      to[j * kConvColumns + i] = from[i * taps + j];
    }
  }
}
