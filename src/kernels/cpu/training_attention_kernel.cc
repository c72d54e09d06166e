#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/training_attention.h"

// One copy of this file per instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/training_attention_kernel.cc"
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

// A small product c [m, n] (+)= a b in float32: a(i, k) lies at a + i * a_row + k * a_step, row k
// of b at b + k * b_row. Every element sums over ascending k.
struct SmallProduct {
  const float* a;
  int64_t a_row;
  int64_t a_step;
  const float* b;
  int64_t b_row;
  float* c;
  int64_t c_row;
  int64_t m;
  int64_t n;
  int64_t k;
  bool accumulate;
};

// What a mask leaves of a product: in row i, columns or steps [i + first, i + last] count; the
// others may be passed over, since they add nothing or are masked later.
struct Band {
  int64_t first;
  int64_t last;
};

// Registers: 32 with 512 bits, 16 otherwise.
inline constexpr int kProductRows = 6;
inline constexpr int kProductVectors = HWY_TARGET == HWY_AVX2 ? 2 : 4;

// Rows [i, i + kRows) and kVectors vectors from column j on; with kMasked the one vector is cut at
// n.
template <int kRows, int kVectors, bool kMasked>
HWY_INLINE void ProductTile(const SmallProduct& p, int64_t i, int64_t j, int64_t k_begin,
                            int64_t k_end) {
  static_assert(!kMasked || kVectors == 1);
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto load = [&](const float* from) HWY_ATTR {
    return kMasked ? LoadFirst(d, from, p.n - j) : hn::LoadU(d, from);
  };
  VF sum[kRows][kVectors];
  PENSTOCK_UNROLL
  for (int r = 0; r < kRows; ++r) {
    PENSTOCK_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      sum[r][v] = p.accumulate ? load(p.c + (i + r) * p.c_row + j + v * lanes) : hn::Zero(d);
    }
  }
  const float* HWY_RESTRICT a = p.a + i * p.a_row + k_begin * p.a_step;
  const float* HWY_RESTRICT b = p.b + j + k_begin * p.b_row;
  for (int64_t k = k_begin; k < k_end; ++k, a += p.a_step, b += p.b_row) {
    VF x[kVectors];
    PENSTOCK_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      x[v] = load(b + v * lanes);
    }
    PENSTOCK_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const VF w = hn::Set(d, a[r * p.a_row]);
      PENSTOCK_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        sum[r][v] = hn::MulAdd(w, x[v], sum[r][v]);
      }
    }
  }
  PENSTOCK_UNROLL
  for (int r = 0; r < kRows; ++r) {
    PENSTOCK_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      float* to = p.c + (i + r) * p.c_row + j + v * lanes;
      if (kMasked) {
        StoreFirst(d, sum[r][v], to, p.n - j);
      } else {
        hn::StoreU(sum[r][v], d, to);
      }
    }
  }
}

// Columns [j, end) of a tile's rows in whole vectors, kVectors or fewer at a time; returns where it
// stopped.
template <int kRows, int kVectors>
HWY_INLINE int64_t ProductColumns(const SmallProduct& p, int64_t i, int64_t j, int64_t end,
                                  int64_t k_begin, int64_t k_end) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(DF()));
  for (; j + kVectors * lanes <= end; j += kVectors * lanes) {
    ProductTile<kRows, kVectors, false>(p, i, j, k_begin, k_end);
  }
  if constexpr (kVectors > 1) {
    return ProductColumns<kRows, kVectors - 1>(p, i, j, end, k_begin, k_end);
  } else {
    return j;
  }
}

template <int kRows>
HWY_INLINE void ProductRows(const SmallProduct& p, int64_t i, int64_t rows, int64_t j_begin,
                            int64_t j_end, int64_t k_begin, int64_t k_end) {
  if (rows < kRows) {
    if constexpr (kRows > 1) {
      ProductRows<kRows - 1>(p, i, rows, j_begin, j_end, k_begin, k_end);
    }
    return;
  }
  const int64_t j = ProductColumns<kRows, kProductVectors>(p, i, j_begin, j_end, k_begin, k_end);
  if (j < j_end) {
    ProductTile<kRows, 1, true>(p, i, j, k_begin, k_end);
  }
}

// `columns` and `steps`: what counts of c's columns and of the sum.
void MultiplyBand(const SmallProduct& p, const Band& columns, const Band& steps) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(DF()));
  const int64_t tiles = (p.m + kProductRows - 1) / kProductRows;
  for (int64_t t = 0; t < tiles; ++t) {
    const int64_t i = p.m * t / tiles;
    const int64_t end = p.m * (t + 1) / tiles;
    const auto whole = [&](int64_t j) { return (j + lanes - 1) / lanes * lanes; };
    const int64_t j_begin = std::max<int64_t>(0, i + columns.first) / lanes * lanes;
    const int64_t j_end = std::min(p.n, whole(std::max<int64_t>(0, end + columns.last)));
    const int64_t k_begin = std::max<int64_t>(0, i + steps.first);
    const int64_t k_end = std::min(p.k, end + steps.last);
    ProductRows<kProductRows>(p, i, end - i, j_begin, j_end, k_begin, k_end);
  }
}

inline constexpr Band kEverything = {-(int64_t{1} << 40), int64_t{1} << 40};

// `count` rows of `columns` numbers as [columns][64]; zero beyond.
void TransposeBlock(const float* from, int64_t row_stride, int64_t count, int64_t columns,
                    float* to) {
  constexpr int64_t kBlock = kAttentionBlock;
  int64_t done = 0;
#if HWY_TARGET != HWY_SCALAR
  // Four by four in 128 bits.
  const hn::Full128<float> d;
  const hn::Full128<double> d2;
  const auto wide = [&](auto v) HWY_ATTR { return hn::BitCast(d2, v); };
  const int64_t fours = columns / 4 * 4;
  for (; done + 4 <= count; done += 4) {
    const float* row = from + done * row_stride;
    for (int64_t i = 0; i < fours; i += 4) {
      const auto r0 = hn::LoadU(d, row + i);
      const auto r1 = hn::LoadU(d, row + row_stride + i);
      const auto r2 = hn::LoadU(d, row + 2 * row_stride + i);
      const auto r3 = hn::LoadU(d, row + 3 * row_stride + i);
      const auto t0 = wide(hn::InterleaveLower(d, r0, r1));
      const auto t1 = wide(hn::InterleaveLower(d, r2, r3));
      const auto u0 = wide(hn::InterleaveUpper(d, r0, r1));
      const auto u1 = wide(hn::InterleaveUpper(d, r2, r3));
      float* at = to + i * kBlock + done;
      hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d2, t0, t1)), d, at);
      hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d2, t0, t1)), d, at + kBlock);
      hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d2, u0, u1)), d, at + 2 * kBlock);
      hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d2, u0, u1)), d, at + 3 * kBlock);
    }
    for (int64_t i = fours; i < columns; ++i) {
      for (int64_t t = 0; t < 4; ++t) {
        to[i * kBlock + done + t] = row[t * row_stride + i];
      }
    }
  }
#endif
  for (int64_t t = done; t < kBlock; ++t) {
    for (int64_t i = 0; i < columns; ++i) {
      to[i * kBlock + t] = t < count ? from[t * row_stride + i] : 0.0F;
    }
  }
}

// Keys of a block that a query sees, as offsets in the block.
struct Seen {
  int64_t begin = 0;
  int64_t end = 0;
};

HWY_INLINE Seen SeenKeys(const AttentionParams& params, int64_t position, int64_t first_key) {
  const int64_t first = params.window > 0 ? position - params.window + 1 : 0;
  return {std::clamp<int64_t>(first - first_key, 0, kAttentionBlock),
          std::clamp<int64_t>(position + 1 - first_key, 0, kAttentionBlock)};
}

// Keys of the block that row i of a block of queries sees: i + first to i + last.
HWY_INLINE Band BandOf(const AttentionParams& params, int64_t first_position, int64_t first_key) {
  const int64_t last = first_position - first_key;
  return {params.window > 0 ? last - params.window + 1 : kEverything.first, last};
}

// The same seen from the keys: rows of the block of queries that see key i.
HWY_INLINE Band Transposed(const Band& band) {
  return {-band.last, band.first == kEverything.first ? kEverything.last : -band.first};
}

HWY_INLINE auto InsideMask(DF d, int64_t t, Seen seen) {
  const DI di;
  const auto token = hn::Iota(di, static_cast<int32_t>(t));
  return hn::RebindMask(d, hn::AndNot(hn::Lt(token, hn::Set(di, static_cast<int32_t>(seen.begin))),
                                      hn::Lt(token, hn::Set(di, static_cast<int32_t>(seen.end)))));
}

HWY_INLINE VF Capped(DF d, VF score, float cap) {
  const VF c = hn::Set(d, cap);
  return hn::Mul(c, hn::Tanh(d, hn::Div(score, c)));
}

// The running softmax of one query.
struct Running {
  float most = -std::numeric_limits<float>::infinity();
  float sum = 0;
};

// Turns one query's products with a block of keys into weights, in place, and returns the factor of
// what was summed before.
template <bool kWhole>
HWY_INLINE float SoftmaxStep(const AttentionParams& params, Seen seen, float* scores,
                             Running& running) {
  const DF d;
  constexpr auto kLanes = static_cast<int64_t>(hn::MaxLanes(DF()));
  constexpr int64_t kVectors = kAttentionBlock / kLanes;
  const float infinity = std::numeric_limits<float>::infinity();
  const VF scale = hn::Set(d, params.scale);
  VF s[kVectors];
  VF most = hn::Set(d, running.most);
  PENSTOCK_UNROLL
  for (int64_t v = 0; v < kVectors; ++v) {
    s[v] = hn::Mul(hn::LoadU(d, scores + v * kLanes), scale);
    if (params.soft_cap > 0) {
      s[v] = Capped(d, s[v], params.soft_cap);
    }
    if (!kWhole) {
      s[v] = hn::IfThenElse(InsideMask(d, v * kLanes, seen), s[v], hn::Set(d, -infinity));
    }
    most = hn::Max(most, s[v]);
  }
  const float now = hn::GetLane(hn::MaxOfLanes(d, most));
  // While everything was masked the maximum is -infinity; zero does instead.
  const float shift = now == -infinity ? 0.0F : now;
  const VF shifts = hn::Set(d, shift);
  VF sum = hn::Zero(d);
  PENSTOCK_UNROLL
  for (int64_t v = 0; v < kVectors; ++v) {
    const VF weight = ExpNonPositive(d, hn::Sub(s[v], shifts));
    sum = hn::Add(sum, weight);
    hn::StoreU(weight, d, scores + v * kLanes);
  }
  float rescale = 1.0F;
  if (now != running.most) {
    rescale = hn::GetLane(ExpNonPositive(d, hn::Set(d, running.most - shift)));
    running.most = now;
  }
  running.sum = running.sum * rescale + hn::GetLane(hn::SumOfLanes(d, sum));
  return rescale;
}

HWY_INLINE void ScaleRow(float* p, int64_t n, float factor) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i < n; i += lanes) {
    hn::StoreU(hn::Mul(hn::LoadU(d, p + i), hn::Set(d, factor)), d, p + i);
  }
}

HWY_INLINE int64_t KeysIn(const Segment& segment, int64_t block) {
  return std::min(kAttentionBlock, segment.keys_before + segment.rows - block * kAttentionBlock);
}

void ForwardBlock(const AttentionParams& params, const Segment& segment, const QueryBlock& queries,
                  const AttentionTensors& t, AttentionScratch& scratch) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t kv_head = queries.head / (params.heads / params.kv_heads);
  const int64_t sums_row = (params.value_dim + 15) / 16 * 16;
  const int64_t first_row = segment.first_row + queries.row;
  Running running[kAttentionBlock];
  float* sums = scratch.sums();
  std::fill_n(sums, queries.rows * sums_row, 0.0F);
  const KeyBlocks blocks = VisibleBlocks(params, segment, queries.row, queries.rows);
  for (int64_t b = blocks.begin; b < blocks.end; ++b) {
    const int64_t first_key = b * kAttentionBlock;
    const int64_t key_row = segment.first_key + first_key;
    const int64_t keys = KeysIn(segment, b);
    float* packed = scratch.keys() + first_key * params.head_dim;
    if (!scratch.MarkPacked(queries.segment, kv_head, b)) {
      TransposeBlock(In(t.k, key_row) + kv_head * params.head_dim, t.k.row_stride(), keys,
                     params.head_dim, packed);
    }
    const Band band = BandOf(params, segment.keys_before + queries.row, first_key);
    MultiplyBand({In(t.q, first_row) + queries.head * params.head_dim, t.q.row_stride(), 1, packed,
                  kAttentionBlock, scratch.scores(), kAttentionBlock, queries.rows, kAttentionBlock,
                  params.head_dim, false},
                 band, kEverything);
    for (int64_t m = 0; m < queries.rows; ++m) {
      const Seen seen = SeenKeys(params, segment.keys_before + queries.row + m, first_key);
      const bool whole = seen.begin == 0 && seen.end == kAttentionBlock;
      float* scores = scratch.scores() + m * kAttentionBlock;
      const float rescale = whole ? SoftmaxStep<true>(params, seen, scores, running[m])
                                  : SoftmaxStep<false>(params, seen, scores, running[m]);
      if (rescale != 1.0F) {
        ScaleRow(sums + m * sums_row, sums_row, rescale);
      }
    }
    MultiplyBand(
        {scratch.scores(), kAttentionBlock, 1, In(t.v, key_row) + kv_head * params.value_dim,
         t.v.row_stride(), sums, sums_row, queries.rows, params.value_dim, keys, true},
        kEverything, band);
  }
  for (int64_t m = 0; m < queries.rows; ++m) {
    float* to = Out(t.out, first_row + m) + queries.head * params.value_dim;
    const VF sum = hn::Set(d, running[m].sum);
    for (int64_t c = 0; c < params.value_dim; c += lanes) {
      StoreFirst(d, hn::Div(hn::LoadU(d, sums + m * sums_row + c), sum), to + c,
                 std::min(lanes, params.value_dim - c));
    }
    Out(t.lse, first_row + m)[queries.head] = running[m].most + std::log(running[m].sum);
  }
}

// From products of a query with a block of keys (`scores`) and of its output's gradient with the
// block's values (`slopes`): the weights and the gradients of the products, in place.
template <bool kWhole>
void SoftmaxBack(const AttentionParams& params, Seen seen, float lse, float mean, float* scores,
                 float* slopes) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const VF scale = hn::Set(d, params.scale);
  for (int64_t t = 0; t < kAttentionBlock; t += lanes) {
    VF s = hn::Mul(hn::LoadU(d, scores + t), scale);
    VF slope = scale;
    if (params.soft_cap > 0) {
      const VF cap = hn::Set(d, params.soft_cap);
      const VF tanh = hn::Tanh(d, hn::Div(s, cap));
      s = hn::Mul(cap, tanh);
      slope = hn::Mul(slope, hn::NegMulAdd(tanh, tanh, hn::Set(d, 1.0F)));
    }
    const VF weight =
        hn::IfThenElseZero(InsideMask(d, t, seen), ExpNonPositive(d, hn::Sub(s, hn::Set(d, lse))));
    const VF back = hn::Mul(weight, hn::Sub(hn::LoadU(d, slopes + t), hn::Set(d, mean)));
    hn::StoreU(weight, d, scores + t);
    hn::StoreU(hn::Mul(back, slope), d, slopes + t);
  }
}

// A block of queries of one head against a block of keys.
void BackwardTile(const AttentionParams& params, const Segment& segment, const QueryBlock& queries,
                  int64_t block, const float* means, bool first, const AttentionTensors& t,
                  AttentionScratch& scratch) {
  const int64_t kv_head = queries.head / (params.heads / params.kv_heads);
  const int64_t first_row = segment.first_row + queries.row;
  const int64_t first_key = block * kAttentionBlock;
  const int64_t key_row = segment.first_key + first_key;
  const int64_t keys = KeysIn(segment, block);
  const int64_t head_dim = params.head_dim;
  const int64_t value_dim = params.value_dim;
  const float* q = In(t.q, first_row) + queries.head * head_dim;
  const float* dout = In(t.dout, first_row) + queries.head * value_dim;
  float* scores = scratch.scores();
  float* slopes = scratch.slopes();
  constexpr int64_t kBlock = kAttentionBlock;
  const Band band = BandOf(params, segment.keys_before + queries.row, first_key);
  const Band back = Transposed(band);
  MultiplyBand({q, t.q.row_stride(), 1, scratch.keys() + first_key * head_dim, kBlock, scores,
                kBlock, queries.rows, kBlock, head_dim, false},
               band, kEverything);
  MultiplyBand({dout, t.dout.row_stride(), 1, scratch.values() + first_key * value_dim, kBlock,
                slopes, kBlock, queries.rows, kBlock, value_dim, false},
               band, kEverything);
  for (int64_t m = 0; m < queries.rows; ++m) {
    const Seen seen = SeenKeys(params, segment.keys_before + queries.row + m, first_key);
    const bool whole = seen.begin == 0 && seen.end == kBlock;
    const auto step = whole ? SoftmaxBack<true> : SoftmaxBack<false>;
    step(params, seen, In(t.lse, first_row + m)[queries.head], means[m], scores + m * kBlock,
         slopes + m * kBlock);
  }
  MultiplyBand({scores, 1, kBlock, dout, t.dout.row_stride(), scratch.dv() + first_key * value_dim,
                value_dim, keys, value_dim, queries.rows, true},
               kEverything, back);
  MultiplyBand({slopes, 1, kBlock, q, t.q.row_stride(), scratch.dk() + first_key * head_dim,
                head_dim, keys, head_dim, queries.rows, true},
               kEverything, back);
  MultiplyBand({slopes, kBlock, 1, In(t.k, key_row) + kv_head * head_dim, t.k.row_stride(),
                Out(t.dq, first_row) + queries.head * head_dim, t.dq.row_stride(), queries.rows,
                head_dim, keys, !first},
               kEverything, band);
}

void BackwardHead(const AttentionParams& params, const Segment& segment, int64_t head,
                  const AttentionTensors& t, AttentionScratch& scratch) {
  const int64_t kv_head = head / (params.heads / params.kv_heads);
  const int64_t seen = segment.keys_before + segment.rows;
  const int64_t blocks = (seen + kAttentionBlock - 1) / kAttentionBlock;
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t first_key = b * kAttentionBlock;
    const int64_t key_row = segment.first_key + first_key;
    TransposeBlock(In(t.k, key_row) + kv_head * params.head_dim, t.k.row_stride(),
                   KeysIn(segment, b), params.head_dim,
                   scratch.keys() + first_key * params.head_dim);
    TransposeBlock(In(t.v, key_row) + kv_head * params.value_dim, t.v.row_stride(),
                   KeysIn(segment, b), params.value_dim,
                   scratch.values() + first_key * params.value_dim);
  }
  std::fill_n(scratch.dk(), seen * params.head_dim, 0.0F);
  std::fill_n(scratch.dv(), seen * params.value_dim, 0.0F);
  for (int64_t row = 0; row < segment.rows; row += kAttentionBlock) {
    const QueryBlock queries{0, head, row, std::min(kAttentionBlock, segment.rows - row)};
    // Mean of the gradients of the weights under the weights: out . dout.
    float means[kAttentionBlock];
    for (int64_t m = 0; m < queries.rows; ++m) {
      const int64_t r = segment.first_row + row + m;
      means[m] = Dot(In(t.out, r) + head * params.value_dim,
                     In(t.dout, r) + head * params.value_dim, params.value_dim);
    }
    const KeyBlocks visible = VisibleBlocks(params, segment, row, queries.rows);
    for (int64_t b = visible.begin; b < visible.end; ++b) {
      BackwardTile(params, segment, queries, b, means, b == visible.begin, t, scratch);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace penstock::kernels

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace penstock::kernels {

HWY_EXPORT(ForwardBlock);
HWY_EXPORT(BackwardHead);

void AttendBlockForward(const AttentionParams& params, const Segment& segment,
                        const QueryBlock& queries, const AttentionTensors& tensors,
                        AttentionScratch& scratch) {
  HWY_DYNAMIC_DISPATCH(ForwardBlock)(params, segment, queries, tensors, scratch);
}

void AttendHeadBackward(const AttentionParams& params, const Segment& segment, int64_t head,
                        const AttentionTensors& tensors, AttentionScratch& scratch) {
  HWY_DYNAMIC_DISPATCH(BackwardHead)(params, segment, head, tensors, scratch);
}

}  // namespace penstock::kernels

#endif  // HWY_ONCE
