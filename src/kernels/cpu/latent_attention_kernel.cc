#include <algorithm>
#include <limits>

#include "kernels/cpu/encode.h"
#include "kernels/cpu/latent_attention.h"

// One copy of this file per instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/latent_attention_kernel.cc"
#include <hwy/foreach_target.h>
// After foreach_target.
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();

namespace penstock::kernels {
namespace HWY_NAMESPACE {

#include "kernels/cpu/math_inl.h"

#include "kernels/cpu/attention_inl.h"

inline constexpr int kRowQueries = HWY_TARGET == HWY_AVX3 ? 4 : 2;
inline constexpr int kRowTokens = 4;

HWY_INLINE VF LoadFirst(DF d, const float* p, int64_t n) {
  return hn::MaskedLoad(hn::FirstN(d, static_cast<size_t>(n)), d, p);
}

// Keys of one page in two parts, rows of padded length.
template <class T1, class T2>
struct PageKeys {
  const T1* first;
  int64_t first_stride;
  int64_t first_columns;  // multiple of 16
  const T2* second;
  int64_t second_stride;
  int64_t second_columns;  // multiple of 16
};

template <class T, int kQueries, int kTokens>
HWY_INLINE void AddProducts(const float* HWY_RESTRICT q, int64_t q_stride,
                            const T* HWY_RESTRICT keys, int64_t key_stride, int64_t columns,
                            VF (&s)[kQueries][kTokens]) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t c = 0; c < columns; c += lanes) {
    VF k[kTokens];
    PENSTOCK_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      k[t] = LoadElements(d, keys + t * key_stride + c);
    }
    PENSTOCK_UNROLL
    for (int m = 0; m < kQueries; ++m) {
      const VF x = hn::LoadU(d, q + m * q_stride + c);
      PENSTOCK_UNROLL
      for (int t = 0; t < kTokens; ++t) {
        s[m][t] = hn::MulAdd(x, k[t], s[m][t]);
      }
    }
  }
}

template <class T1, class T2, int kQueries, int kTokens>
HWY_INLINE void RowScores(const float* q, int64_t q_stride, const PageKeys<T1, T2>& keys,
                          int64_t token, float* scores) {
  const DF d;
  VF s[kQueries][kTokens];
  PENSTOCK_UNROLL
  for (int m = 0; m < kQueries; ++m) {
    PENSTOCK_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      s[m][t] = hn::Zero(d);
    }
  }
  AddProducts<T1, kQueries, kTokens>(q, q_stride, keys.first + token * keys.first_stride,
                                     keys.first_stride, keys.first_columns, s);
  AddProducts<T2, kQueries, kTokens>(q + keys.first_columns, q_stride,
                                     keys.second + token * keys.second_stride, keys.second_stride,
                                     keys.second_columns, s);
  PENSTOCK_UNROLL
  for (int m = 0; m < kQueries; ++m) {
    PENSTOCK_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      scores[m * kMaxBlockTokens + token + t] = hn::GetLane(hn::SumOfLanes(d, s[m][t]));
    }
  }
}

template <class T1, class T2, int kQueries>
HWY_INLINE void RowScoresOfQueries(int64_t queries, const float* q, int64_t q_stride,
                                   const PageKeys<T1, T2>& keys, KeyRange tokens, float* scores) {
  if (queries < kQueries) {
    if constexpr (kQueries > 1) {
      RowScoresOfQueries<T1, T2, kQueries - 1>(queries, q, q_stride, keys, tokens, scores);
    }
    return;
  }
  int64_t t = tokens.begin;
  for (; t + kRowTokens <= tokens.end; t += kRowTokens) {
    RowScores<T1, T2, kQueries, kRowTokens>(q, q_stride, keys, t, scores);
  }
  for (; t < tokens.end; ++t) {
    RowScores<T1, T2, kQueries, 1>(q, q_stride, keys, t, scores);
  }
}

// Scores, softmax step and weighted sum of one page for all queries of a tile.
template <class T1, class T2, class TV>
HWY_INLINE void AttendRows(const PageKeys<T1, T2>& keys, const TV* values, int64_t value_stride,
                           int64_t acc_columns, int64_t first_position, int64_t tokens,
                           Tile& tile) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(DF()));
  KeyRange ranges[kTileQueries];
  int64_t end = 0;
  for (int64_t m = 0; m < tile.queries; ++m) {
    ranges[m].end = std::clamp<int64_t>(tile.position[m] + 1 - first_position, 0, tokens);
    end = std::max(end, ranges[m].end);
  }
  if (end == 0) {
    return;
  }
  const int64_t q_stride = keys.first_columns + keys.second_columns;
  for (int64_t m = 0; m < tile.queries; m += kRowQueries) {
    const int64_t n = std::min<int64_t>(kRowQueries, tile.queries - m);
    RowScoresOfQueries<T1, T2, kRowQueries>(n, tile.q + m * q_stride, q_stride, keys, {0, end},
                                            tile.scores + m * kMaxBlockTokens);
  }
  // Whole pages are read as whole vectors: the rest is masked, whatever it holds.
  const int64_t padded = (tokens + lanes - 1) / lanes * lanes;
  BlockSoftmax(tile, padded, ranges, 0.0F);
  for (int64_t m = 0; m < tile.queries; m += kValueQueries) {
    const int64_t n = std::min<int64_t>(kValueQueries, tile.queries - m);
    ValueQueries<TV, kValueQueries>(n, tile.scores + m * kMaxBlockTokens, tile.rescale + m, values,
                                    value_stride, 0, end, tile.acc + m * acc_columns, acc_columns);
  }
}

// out[c] = sum over n of q[n] * rows[n][c], n ascending.
HWY_INLINE void Absorb(const float* HWY_RESTRICT q, const float* HWY_RESTRICT rows, int64_t count,
                       int64_t columns, float* HWY_RESTRICT out) {
  constexpr int kVectors = 8;
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t c = 0;
  for (; c + kVectors * lanes <= columns; c += kVectors * lanes) {
    VF s[kVectors];
    PENSTOCK_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      s[v] = hn::Zero(d);
    }
    for (int64_t n = 0; n < count; ++n) {
      const VF x = hn::Set(d, q[n]);
      PENSTOCK_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        s[v] = hn::MulAdd(x, hn::LoadU(d, rows + n * columns + c + v * lanes), s[v]);
      }
    }
    PENSTOCK_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      hn::StoreU(s[v], d, out + c + v * lanes);
    }
  }
  for (; c < columns; c += lanes) {
    const int64_t left = std::min(lanes, columns - c);
    VF s = hn::Zero(d);
    for (int64_t n = 0; n < count; ++n) {
      s = hn::MulAdd(hn::Set(d, q[n]), LoadFirst(d, rows + n * columns + c, left), s);
    }
    hn::StoreU(s, d, out + c);
  }
}

// out[v] = sum over c of rows[v][c] * x[c]; x is padded with zeros to 16.
HWY_INLINE void Contract(const float* HWY_RESTRICT x, const float* HWY_RESTRICT rows, int64_t count,
                         int64_t columns, float* HWY_RESTRICT out) {
  constexpr int kRows = 4;
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t whole = columns / lanes * lanes;
  int64_t r = 0;
  for (; r < count; r += kRows) {
    const int64_t n = std::min<int64_t>(kRows, count - r);
    VF s[kRows];
    PENSTOCK_UNROLL
    for (int i = 0; i < kRows; ++i) {
      s[i] = hn::Zero(d);
    }
    const float* at[kRows];
    for (int64_t i = 0; i < kRows; ++i) {
      at[i] = rows + (r + std::min(i, n - 1)) * columns;
    }
    for (int64_t c = 0; c < whole; c += lanes) {
      const VF y = hn::LoadU(d, x + c);
      PENSTOCK_UNROLL
      for (int i = 0; i < kRows; ++i) {
        s[i] = hn::MulAdd(hn::LoadU(d, at[i] + c), y, s[i]);
      }
    }
    if (whole < columns) {
      const VF y = hn::LoadU(d, x + whole);
      PENSTOCK_UNROLL
      for (int i = 0; i < kRows; ++i) {
        s[i] = hn::MulAdd(LoadFirst(d, at[i] + whole, columns - whole), y, s[i]);
      }
    }
    for (int64_t i = 0; i < n; ++i) {
      out[r + i] = hn::GetLane(hn::SumOfLanes(d, s[i]));
    }
  }
}

template <class T>
void AbsorbedTyped(CpuLatentCache& cache, const LatentAttentionParams& params,
                   const LatentItem& item, Tensor q, Tensor out, float* scratch) {
  const SequenceRows& sequence = *item.sequence;
  const int64_t latent = Padded16(params.latent);
  const int64_t rope = Padded16(params.rope);
  const int64_t q_stride = latent + rope;
  const int64_t head_dim = params.nope + params.rope;
  const int64_t head_rows = params.nope + params.value_dim;
  Tile tile;
  tile.queries = item.rows * item.heads;
  tile.q = scratch;
  tile.acc = tile.q + kTileQueries * q_stride;
  tile.scores = tile.acc + kTileQueries * latent;
  float* scaled = tile.scores + kTileQueries * kMaxBlockTokens;
  std::fill_n(tile.most, kTileQueries, -std::numeric_limits<float>::infinity());
  std::fill_n(tile.sum, kTileQueries, 0.0F);
  std::fill(tile.q, tile.q + tile.queries * q_stride, 0.0F);
  std::fill(tile.acc, tile.acc + tile.queries * latent, 0.0F);
  std::fill_n(tile.scores, tile.queries * kMaxBlockTokens, 0.0F);
  const float* expand = params.expand_rows.Row<float>(0).data();
  for (int64_t m = 0; m < tile.queries; ++m) {
    const int64_t row = item.row_begin + m % item.rows;
    const int64_t head = item.head + m / item.rows;
    const float* in = q.Row<float>(sequence.first_row + row).data() + head * head_dim;
    for (int64_t i = 0; i < params.nope; ++i) {
      scaled[i] = in[i] * params.scale;
    }
    float* to = tile.q + m * q_stride;
    Absorb(scaled, expand + head * head_rows * params.latent, params.nope, params.latent, to);
    for (int64_t i = 0; i < params.rope; ++i) {
      to[latent + i] = in[params.nope + i] * params.scale;
    }
    tile.position[m] = sequence.first_position + row;
  }
  const int64_t block_tokens = cache.spec().block_tokens;
  const int64_t last = sequence.first_position + item.row_begin + item.rows - 1;
  for (int64_t b = 0; b <= last / block_tokens; ++b) {
    const int32_t block = sequence.blocks[static_cast<size_t>(b)];
    PENSTOCK_CHECK(block >= 0 && block < cache.spec().blocks, "a block that is read exists");
    const T* page = reinterpret_cast<const T*>(cache.Page(block));
    const PageKeys<T, T> keys{
        page, cache.stride(), latent, page + cache.key_offset(), cache.stride(), rope};
    AttendRows(keys, page, cache.stride(), latent, b * block_tokens, block_tokens, tile);
  }
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t m = 0; m < tile.queries; ++m) {
    const int64_t row = item.row_begin + m % item.rows;
    const int64_t head = item.head + m / item.rows;
    float* y = tile.acc + m * latent;
    const VF sum = hn::Set(d, tile.sum[m]);
    for (int64_t c = 0; c < latent; c += lanes) {
      hn::StoreU(hn::Div(hn::LoadU(d, y + c), sum), d, y + c);
    }
    Contract(y, expand + (head * head_rows + params.nope) * params.latent, params.value_dim,
             params.latent,
             out.Row<float>(sequence.first_row + row).data() + head * params.value_dim);
  }
}

void Absorbed(CpuLatentCache& cache, const LatentAttentionParams& params, const LatentItem& item,
              Tensor q, Tensor out, float* scratch) {
  if (cache.spec().type == DType::kBF16) {
    AbsorbedTyped<hwy::bfloat16_t>(cache, params, item, q, out, scratch);
  } else {
    AbsorbedTyped<float>(cache, params, item, q, out, scratch);
  }
}

template <class T>
void ExpandedTyped(CpuLatentCache& cache, const LatentAttentionParams& params,
                   const LatentItem& item, const ExpandedPage& page, Tensor q,
                   const PlainRunning& running, float* scratch) {
  const SequenceRows& sequence = *item.sequence;
  const int64_t nope = Padded16(params.nope);
  const int64_t rope = Padded16(params.rope);
  const int64_t value = Padded16(params.value_dim);
  const int64_t q_stride = nope + rope;
  const int64_t head_dim = params.nope + params.rope;
  Tile tile;
  tile.queries = item.rows;
  tile.q = scratch;
  tile.acc = tile.q + kTileQueries * q_stride;
  tile.scores = tile.acc + kTileQueries * value;
  std::fill_n(tile.most, kTileQueries, -std::numeric_limits<float>::infinity());
  std::fill_n(tile.sum, kTileQueries, 0.0F);
  std::fill_n(tile.scores, tile.queries * kMaxBlockTokens, 0.0F);
  for (int64_t m = 0; m < item.rows; ++m) {
    const int64_t row = item.row_begin + m;
    const int64_t at = row * params.heads + item.head;
    const float* in = q.Row<float>(sequence.first_row + row).data() + item.head * head_dim;
    float* to = tile.q + m * q_stride;
    std::fill(to, to + q_stride, 0.0F);
    for (int64_t i = 0; i < params.nope; ++i) {
      to[i] = in[i] * params.scale;
    }
    for (int64_t i = 0; i < params.rope; ++i) {
      to[nope + i] = in[params.nope + i] * params.scale;
    }
    tile.position[m] = sequence.first_position + row;
    tile.most[m] = running.most[at];
    tile.sum[m] = running.sum[at];
    std::copy_n(running.acc + at * value, value, tile.acc + m * value);
  }
  const T* rows = reinterpret_cast<const T*>(cache.Page(page.block));
  const float* first = page.expanded + item.head * (params.nope + params.value_dim);
  const PageKeys<float, T> keys{first,          page.stride, nope, rows + cache.key_offset(),
                                cache.stride(), rope};
  AttendRows(keys, first + params.nope, page.stride, value, page.first_position, page.tokens, tile);
  for (int64_t m = 0; m < item.rows; ++m) {
    const int64_t at = (item.row_begin + m) * params.heads + item.head;
    running.most[at] = tile.most[m];
    running.sum[at] = tile.sum[m];
    std::copy_n(tile.acc + m * value, value, running.acc + at * value);
  }
}

void Expanded(CpuLatentCache& cache, const LatentAttentionParams& params, const LatentItem& item,
              const ExpandedPage& page, Tensor q, const PlainRunning& running, float* scratch) {
  if (cache.spec().type == DType::kBF16) {
    ExpandedTyped<hwy::bfloat16_t>(cache, params, item, page, q, running, scratch);
  } else {
    ExpandedTyped<float>(cache, params, item, page, q, running, scratch);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace penstock::kernels

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace penstock::kernels {

HWY_EXPORT(Absorbed);
HWY_EXPORT(Expanded);

namespace {

template <class T>
void WriteTyped(CpuLatentCache& cache, const SequenceRows& sequence, Tensor latent, Tensor key,
                int64_t begin, int64_t end) {
  const LatentCacheSpec& spec = cache.spec();
  for (int64_t r = begin; r < end; ++r) {
    const int64_t position = sequence.first_position + r;
    const int32_t block = sequence.blocks[static_cast<size_t>(position / spec.block_tokens)];
    PENSTOCK_CHECK(block >= 0 && block < spec.blocks, "a block that is written exists");
    T* to = reinterpret_cast<T*>(cache.Page(block)) + position % spec.block_tokens * cache.stride();
    std::fill(to, to + cache.stride(), T{0});
    const float* c = latent.Row<float>(sequence.first_row + r).data();
    const float* k = key.Row<float>(sequence.first_row + r).data();
    for (int64_t i = 0; i < spec.latent; ++i) {
      Encode(c[i], to[i]);
    }
    for (int64_t i = 0; i < spec.rope; ++i) {
      Encode(k[i], to[cache.key_offset() + i]);
    }
  }
}

template <class T>
void ReadTyped(CpuLatentCache& cache, int64_t block, int64_t tokens, Tensor out) {
  const T* page = reinterpret_cast<const T*>(cache.Page(block));
  for (int64_t t = 0; t < tokens; ++t) {
    const std::span<float> row = out.Row<float>(t);
    for (size_t i = 0; i < row.size(); ++i) {
      row[i] = Decode(page[t * cache.stride() + static_cast<int64_t>(i)]);
    }
  }
}

}  // namespace

void WriteLatent(CpuLatentCache& cache, const SequenceRows& sequence, Tensor latent, Tensor key,
                 int64_t begin, int64_t end) {
  if (cache.spec().type == DType::kBF16) {
    WriteTyped<uint16_t>(cache, sequence, latent, key, begin, end);
  } else {
    WriteTyped<float>(cache, sequence, latent, key, begin, end);
  }
}

void ReadLatent(CpuLatentCache& cache, int64_t block, int64_t tokens, Tensor out) {
  if (cache.spec().type == DType::kBF16) {
    ReadTyped<uint16_t>(cache, block, tokens, out);
  } else {
    ReadTyped<float>(cache, block, tokens, out);
  }
}

void AttendAbsorbed(CpuLatentCache& cache, const LatentAttentionParams& params,
                    const LatentItem& item, Tensor q, Tensor out, float* scratch) {
  HWY_DYNAMIC_DISPATCH(Absorbed)(cache, params, item, q, out, scratch);
}

void AttendExpanded(CpuLatentCache& cache, const LatentAttentionParams& params,
                    const LatentItem& item, const ExpandedPage& page, Tensor q,
                    const PlainRunning& running, float* scratch) {
  HWY_DYNAMIC_DISPATCH(Expanded)(cache, params, item, page, q, running, scratch);
}

}  // namespace penstock::kernels

#endif  // HWY_ONCE
