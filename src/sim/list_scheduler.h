// Makes an order from scratch: at every moment each idle rank takes the most useful action that is
// ready. One knob per choice that has no best answer; a search tries the combinations.

#pragma once

#include <optional>
#include <vector>

#include "cost/cost_model.h"
#include "schedule/placement.h"
#include "schedule/schedule.h"

namespace penstock::sim {

struct ListOptions {
  int micro_batches = 1;
  std::vector<int64_t> limit;  // most saved (stage, micro-batch) pairs per rank, at least v
  // Backwards are taken before forwards. With `deep_forward` later chunks go first among forwards,
  // with `deep_backward` among backwards.
  bool deep_forward = true;
  bool deep_backward = true;
  // A W runs before an F that is ready, too (less memory); else only when nothing else is ready or
  // the limit leaves no room.
  bool eager_weights = false;
  // Of chunk 0, a rank runs at most this many forwards ahead of its backwards: base + slope *
  // (ranks after it). Large: only the limit counts.
  int ahead_base = 1 << 20;
  int ahead_slope = 0;
};

// A compute-only schedule with every backward as I and W, complete and legal. Nothing when the
// limit can't hold even one micro-batch. Deterministic. O(actions log ranks). REQUIRES: one copy of
// the weights.
std::optional<schedule::Schedule> ListSchedule(const schedule::Placement& placement,
                                               const cost::CostModel& costs,
                                               const ListOptions& options);

}  // namespace penstock::sim
