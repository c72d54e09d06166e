// Attention of the CPU device over paged keys and values.
//
// A page holds `block_tokens` tokens of all heads. Per head: the keys transposed,
// [head_dim][tokens], then the values, [tokens][value_dim]; tokens and value_dim are padded to 16.
// So lanes are tokens for the scores and value columns for the result, and nothing is reduced
// across lanes but the sum of weights.
//
// Bits. A query passes its blocks in ascending order with the running maximum and sum of the
// online softmax (Milakov and Gimelshein, 2018); blocks lie at absolute positions, and a block that
// is masked for a query leaves it unchanged. So a row's result depends on its own position only.

#pragma once

#include <cstdint>
#include <span>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/pool.h"
#include "kernels/device.h"

namespace penstock::kernels {

inline constexpr int64_t kMaxBlockTokens = 256;
// Queries (row and head) that pass the pages together.
inline constexpr int64_t kTileQueries = 32;

class CpuKvCache final : public KvCache {
 public:
  CpuKvCache(const KvCacheSpec& spec, Buffer buffer) : spec_(spec), buffer_(std::move(buffer)) {}

  static int64_t Bytes(const KvCacheSpec& spec);

  const KvCacheSpec& spec() const { return spec_; }

  int64_t padded_tokens() const { return (spec_.block_tokens + 15) / 16 * 16; }

  int64_t padded_value_dim() const { return (spec_.value_dim + 15) / 16 * 16; }

  // Keys of (block, head); the values follow after head_dim * padded_tokens elements.
  std::byte* Page(int64_t block, int64_t head) {
    return buffer_.data() + (block * spec_.kv_heads + head) * page_elements() * element_bytes();
  }

  int64_t value_offset() const { return spec_.head_dim * padded_tokens(); }  // elements

 private:
  int64_t page_elements() const { return padded_tokens() * (spec_.head_dim + padded_value_dim()); }

  int64_t element_bytes() const { return spec_.type == DType::kBF16 ? 2 : 4; }

  KvCacheSpec spec_;
  Buffer buffer_;
};

// Scratch floats of one thread.
int64_t AttentionScratchFloats(const AttentionParams& params);

// Writes the keys and values of sequence rows [begin, end).
void WriteKeysValues(CpuKvCache& cache, const SequenceRows& sequence, Tensor k, Tensor v,
                     int64_t begin, int64_t end);

// One item: queries of rows [row_begin, row_begin + rows) of a sequence for heads
// [head, head + heads) that share kv_head. REQUIRES: rows * heads <= kTileQueries.
struct AttentionItem {
  const SequenceRows* sequence = nullptr;
  int64_t row_begin = 0;  // in the sequence
  int64_t rows = 0;
  int64_t kv_head = 0;
  int64_t head = 0;
  int64_t heads = 0;
};

void AttendItem(CpuKvCache& cache, const AttentionParams& params, const AttentionItem& item,
                Tensor q, Tensor out, float* scratch);

// The whole operation. workspace: threads * AttentionScratchFloats floats.
void Attend(CpuKvCache& cache, const AttentionParams& params,
            std::span<const SequenceRows> sequences, Tensor q, Tensor k, Tensor v, Tensor out,
            float* workspace, ThreadPool& pool);

}  // namespace penstock::kernels
