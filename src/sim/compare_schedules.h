// All schedules side by side under the same costs, and which one to take.

#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "cost/cost_model.h"
#include "sim/limit.h"
#include "sim/simulate.h"

namespace penstock::sim {

struct CompareOptions {
  int ranks = 1;
  int micro_batches = 1;
  int chunks = 0;  // for generators that take any; 0: their defaults
  ActivationLimit activation_limit;
  bool barrier = false;
};

struct ScheduleRow {
  std::string name;
  int chunks = 1;
  int weight_copies = 1;  // 2: DualPipe, Chimera
  bool forward_only = false;
  SimResult result;
  double worst_peak = 0;  // of any rank, in shares; in bytes where the limit is
  bool fits = true;       // within the limit
  // With its W's where these costs want them; equal to `result` where there is nothing to place or
  // nothing to win.
  double placed_makespan_s = 0;
  double placed_period_s = 0;

  double gap() const {
    return result.lower_bound_s > 0 ? result.makespan_s / result.lower_bound_s - 1 : 0.0;
  }
};

struct SkippedSchedule {
  std::string name;
  std::string why;
};

struct ScheduleTable {
  std::vector<ScheduleRow> rows;  // in the order of the registry
  std::vector<SkippedSchedule> skipped;
  std::string advice;  // one sentence
};

// One row per generator. Errors: kInvalidArgument (numbers that no generator takes,
// costs that fit none).
Result<ScheduleTable> CompareSchedules(const cost::CostSource& costs,
                                       const CompareOptions& options);

// Which training schedule with one copy of the weights to take and why: the least time per step
// among those within the limit; those within 0.5 % of it count as equal, then less memory and fewer
// messages win.
std::string Advise(const std::vector<ScheduleRow>& rows, const CompareOptions& options);

}  // namespace penstock::sim
