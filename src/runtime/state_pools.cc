#include "runtime/state_pools.h"

#include <algorithm>

namespace penstock::runtime {

StatePools PoolsOf(const model::Graph& graph) {
  StatePools pools;
  for (const model::LayerState& state : graph.states) {
    const bool slot = state.kind == model::LayerState::Kind::kRecurrent;
    const int64_t window = slot ? kSlotPool : state.window;
    const auto it = std::find(pools.windows.begin(), pools.windows.end(), window);
    pools.pool_of.push_back(static_cast<int32_t>(it - pools.windows.begin()));
    if (it == pools.windows.end()) {
      pools.windows.push_back(window);
    }
  }
  return pools;
}

Result<> SlotPositions::Advance(int32_t sequence, int64_t slot, int64_t first, int64_t rows) {
  if (slot < 0 || slot >= std::ssize(next_)) {
    return MakeError(ErrorCode::kInternal,
                     "[runtime.stage] sequence {} has slot {}, the stage was made for {}", sequence,
                     slot, next_.size());
  }
  int64_t& next = next_[static_cast<size_t>(slot)];
  if (first != 0 && first != next) {
    return MakeError(ErrorCode::kInternal,
                     "[runtime.stage] sequence {} goes on at position {}, its states of fixed size "
                     "are at {}: wanted that, or 0 to begin anew; they cannot be taken back",
                     sequence, first, next);
  }
  next = first + rows;
  return {};
}

int64_t BlocksPerSequence(int64_t window, int64_t tokens, int64_t step_rows) {
  if (window == kSlotPool) {
    return 1;
  }
  const int64_t all = (tokens + kBlockTokens - 1) / kBlockTokens;
  if (window == 0) {
    return all;
  }
  // The oldest row of a step still sees `window` - 1 positions before it; both ends may fall inside
  // a block.
  return std::min(all, (window + step_rows + kBlockTokens - 2) / kBlockTokens + 1);
}

}  // namespace penstock::runtime
