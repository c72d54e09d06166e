// Pools of state: attention layers that look equally far back share one set of pages, and layers
// with a state of fixed size share one set of slots. Block ids count per pool, over all stages.

#pragma once

#include <cstdint>
#include <vector>

#include "model/graph.h"

namespace penstock::runtime {

inline constexpr int64_t kBlockTokens = 32;

// In place of a window: one block per sequence (a slot) whatever its length.
inline constexpr int64_t kSlotPool = -1;

struct StatePools {
  std::vector<int64_t> windows;  // per pool; 0: all positions; or kSlotPool
  std::vector<int32_t> pool_of;  // per state of the graph
};

StatePools PoolsOf(const model::Graph& graph);

// Blocks that one sequence of up to `tokens` positions needs at once in a pool, when at most
// `step_rows` rows are added per step.
int64_t BlocksPerSequence(int64_t window, int64_t tokens, int64_t step_rows);

}  // namespace penstock::runtime
