// Searches for a better order under given costs and a memory limit.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "cost/cost_model.h"
#include "schedule/schedule.h"
#include "sim/limit.h"
#include "sim/simulate.h"

namespace penstock::sim {

struct OptimizeOptions {
  int ranks = 1;
  int micro_batches = 1;
  int chunks = 0;  // v; 0: every v that a candidate has by default
  ActivationLimit activation_limit;
  bool period = false;       // minimise the time per step back to back instead of the makespan
  int evaluations = 200000;  // moves of the local search from each start; fewer for large steps
  uint64_t seed = 1;
};

struct Optimized {
  schedule::Schedule schedule;  // compute-only, one copy of the weights
  SimResult result;
  double gap = 0;      // time over its lower bound, minus 1
  std::string start;   // the candidate it came from: "zb-v with W placed", "list (v, deep first)"
  int candidates = 0;  // legal and within the limit
  int64_t simulations = 0;
};

// Candidates: every generator with one copy of the weights and a backward pass, as it is and with
// its W's placed by cost; list schedules over the loop and V placements with several choices of
// what to prefer. The best few are improved by moving single actions: a move is kept when the time
// does not rise, or with a chance that falls as the search goes on (simulated annealing). Stops at
// the lower bound. Deterministic: depends on the options alone, not on the machine. Errors:
// kInvalidArgument (nothing fits the limit, with the least that would do), those of costs.
Result<Optimized> Optimize(const cost::CostSource& costs, const OptimizeOptions& options);

}  // namespace penstock::sim
