// Weight gradients go where they cost least: nothing waits for a W but the memory it holds.

#pragma once

#include "base/result.h"
#include "cost/cost_model.h"
#include "schedule/schedule.h"
#include "sim/limit.h"

namespace penstock::sim {

struct PlacementOfWeights {
  schedule::Schedule schedule;
  double makespan_s = 0;
  bool changed = false;
};

// The same schedule with its W's (apart from their I's) in other places: in gaps where a rank waits
// for its next input, when the limit leaves no room for the next F, and after everything else. The
// order of all other actions and, per stage, of the W's stays. Several thresholds of "a gap is
// large enough for this W" are tried and the fastest kept; the given order itself is one of them,
// so the result is never slower. A changed order keeps to `limit`; without one no rank holds more,
// in activations and in bytes, than the fullest rank of the given order. Schedules that have
// nothing to place (no W), are lowered or have steps unrolled come back unchanged. Errors: as
// Simulate. O(actions) per threshold.
Result<PlacementOfWeights> PlaceWeights(const schedule::Schedule& schedule,
                                        const cost::CostModel& costs,
                                        const ActivationLimit& limit = {});

}  // namespace penstock::sim
