// The order of (chunk, micro-batch) that interleaved schedules share: groups of micro-batches go
// through one chunk after another.

#pragma once

#include <vector>

namespace penstock::schedule {

struct ChunkStep {
  int chunk;
  int micro_batch;
};

// Sizes of the groups: p, p, ..., the last one with what is left: p to 2p-1, or all m where m < p.
// A group of fewer than p would leave ranks waiting for its turn round the loop (Megatron-LM
// forbids such numbers, PyTorch those that do not divide).
std::vector<int> GroupSizes(int ranks, int micro_batches);

// All (chunk, micro-batch) of a rank in forward order; the backward order is the same with chunk
// v-1-c in place of c.
std::vector<ChunkStep> ForwardOrder(int ranks, int micro_batches, int chunks);

}  // namespace penstock::schedule
