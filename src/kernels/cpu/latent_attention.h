// Multi-head latent attention of the CPU device, over pages of latent rows.
//
// A page holds `block_tokens` rows: the latent and the shared key, each padded with zeros to 16
// elements. Nothing is stored per head. Scores are sums along a row (one vector of partial sums per
// query and key, then one fixed tree), the weighted sum runs over keys in ascending order with the
// online softmax of attention.h, so a row's result depends on its own position only.

#pragma once

#include <cstdint>
#include <span>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/pool.h"
#include "kernels/device.h"

namespace penstock::kernels {

inline int64_t Padded16(int64_t n) {
  return (n + 15) / 16 * 16;
}

class CpuLatentCache final : public LatentCache {
 public:
  CpuLatentCache(const LatentCacheSpec& spec, Buffer buffer)
      : spec_(spec), buffer_(std::move(buffer)) {}

  static int64_t Bytes(const LatentCacheSpec& spec) {
    return spec.blocks * spec.block_tokens * Stride(spec) * ElementBytes(spec);
  }

  const LatentCacheSpec& spec() const { return spec_; }

  int64_t stride() const { return Stride(spec_); }  // elements from token to token

  int64_t key_offset() const { return Padded16(spec_.latent); }

  std::byte* Page(int64_t block) {
    return buffer_.data() + block * spec_.block_tokens * stride() * ElementBytes(spec_);
  }

 private:
  static int64_t Stride(const LatentCacheSpec& spec) {
    return Padded16(spec.latent) + Padded16(spec.rope);
  }

  static int64_t ElementBytes(const LatentCacheSpec& spec) {
    return spec.type == DType::kBF16 ? 2 : 4;
  }

  LatentCacheSpec spec_;
  Buffer buffer_;
};

// Writes rows [begin, end) of the sequence.
void WriteLatent(CpuLatentCache& cache, const SequenceRows& sequence, Tensor latent, Tensor key,
                 int64_t begin, int64_t end);

// The latent rows of one page's first `tokens` tokens in float32, out [tokens, latent].
void ReadLatent(CpuLatentCache& cache, int64_t block, int64_t tokens, Tensor out);

// Queries of rows [row_begin, row_begin + rows) of a sequence for heads [head, head + heads).
// REQUIRES: rows * heads <= kTileQueries.
struct LatentItem {
  const SequenceRows* sequence = nullptr;
  int64_t row_begin = 0;
  int64_t rows = 0;
  int64_t head = 0;
  int64_t heads = 0;
};

// Scratch floats of one thread.
int64_t LatentScratchFloats(const LatentAttentionParams& params);

// The whole way of one item, absorbed.
void AttendAbsorbed(CpuLatentCache& cache, const LatentAttentionParams& params,
                    const LatentItem& item, Tensor q, Tensor out, float* scratch);

// Running results of plain attention, from page to page, for the rows of one sequence.
struct PlainRunning {
  float* most = nullptr;  // [rows, heads]
  float* sum = nullptr;   // [rows, heads]
  float* acc = nullptr;   // [rows, heads, Padded16(value_dim)]
};

// One page of keys and values: `expanded` [tokens, heads * (nope + value_dim)], 16 floats readable
// behind its end.
struct ExpandedPage {
  int64_t block = 0;           // in the cache
  int64_t first_position = 0;  // of its first token
  int64_t tokens = 0;
  const float* expanded = nullptr;
  int64_t stride = 0;
};

void AttendExpanded(CpuLatentCache& cache, const LatentAttentionParams& params,
                    const LatentItem& item, const ExpandedPage& page, Tensor q,
                    const PlainRunning& running, float* scratch);

}  // namespace penstock::kernels
