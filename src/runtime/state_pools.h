// Pools of state: attention layers that look equally far back share one set of pages, and layers
// with a state of fixed size share one set of slots. Block ids count per pool, over all stages.

#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
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

// How far the sequence in each slot has come. A state of fixed size is what all positions so far
// left behind: it can be continued or begun anew, not taken back, so a step that would do that (a
// prefix used again, a rejected draft) is refused instead of computed from a wrong state.
class SlotPositions {
 public:
  explicit SlotPositions(int64_t slots = 0) : next_(static_cast<size_t>(slots), 0) {}

  // A slice of `rows` positions from `first` on. Errors: kInternal, naming the sequence (no such
  // slot; neither position 0 nor the next one).
  Result<> Advance(int32_t sequence, int64_t slot, int64_t first, int64_t rows);

 private:
  std::vector<int64_t> next_;
};

// Blocks that one sequence of up to `tokens` positions needs at once in a pool, when at most
// `step_rows` rows are added per step.
int64_t BlocksPerSequence(int64_t window, int64_t tokens, int64_t step_rows);

}  // namespace penstock::runtime
