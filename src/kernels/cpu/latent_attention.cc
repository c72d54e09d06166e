// Multi-head latent attention on the CPU: what is dealt to threads, and the workspace.

#include "kernels/cpu/latent_attention.h"

#include <algorithm>
#include <limits>

#include "kernels/cpu/cpu_device.h"

namespace penstock::kernels {
namespace {

// Heads that share a page when there are few rows: enough items for the threads, few passes over
// the cache.
constexpr int64_t kHeadsPerItem = 16;

// Pieces of the workspace of plain attention, in bytes from its start.
struct PlainWorkspace {
  int64_t latent = 0;    // [block_tokens, latent] float
  int64_t expanded = 0;  // [block_tokens, heads * (nope + value_dim)] float, and 16 more
  int64_t most = 0;
  int64_t sum = 0;
  int64_t acc = 0;
  int64_t linear = 0;
  int64_t bytes = 0;
};

PlainWorkspace Layout(const LatentAttentionParams& params, int64_t threads, int64_t rows,
                      int64_t linear_bytes) {
  PlainWorkspace w;
  const auto take = [&w](int64_t bytes) {
    const int64_t at = w.bytes;
    w.bytes += (bytes + 63) / 64 * 64;
    return at;
  };
  take(threads * LatentScratchFloats(params) * 4);  // at offset 0
  const int64_t width = params.heads * (params.nope + params.value_dim);
  w.latent = take(kMaxBlockTokens * params.latent * 4);
  w.expanded = take((kMaxBlockTokens * width + 16) * 4);
  w.most = take(rows * params.heads * 4);
  w.sum = take(rows * params.heads * 4);
  w.acc = take(rows * params.heads * Padded16(params.value_dim) * 4);
  w.linear = take(linear_bytes);
  return w;
}

// Calls visit(item) for every item of a sequence: `rows` x `heads` tiles.
template <class Visit>
void ForEachItem(const SequenceRows& sequence, int64_t heads, int64_t tile_rows, int64_t tile_heads,
                 const Visit& visit) {
  for (int64_t row = 0; row < sequence.rows; row += tile_rows) {
    for (int64_t head = 0; head < heads; head += tile_heads) {
      visit(LatentItem{&sequence, row, std::min(tile_rows, sequence.rows - row), head,
                       std::min(tile_heads, heads - head)});
    }
  }
}

}  // namespace

int64_t LatentScratchFloats(const LatentAttentionParams& params) {
  const int64_t rope = Padded16(params.rope);
  const int64_t absorbed = 2 * Padded16(params.latent) + rope;
  const int64_t plain = Padded16(params.nope) + rope + Padded16(params.value_dim);
  return kTileQueries * (std::max(absorbed, plain) + kMaxBlockTokens) + Padded16(params.nope);
}

Result<std::unique_ptr<LatentCache>> CpuDevice::CreateLatentCache(const LatentCacheSpec& spec,
                                                                  MemoryAccount& account) {
  PENSTOCK_CHECK(spec.type == DType::kBF16 || spec.type == DType::kF32, "latents are bf16 or f32");
  PENSTOCK_CHECK(spec.block_tokens >= 1 && spec.block_tokens <= kMaxBlockTokens,
                 "a block holds 1 to 256 tokens");
  PENSTOCK_TRY_ASSIGN(Buffer buffer,
                      Buffer::Allocate(account, MemoryCategory::kKv, CpuLatentCache::Bytes(spec)));
  return std::unique_ptr<LatentCache>(new CpuLatentCache(spec, std::move(buffer)));
}

int64_t CpuDevice::LatentCacheBytes(const LatentCacheSpec& spec) const {
  return CpuLatentCache::Bytes(spec);
}

int64_t CpuDevice::LatentAttentionWorkspaceBytes(const LatentAttentionParams& params,
                                                 WeightType type, int64_t rows) const {
  if (params.absorbed) {
    return pool_.threads() * LatentScratchFloats(params) * 4;
  }
  const int64_t width = params.heads * (params.nope + params.value_dim);
  const int64_t linear = LinearWorkspaceBytes(width, params.latent, type, kMaxBlockTokens);
  return Layout(params, pool_.threads(), rows, linear).bytes;
}

void CpuDevice::LatentAttention(LatentCache& cache, const LatentAttentionParams& params,
                                std::span<const SequenceRows> sequences, Tensor q, Tensor latent,
                                Tensor key, Tensor out, Tensor workspace) {
  auto& pages = static_cast<CpuLatentCache&>(cache);
  PENSTOCK_CHECK(params.latent == pages.spec().latent && params.rope == pages.spec().rope,
                 "the cache has the layer's widths");
  for (const SequenceRows& sequence : sequences) {
    const bool serial = sequence.rows * (params.latent + params.rope) < kSerialElements;
    pool_.Split(sequence.rows, serial, [&](int64_t begin, int64_t end) {
      WriteLatent(pages, sequence, latent, key, begin, end);
    });
  }
  if (params.absorbed) {
    AttendAbsorbedRows(pages, params, sequences, q, out, workspace);
  } else {
    AttendPlainRows(pages, params, sequences, q, out, workspace);
  }
}

void CpuDevice::AttendAbsorbedRows(CpuLatentCache& cache, const LatentAttentionParams& params,
                                   std::span<const SequenceRows> sequences, Tensor q, Tensor out,
                                   Tensor workspace) {
  PENSTOCK_CHECK(
      workspace.bytes() >= LatentAttentionWorkspaceBytes(params, WeightType::kF32, q.rows()),
      "the workspace is large enough");
  auto* scratch = reinterpret_cast<float*>(workspace.Bytes().data());
  const int64_t floats = LatentScratchFloats(params);
  // Item i goes to thread i mod threads: later rows see more, so neighbours cost about the same.
  pool_.Run([&](int thread) {
    int64_t number = 0;
    for (const SequenceRows& sequence : sequences) {
      const int64_t tile_rows = std::min(sequence.rows, kTileQueries);
      const int64_t tile_heads =
          std::clamp<int64_t>(kTileQueries / std::max<int64_t>(tile_rows, 1), 1, kHeadsPerItem);
      ForEachItem(sequence, params.heads, tile_rows, tile_heads, [&](const LatentItem& item) {
        if (number++ % pool_.threads() == thread) {
          AttendAbsorbed(cache, params, item, q, out, scratch + thread * floats);
        }
      });
    }
  });
}

void CpuDevice::AttendPlainRows(CpuLatentCache& cache, const LatentAttentionParams& params,
                                std::span<const SequenceRows> sequences, Tensor q, Tensor out,
                                Tensor workspace) {
  const int64_t width = params.heads * (params.nope + params.value_dim);
  const int64_t linear =
      LinearWorkspaceBytes(width, params.latent, params.expand->type(), kMaxBlockTokens);
  const PlainWorkspace at = Layout(params, pool_.threads(), q.rows(), linear);
  PENSTOCK_CHECK(workspace.bytes() >= at.bytes, "the workspace is large enough");
  std::byte* base = workspace.Bytes().data();
  auto* scratch = reinterpret_cast<float*>(base);
  auto* expanded = reinterpret_cast<float*>(base + at.expanded);
  const PlainRunning running{reinterpret_cast<float*>(base + at.most),
                             reinterpret_cast<float*>(base + at.sum),
                             reinterpret_cast<float*>(base + at.acc)};
  const int64_t value = Padded16(params.value_dim);
  const int64_t block_tokens = cache.spec().block_tokens;
  std::fill_n(expanded + kMaxBlockTokens * width, 16, 0.0F);
  for (const SequenceRows& sequence : sequences) {
    const int64_t queries = sequence.rows * params.heads;
    std::fill_n(running.most, queries, -std::numeric_limits<float>::infinity());
    std::fill_n(running.sum, queries, 0.0F);
    std::fill_n(running.acc, queries * value, 0.0F);
    const int64_t keys = sequence.first_position + sequence.rows;
    for (int64_t first = 0; first < keys; first += block_tokens) {
      const int32_t block = sequence.blocks[static_cast<size_t>(first / block_tokens)];
      PENSTOCK_CHECK(block >= 0 && block < cache.spec().blocks, "a block that is read exists");
      const int64_t tokens = std::min(block_tokens, keys - first);
      const Tensor rows(base + at.latent, DType::kF32, tokens, params.latent);
      ReadLatent(cache, block, tokens, rows);
      // At the end of the buffer, so that only its last row is read beyond.
      float* to = expanded + (kMaxBlockTokens - tokens) * width;
      Linear(*params.expand, rows, {}, Tensor(to, DType::kF32, tokens, width),
             Tensor(base + at.linear, DType::kU8, 1, linear));
      const ExpandedPage page{block, first, tokens, to, width};
      pool_.Run([&](int thread) {
        int64_t number = 0;
        ForEachItem(sequence, params.heads, kTileQueries, 1, [&](const LatentItem& item) {
          if (number++ % pool_.threads() == thread) {
            AttendExpanded(cache, params, item, page, q, running,
                           scratch + thread * LatentScratchFloats(params));
          }
        });
      });
    }
    for (int64_t r = 0; r < sequence.rows; ++r) {
      const std::span<float> row = out.Row<float>(sequence.first_row + r);
      for (int64_t h = 0; h < params.heads; ++h) {
        const int64_t i = r * params.heads + h;
        for (int64_t c = 0; c < params.value_dim; ++c) {
          row[static_cast<size_t>(h * params.value_dim + c)] =
              running.acc[i * value + c] / running.sum[i];
        }
      }
    }
  }
}

}  // namespace penstock::kernels
