// The online softmax (Milakov and Gimelshein, 2018) over blocks of keys, shared by the kernels that
// attend. Included once per target, inside HWY_NAMESPACE and after math_inl.h. No include guard.

// Registers: 32 with 512 bits, 16 otherwise.
inline constexpr int kScoreQueries = HWY_TARGET == HWY_AVX3 ? 12 : 4;
inline constexpr int kValueQueries = HWY_TARGET == HWY_AVX3 ? 6 : 2;
inline constexpr int kScoreVectors = 2;
inline constexpr int kValueVectors = 4;

HWY_INLINE VF LoadElements(DF d, const float* p) {
  return hn::LoadU(d, p);
}

HWY_INLINE VF LoadElements(DF d, const hwy::bfloat16_t* p) {
  const hn::Rebind<hwy::bfloat16_t, DF> narrow;
  return hn::PromoteTo(d, hn::LoadU(narrow, p));
}

// acc[m] = acc[m] * rescale[m] + sum over t of weights[m][t] * values[t], t ascending.
template <class T, int kQueries, int kVectors>
HWY_INLINE void ValueTile(const float* HWY_RESTRICT weights, const float* HWY_RESTRICT rescale,
                          const T* HWY_RESTRICT values, int64_t value_stride, int64_t begin,
                          int64_t end, float* HWY_RESTRICT acc, int64_t acc_stride) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  VF s[kQueries][kVectors];
  PENSTOCK_UNROLL
  for (int m = 0; m < kQueries; ++m) {
    PENSTOCK_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      s[m][v] = hn::Mul(hn::LoadU(d, acc + m * acc_stride + v * lanes), hn::Set(d, rescale[m]));
    }
  }
  for (int64_t t = begin; t < end; ++t) {
    VF x[kVectors];
    PENSTOCK_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      x[v] = LoadElements(d, values + t * value_stride + v * lanes);
    }
    PENSTOCK_UNROLL
    for (int m = 0; m < kQueries; ++m) {
      const VF w = hn::Set(d, weights[m * kMaxBlockTokens + t]);
      PENSTOCK_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        s[m][v] = hn::MulAdd(w, x[v], s[m][v]);
      }
    }
  }
  PENSTOCK_UNROLL
  for (int m = 0; m < kQueries; ++m) {
    PENSTOCK_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      hn::StoreU(s[m][v], d, acc + m * acc_stride + v * lanes);
    }
  }
}

// The same for all columns of acc; a row of `values` is at least as long.
template <class T, int kQueries>
HWY_INLINE void ValueQueries(int64_t queries, const float* weights, const float* rescale,
                             const T* values, int64_t value_stride, int64_t begin, int64_t end,
                             float* acc, int64_t acc_stride) {
  if (queries < kQueries) {
    if constexpr (kQueries > 1) {
      ValueQueries<T, kQueries - 1>(queries, weights, rescale, values, value_stride, begin, end,
                                    acc, acc_stride);
    }
    return;
  }
  const auto lanes = static_cast<int64_t>(hn::Lanes(DF()));
  int64_t c = 0;
  for (; c + kValueVectors * lanes <= acc_stride; c += kValueVectors * lanes) {
    ValueTile<T, kQueries, kValueVectors>(weights, rescale, values + c, value_stride, begin, end,
                                          acc + c, acc_stride);
  }
  for (; c < acc_stride; c += lanes) {
    ValueTile<T, kQueries, 1>(weights, rescale, values + c, value_stride, begin, end, acc + c,
                              acc_stride);
  }
}

// Keys of one query inside a block, as offsets.
struct KeyRange {
  int64_t begin = 0;
  int64_t end = 0;
};

// Everything of one item that the block loop needs. Arrays are padded to whole vectors.
struct Tile {
  int64_t queries;
  float* q;       // [queries][head_dim], scaled
  float* acc;     // [queries][padded value_dim]
  float* scores;  // [queries][kMaxBlockTokens]: scores, then weights
  int64_t position[kTileQueries];
  HWY_ALIGN float most[kTileQueries];     // running maximum of the scores
  HWY_ALIGN float shift[kTileQueries];    // what is subtracted from this block's scores
  HWY_ALIGN float rescale[kTileQueries];  // what the former result is multiplied with
  HWY_ALIGN float sum[kTileQueries];      // running sum of the weights
};

// Caps and masks the scores of one query and returns the larger of `most` and their maximum.
HWY_INLINE float BlockMaximum(float* scores, int64_t tokens, KeyRange keys, float soft_cap,
                              float most) {
  const DF d;
  const DI di;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const VF lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  const auto first = hn::Set(di, static_cast<int32_t>(keys.begin));
  const auto end = hn::Set(di, static_cast<int32_t>(keys.end));
  const bool whole = keys.begin == 0 && keys.end == tokens && soft_cap <= 0;
  VF all = hn::Set(d, most);
  for (int64_t t = 0; t < tokens; t += lanes) {
    VF s = hn::LoadU(d, scores + t);
    if (!whole) {
      if (soft_cap > 0) {
        const VF cap = hn::Set(d, soft_cap);
        s = hn::Mul(cap, hn::Tanh(d, hn::Div(s, cap)));
      }
      const auto token = hn::Iota(di, static_cast<int32_t>(t));
      const auto inside = hn::AndNot(hn::Lt(token, first), hn::Lt(token, end));
      s = hn::IfThenElse(hn::RebindMask(d, inside), s, lowest);
      hn::StoreU(s, d, scores + t);
    }
    all = hn::Max(all, s);
  }
  return hn::GetLane(hn::MaxOfLanes(d, all));
}

// Turns the scores of one query into weights e^(score - shift) and returns their sum.
HWY_INLINE float BlockWeights(float* scores, int64_t tokens, float shift) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const VF shifts = hn::Set(d, shift);
  VF sum = hn::Zero(d);
  for (int64_t t = 0; t < tokens; t += lanes) {
    const VF weight = ExpNonPositive(d, hn::Sub(hn::LoadU(d, scores + t), shifts));
    sum = hn::Add(sum, weight);
    hn::StoreU(weight, d, scores + t);
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

// One step of the online softmax for all queries of a tile.
HWY_INLINE void BlockSoftmax(Tile& tile, int64_t tokens, const KeyRange* ranges, float soft_cap) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  HWY_ALIGN float most[kTileQueries];
  for (int64_t m = 0; m < tile.queries; ++m) {
    most[m] =
        BlockMaximum(tile.scores + m * kMaxBlockTokens, tokens, ranges[m], soft_cap, tile.most[m]);
  }
  for (int64_t m = tile.queries; m < kTileQueries; ++m) {
    most[m] = tile.most[m];
  }
  const VF lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  for (int64_t m = 0; m < tile.queries; m += lanes) {
    const VF now = hn::Load(d, most + m);
    // While everything was masked the maximum is -infinity; zero does instead.
    const VF shift = hn::IfThenZeroElse(hn::Eq(now, lowest), now);
    const VF rescale = ExpNonPositive(d, hn::Sub(hn::Load(d, tile.most + m), shift));
    hn::Store(now, d, tile.most + m);
    hn::Store(shift, d, tile.shift + m);
    hn::Store(rescale, d, tile.rescale + m);
  }
  for (int64_t m = 0; m < tile.queries; ++m) {
    const float sum = BlockWeights(tile.scores + m * kMaxBlockTokens, tokens, tile.shift[m]);
    tile.sum[m] = tile.sum[m] * tile.rescale[m] + sum;
  }
}
