#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/encode.h"

// One copy of this file per instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_kernel.cc"
#include <hwy/foreach_target.h>
// After foreach_target.
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();

namespace penstock::kernels {
namespace HWY_NAMESPACE {

#include "kernels/cpu/math_inl.h"

#include "kernels/cpu/attention_inl.h"

// scores[m][t] = sum over i of q[m][i] * keys[i][t], i ascending, for kVectors vectors of tokens.
template <class T, int kQueries, int kVectors>
HWY_INLINE void ScoreTile(const float* HWY_RESTRICT q, int64_t q_stride, const T* HWY_RESTRICT keys,
                          int64_t tokens, int64_t head_dim, float* HWY_RESTRICT scores) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  VF s[kQueries][kVectors];
  PENSTOCK_UNROLL
  for (int m = 0; m < kQueries; ++m) {
    PENSTOCK_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      s[m][v] = hn::Zero(d);
    }
  }
  for (int64_t i = 0; i < head_dim; ++i) {
    VF k[kVectors];
    PENSTOCK_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      k[v] = LoadElements(d, keys + i * tokens + v * lanes);
    }
    PENSTOCK_UNROLL
    for (int m = 0; m < kQueries; ++m) {
      const VF x = hn::Set(d, q[m * q_stride + i]);
      PENSTOCK_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        s[m][v] = hn::MulAdd(x, k[v], s[m][v]);
      }
    }
  }
  PENSTOCK_UNROLL
  for (int m = 0; m < kQueries; ++m) {
    PENSTOCK_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      hn::StoreU(s[m][v], d, scores + m * kMaxBlockTokens + v * lanes);
    }
  }
}

template <class T, int kQueries>
HWY_INLINE void ScoreQueries(int64_t queries, const float* q, int64_t q_stride, const T* keys,
                             int64_t tokens, int64_t head_dim, int64_t begin, int64_t end,
                             float* scores) {
  if (queries < kQueries) {
    if constexpr (kQueries > 1) {
      ScoreQueries<T, kQueries - 1>(queries, q, q_stride, keys, tokens, head_dim, begin, end,
                                    scores);
    }
    return;
  }
  const auto lanes = static_cast<int64_t>(hn::Lanes(DF()));
  int64_t t = begin;
  for (; t + kScoreVectors * lanes <= end; t += kScoreVectors * lanes) {
    ScoreTile<T, kQueries, kScoreVectors>(q, q_stride, keys + t, tokens, head_dim, scores + t);
  }
  for (; t < end; t += lanes) {
    ScoreTile<T, kQueries, 1>(q, q_stride, keys + t, tokens, head_dim, scores + t);
  }
}

template <class T>
void AttendBlock(CpuKvCache& cache, const AttentionParams& params, int64_t kv_head, int64_t block,
                 int64_t first_position, Tile& tile) {
  const int64_t tokens = cache.padded_tokens();
  const T* keys = reinterpret_cast<const T*>(cache.Page(block, kv_head));
  const T* values = keys + cache.value_offset();
  KeyRange ranges[kTileQueries];
  KeyRange all{cache.spec().block_tokens, 0};
  for (int64_t m = 0; m < tile.queries; ++m) {
    const int64_t position = tile.position[m];
    const int64_t first = params.window > 0 ? position - params.window + 1 : 0;
    ranges[m].begin = std::clamp<int64_t>(first - first_position, 0, cache.spec().block_tokens);
    ranges[m].end =
        std::clamp<int64_t>(position + 1 - first_position, 0, cache.spec().block_tokens);
    if (ranges[m].begin < ranges[m].end) {
      all.begin = std::min(all.begin, ranges[m].begin);
      all.end = std::max(all.end, ranges[m].end);
    }
  }
  if (all.begin >= all.end) {
    return;
  }
  const auto lanes = static_cast<int64_t>(hn::Lanes(DF()));
  const int64_t score_begin = all.begin / lanes * lanes;
  const int64_t score_end = (all.end + lanes - 1) / lanes * lanes;
  for (int64_t m = 0; m < tile.queries; m += kScoreQueries) {
    const int64_t n = std::min<int64_t>(kScoreQueries, tile.queries - m);
    ScoreQueries<T, kScoreQueries>(n, tile.q + m * params.head_dim, params.head_dim, keys, tokens,
                                   params.head_dim, score_begin, score_end,
                                   tile.scores + m * kMaxBlockTokens);
  }
  BlockSoftmax(tile, tokens, ranges, params.soft_cap);
  for (int64_t m = 0; m < tile.queries; m += kValueQueries) {
    const int64_t n = std::min<int64_t>(kValueQueries, tile.queries - m);
    ValueQueries<T, kValueQueries>(
        n, tile.scores + m * kMaxBlockTokens, tile.rescale + m, values, cache.padded_value_dim(),
        all.begin, all.end, tile.acc + m * cache.padded_value_dim(), cache.padded_value_dim());
  }
}

template <class T>
void AttendTyped(CpuKvCache& cache, const AttentionParams& params, const AttentionItem& item,
                 Tensor q, Tensor out, float* scratch) {
  const DF d;
  const int64_t value_stride = cache.padded_value_dim();
  const SequenceRows& sequence = *item.sequence;
  Tile tile;
  tile.queries = item.rows * item.heads;
  tile.q = scratch;
  tile.acc = scratch + kTileQueries * params.head_dim;
  tile.scores = tile.acc + kTileQueries * value_stride;
  std::fill_n(tile.most, kTileQueries, -std::numeric_limits<float>::infinity());
  std::fill_n(tile.sum, kTileQueries, 0.0F);
  for (int64_t m = 0; m < tile.queries; ++m) {
    const int64_t row = item.row_begin + m / item.heads;
    const int64_t head = item.head + m % item.heads;
    const float* in = q.Row<float>(sequence.first_row + row).data() + head * params.head_dim;
    for (int64_t i = 0; i < params.head_dim; ++i) {
      tile.q[m * params.head_dim + i] = in[i] * params.scale;
    }
    tile.position[m] = sequence.first_position + row;
  }
  std::fill(tile.acc, tile.acc + tile.queries * value_stride, 0.0F);
  // Scores outside the computed range are masked, but must be numbers that can be loaded.
  std::fill_n(tile.scores, tile.queries * kMaxBlockTokens, 0.0F);

  const int64_t block_tokens = cache.spec().block_tokens;
  const int64_t first_key =
      params.window > 0 ? std::max<int64_t>(0, tile.position[0] - params.window + 1) : 0;
  const int64_t last_block = tile.position[tile.queries - 1] / block_tokens;
  for (int64_t b = first_key / block_tokens; b <= last_block; ++b) {
    const int32_t block = sequence.blocks[static_cast<size_t>(b)];
    PENSTOCK_CHECK(block >= 0 && block < cache.spec().blocks, "a block that is read exists");
    AttendBlock<T>(cache, params, item.kv_head, block, b * block_tokens, tile);
  }

  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t m = 0; m < tile.queries; ++m) {
    const int64_t row = item.row_begin + m / item.heads;
    const int64_t head = item.head + m % item.heads;
    float* to = out.Row<float>(sequence.first_row + row).data() + head * params.value_dim;
    const VF sum = hn::Set(d, tile.sum[m]);
    for (int64_t c = 0; c < params.value_dim; c += lanes) {
      const auto n = static_cast<size_t>(std::min(lanes, params.value_dim - c));
      hn::BlendedStore(hn::Div(hn::LoadU(d, tile.acc + m * value_stride + c), sum),
                       hn::FirstN(d, n), d, to + c);
    }
  }
}

void AttendAny(CpuKvCache& cache, const AttentionParams& params, const AttentionItem& item,
               Tensor q, Tensor out, float* scratch) {
  if (cache.spec().type == DType::kBF16) {
    AttendTyped<hwy::bfloat16_t>(cache, params, item, q, out, scratch);
  } else {
    AttendTyped<float>(cache, params, item, q, out, scratch);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace penstock::kernels

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace penstock::kernels {

HWY_EXPORT(AttendAny);

namespace {

template <class T>
void Write(CpuKvCache& cache, const SequenceRows& sequence, Tensor k, Tensor v, int64_t begin,
           int64_t end) {
  const KvCacheSpec& spec = cache.spec();
  const int64_t tokens = cache.padded_tokens();
  for (int64_t r = begin; r < end; ++r) {
    const int64_t position = sequence.first_position + r;
    const int32_t block = sequence.blocks[static_cast<size_t>(position / spec.block_tokens)];
    PENSTOCK_CHECK(block >= 0 && block < spec.blocks, "a block that is written exists");
    const int64_t t = position % spec.block_tokens;
    const float* key = k.Row<float>(sequence.first_row + r).data();
    const float* value = v.Row<float>(sequence.first_row + r).data();
    for (int64_t h = 0; h < spec.kv_heads; ++h) {
      T* keys = reinterpret_cast<T*>(cache.Page(block, h));
      T* values = keys + cache.value_offset() + t * cache.padded_value_dim();
      for (int64_t i = 0; i < spec.head_dim; ++i) {
        Encode(key[h * spec.head_dim + i], keys[i * tokens + t]);
      }
      for (int64_t i = 0; i < spec.value_dim; ++i) {
        Encode(value[h * spec.value_dim + i], values[i]);
      }
      std::fill(values + spec.value_dim, values + cache.padded_value_dim(), T{0});
    }
  }
}

}  // namespace

int64_t AttentionScratchFloats(const AttentionParams& params) {
  const int64_t value_stride = (params.value_dim + 15) / 16 * 16;
  const int64_t floats = kTileQueries * (params.head_dim + value_stride + kMaxBlockTokens);
  return (floats + 15) / 16 * 16;
}

void WriteKeysValues(CpuKvCache& cache, const SequenceRows& sequence, Tensor k, Tensor v,
                     int64_t begin, int64_t end) {
  if (cache.spec().type == DType::kBF16) {
    Write<uint16_t>(cache, sequence, k, v, begin, end);
  } else {
    Write<float>(cache, sequence, k, v, begin, end);
  }
}

void AttendItem(CpuKvCache& cache, const AttentionParams& params, const AttentionItem& item,
                Tensor q, Tensor out, float* scratch) {
  HWY_DYNAMIC_DISPATCH(AttendAny)(cache, params, item, q, out, scratch);
}

}  // namespace penstock::kernels

#endif  // HWY_ONCE
