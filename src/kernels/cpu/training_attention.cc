#include "kernels/cpu/training_attention.h"

#include <algorithm>

#include "kernels/cpu/training_device.h"
#include "kernels/cpu/training_ops.h"

namespace penstock::kernels {
namespace {

constexpr int64_t Padded(int64_t floats) {
  return (floats + 15) / 16 * 16;
}

int64_t BlocksOf(int64_t keys) {
  return (keys + kAttentionBlock - 1) / kAttentionBlock;
}

int64_t MostKeys(std::span<const Segment> segments) {
  int64_t keys = 0;
  for (const Segment& segment : segments) {
    keys = std::max(keys, segment.keys_before + segment.rows);
  }
  return keys;
}

void CheckShapes(const AttentionParams& params, std::span<const Segment> segments, Tensor q,
                 Tensor k, Tensor v) {
  PENSTOCK_CHECK(params.kv_heads > 0 && params.heads % params.kv_heads == 0,
                 "heads share keys evenly");
  PENSTOCK_CHECK(q.columns() == params.heads * params.head_dim &&
                     k.columns() == params.kv_heads * params.head_dim &&
                     v.columns() == params.kv_heads * params.value_dim,
                 "columns are heads");
  for (const Segment& segment : segments) {
    PENSTOCK_CHECK(segment.first_row >= 0 && segment.first_row + segment.rows <= q.rows(),
                   "a segment's rows lie in q");
    const int64_t keys = segment.keys_before + segment.rows;
    PENSTOCK_CHECK(segment.first_key >= 0 && segment.keys_before >= 0 &&
                       segment.first_key + keys <= k.rows() && k.rows() == v.rows(),
                   "a segment's keys lie in k and v");
  }
}

// Calls visit(block, cost) for every block of queries, in a fixed order.
template <class Visit>
void ForEachBlock(const AttentionParams& params, std::span<const Segment> segments,
                  const Visit& visit) {
  for (size_t s = 0; s < segments.size(); ++s) {
    for (int64_t head = 0; head < params.heads; ++head) {
      for (int64_t row = 0; row < segments[s].rows; row += kAttentionBlock) {
        const int64_t rows = std::min(kAttentionBlock, segments[s].rows - row);
        const KeyBlocks blocks = VisibleBlocks(params, segments[s], row, rows);
        visit(QueryBlock{static_cast<int64_t>(s), head, row, rows},
              (blocks.end - blocks.begin) * (rows + 4));
      }
    }
  }
}

}  // namespace

KeyBlocks VisibleBlocks(const AttentionParams& params, const Segment& segment, int64_t row,
                        int64_t rows) {
  const int64_t first = segment.keys_before + row;
  const int64_t begin = params.window > 0 ? std::max<int64_t>(0, first - params.window + 1) : 0;
  return {begin / kAttentionBlock, (first + rows - 1) / kAttentionBlock + 1};
}

AttentionScratch::AttentionScratch(const AttentionParams& params, int64_t keys, float* memory)
    : blocks_(BlocksOf(keys)) {
  const auto take = [&memory](int64_t floats) {
    float* at = memory;
    memory += Padded(floats);
    return at;
  };
  const int64_t padded = blocks_ * kAttentionBlock;
  keys_ = take(padded * params.head_dim);
  values_ = take(padded * params.value_dim);
  dk_ = take(padded * params.head_dim);
  dv_ = take(padded * params.value_dim);
  scores_ = take(kAttentionBlock * kAttentionBlock);
  slopes_ = take(kAttentionBlock * kAttentionBlock);
  sums_ = take(kAttentionBlock * Padded(params.value_dim));
  packed_ = reinterpret_cast<int64_t*>(take(2 * blocks_));
  Forget();
}

int64_t AttentionScratch::Floats(const AttentionParams& params, int64_t keys) {
  const int64_t padded = BlocksOf(keys) * kAttentionBlock;
  return 2 * (Padded(padded * params.head_dim) + Padded(padded * params.value_dim)) +
         2 * kAttentionBlock * kAttentionBlock + kAttentionBlock * Padded(params.value_dim) +
         Padded(2 * BlocksOf(keys));
}

bool AttentionScratch::MarkPacked(int64_t segment, int64_t kv_head, int64_t block) {
  const int64_t owner = segment << 32 | kv_head;
  const bool packed = packed_[block] == owner;
  packed_[block] = owner;
  return packed;
}

void AttentionScratch::Forget() {
  std::fill_n(packed_, blocks_, int64_t{-1});
}

int64_t CpuTraining::TrainAttentionWorkspaceBytes(const AttentionParams& params, int64_t /*rows*/,
                                                  int64_t keys) const {
  return pool_.threads() * AttentionScratch::Floats(params, keys) * 4;
}

void CpuTraining::AttentionForward(const AttentionParams& params, std::span<const Segment> segments,
                                   Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse,
                                   Tensor workspace) {
  CheckShapes(params, segments, q, k, v);
  const int64_t keys = MostKeys(segments);
  PENSTOCK_CHECK(workspace.bytes() >= TrainAttentionWorkspaceBytes(params, q.rows(), keys),
                 "the workspace is large enough");
  const AttentionTensors tensors{q, k, v, out, lse, {}, {}};
  int64_t cost = 0;
  ForEachBlock(params, segments, [&](const QueryBlock& /*block*/, int64_t c) { cost += c; });
  const int64_t work = cost * kAttentionBlock * (params.head_dim + params.value_dim);
  const int64_t shares = work < 16 * CpuDevice::kSerialElements ? 1 : pool_.threads();
  auto* memory = reinterpret_cast<float*>(workspace.Bytes().data());
  // Thread t takes the blocks whose middle lies in its share of the cost.
  const auto share = [&](int thread) {
    AttentionScratch scratch(params, keys,
                             memory + thread * AttentionScratch::Floats(params, keys));
    int64_t before = 0;
    ForEachBlock(params, segments, [&](const QueryBlock& block, int64_t c) {
      const int64_t middle = before + c / 2;
      before += c;
      if (std::min(shares - 1, middle * shares / cost) == thread) {
        AttendBlockForward(params, segments[static_cast<size_t>(block.segment)], block, tensors,
                           scratch);
      }
    });
  };
  if (shares == 1) {
    share(0);
  } else {
    pool_.Run(share);
  }
}

void CpuTraining::AttentionBackward(const AttentionParams& params,
                                    std::span<const Segment> segments, Tensor q, Tensor k, Tensor v,
                                    Tensor out, Tensor lse, Tensor dout, Tensor dq, Tensor dk,
                                    Tensor dv, Tensor workspace) {
  CheckShapes(params, segments, q, k, v);
  const int64_t keys = MostKeys(segments);
  PENSTOCK_CHECK(workspace.bytes() >= TrainAttentionWorkspaceBytes(params, q.rows(), keys),
                 "the workspace is large enough");
  const AttentionTensors tensors{q, k, v, out, lse, dout, dq};
  auto* memory = reinterpret_cast<float*>(workspace.Bytes().data());
  const int64_t floats = AttentionScratch::Floats(params, keys);
  const int64_t group = params.heads / params.kv_heads;
  const int64_t threads = pool_.threads();
  const auto items = static_cast<int64_t>(segments.size()) * params.heads;
  // A round is a head for each thread; then its gradients are added by ascending heads.
  for (int64_t round = 0; round < items; round += threads) {
    const int64_t count = std::min(threads, items - round);
    const auto head = [&](int64_t thread) {
      AttentionScratch scratch(params, keys, memory + thread * floats);
      const int64_t item = round + thread;
      AttendHeadBackward(params, segments[static_cast<size_t>(item / params.heads)],
                         item % params.heads, tensors, scratch);
    };
    pool_.Split(count, false, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        head(i);
      }
    });
    for (int64_t i = 0; i < count; ++i) {
      const int64_t item = round + i;
      const Segment& segment = segments[static_cast<size_t>(item / params.heads)];
      const int64_t kv_head = item % params.heads / group;
      const int64_t seen = segment.keys_before + segment.rows;
      const AttentionScratch scratch(params, keys, memory + i * floats);
      const Tensor part_k(scratch.dk(), DType::kF32, seen, params.head_dim);
      const Tensor part_v(scratch.dv(), DType::kF32, seen, params.value_dim);
      ScaleInto(
          part_k, 1.0F, true,
          dk.Rows(segment.first_key, seen).Columns(kv_head * params.head_dim, params.head_dim));
      ScaleInto(
          part_v, 1.0F, true,
          dv.Rows(segment.first_key, seen).Columns(kv_head * params.value_dim, params.value_dim));
    }
  }
}

}  // namespace penstock::kernels
