#include "kernels/cpu/attention.h"

#include <algorithm>

namespace penstock::kernels {
namespace {

// Below this many multiplications one thread does it all.
constexpr int64_t kSerialWork = 1 << 15;

int64_t FirstKey(const AttentionParams& params, int64_t position) {
  return params.window > 0 ? std::max<int64_t>(0, position - params.window + 1) : 0;
}

// Calls visit(item, cost) for every item in a fixed order.
template <class Visit>
void ForEachItem(const AttentionParams& params, std::span<const SequenceRows> sequences,
                 int64_t heads_per_item, const Visit& visit) {
  const int64_t group = params.heads / params.kv_heads;
  const int64_t tile_rows = std::max<int64_t>(1, kTileQueries / heads_per_item);
  for (const SequenceRows& sequence : sequences) {
    for (int64_t kv_head = 0; kv_head < params.kv_heads; ++kv_head) {
      for (int64_t first = 0; first < group; first += heads_per_item) {
        const int64_t heads = std::min(heads_per_item, group - first);
        for (int64_t row = 0; row < sequence.rows; row += tile_rows) {
          AttentionItem item;
          item.sequence = &sequence;
          item.row_begin = row;
          item.rows = std::min(tile_rows, sequence.rows - row);
          item.kv_head = kv_head;
          item.head = kv_head * group + first;
          item.heads = heads;
          const int64_t last = sequence.first_position + row + item.rows - 1;
          const int64_t keys = last + 1 - FirstKey(params, last - item.rows + 1);
          // A page costs something however few queries share it.
          visit(item, keys * (item.rows * heads + 4));
        }
      }
    }
  }
}

}  // namespace

int64_t CpuKvCache::Bytes(const KvCacheSpec& spec) {
  const CpuKvCache shape(spec, Buffer());
  return spec.blocks * spec.kv_heads * shape.page_elements() * shape.element_bytes();
}

void Attend(CpuKvCache& cache, const AttentionParams& params,
            std::span<const SequenceRows> sequences, Tensor q, Tensor k, Tensor v, Tensor out,
            float* workspace, ThreadPool& pool) {
  int64_t rows = 0;
  for (const SequenceRows& sequence : sequences) {
    rows += sequence.rows;
  }
  const bool serial_write = rows * (k.columns() + v.columns()) < kSerialWork;
  for (const SequenceRows& sequence : sequences) {
    pool.Split(sequence.rows, serial_write, [&](int64_t begin, int64_t end) {
      WriteKeysValues(cache, sequence, k, v, begin, end);
    });
  }

  // Heads that share keys go together, unless that leaves threads without work.
  const int64_t group = params.heads / params.kv_heads;
  int64_t heads_per_item = std::min(group, kTileQueries);
  int64_t items = 0;
  int64_t cost = 0;
  const auto count = [&](const AttentionItem& /*item*/, int64_t item_cost) {
    ++items;
    cost += item_cost;
  };
  ForEachItem(params, sequences, heads_per_item, count);
  if (items % pool.threads() != 0 && items < 4 * pool.threads() && rows < 4) {
    heads_per_item = 1;
    items = 0;
    cost = 0;
    ForEachItem(params, sequences, heads_per_item, count);
  }

  const int64_t scratch = AttentionScratchFloats(params);
  const bool serial = cost * (params.head_dim + params.value_dim) < kSerialWork || items == 1;
  const int64_t shares = serial ? 1 : pool.threads();
  // Thread t takes the items whose middle lies in its share of the cost.
  const auto share = [&](int thread) {
    int64_t before = 0;
    ForEachItem(params, sequences, heads_per_item,
                [&](const AttentionItem& item, int64_t item_cost) {
                  const int64_t middle = before + item_cost / 2;
                  before += item_cost;
                  if (std::min(shares - 1, middle * shares / cost) == thread) {
                    AttendItem(cache, params, item, q, out, workspace + thread * scratch);
                  }
                });
  };
  if (serial) {
    share(0);
  } else {
    pool.Run(share);
  }
}

}  // namespace penstock::kernels
