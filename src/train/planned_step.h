// The step that a run expects: its schedule simulated with times that calibrating steps measured.

#pragma once

#include <optional>
#include <vector>

#include "base/result.h"
#include "schedule/schedule.h"
#include "trace/timeline.h"

namespace penstock::train {

struct PlannedStep {
  double step_s = 0;
  double bubble_ratio = 0;  // share of the ranks' time that no F, B, I, W, R or optimizer takes
  std::optional<trace::Timeline> timeline;  // of the simulated step
};

// `parts`: what `steps` equal steps took on each rank of a replica, one after the other. Costs are
// medians per stage and kind of action; sums of gradients over ranks and the optimizer, which
// starts when all ranks know the norm (`barrier`), are part of the step. Errors: those of the
// simulation.
Result<PlannedStep> PlanStep(const schedule::Schedule& schedule,
                             std::vector<trace::RankTimeline> parts, int steps, bool barrier);

}  // namespace penstock::train
