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
  std::optional<trace::Timeline> timeline;  // of the simulated step in the middle
};

// What one step took on one rank; what came before its first action and after its last belongs to
// it.
struct MeasuredStep {
  double begin_s = 0;
  double end_s = 0;
  trace::RankTimeline timeline;
};

// `steps[k][r]`: step k on rank r of a replica. Each step is simulated over and over with what each
// of its actions took (waits follow from the schedule, never from the measurement), and the medians
// over the steps are the plan. Not medians of actions: an action that takes longer than usual makes
// its neighbours wait, one that is as much shorter doesn't make up for it. Messages take as long as
// receivers that were there already have waited for them, the median per pair of ranks; sums of
// gradients over ranks the time of the rank that came last. `barrier`: the optimizer starts when
// all ranks know the norm. Errors: kInvalidArgument (slices that are not the schedule's actions, no
// step); those of the simulation.
Result<PlannedStep> PlanStep(const schedule::Schedule& schedule,
                             const std::vector<std::vector<MeasuredStep>>& steps, bool barrier);

}  // namespace penstock::train
