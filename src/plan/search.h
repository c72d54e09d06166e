// The search: every layout of at most N devices, priced by closed forms, pruned only where a bound
// proves that nothing better is lost; the best training plans are then simulated.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plan/context.h"

namespace penstock::plan {

struct SearchOptions {
  int64_t devices = 8;  // at most
  Fixed fixed;
  int top = 10;          // plans that are kept
  bool prune = true;     // off: tests show that pruning loses nothing
  bool simulate = true;  // training: the best plans' schedules
  // What cannot be the first is skipped unpriced: of the rest nothing is promised, and there is no
  // Pareto set and no rejection.
  bool only_best = false;
  size_t keep_rejected = 40;
};

struct SearchResult {
  std::vector<Plan> plans;         // best first, one per (dp, tp, pp, ep, cp)
  std::vector<Plan> pareto;        // of latency, throughput, cost and memory; among all that fit
  std::vector<Rejected> rejected;  // nearest first
  std::optional<Rejected> nearest_without;  // stages, of all that were rejected with figures
  int64_t evaluated = 0;                    // by closed form; pruned ones not counted
  int64_t pruned = 0;
  double seconds_s = 0;
  int64_t simulated = 0;
  double simulate_s = 0;
};

// Errors: kInvalidArgument (a fixed value that no layout can have).
Result<SearchResult> Search(const Context& context, const SearchOptions& options);

// The order of plans: more tokens/s; within 2 % without pipelining first, then fewer devices.
// Sorts so that the first is the best by that rule.
void SortPlans(std::vector<Plan>& plans);

}  // namespace penstock::plan
