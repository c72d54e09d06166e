// Saved activations over time, as counters of a timeline.

#pragma once

#include <vector>

#include "schedule/schedule.h"
#include "trace/timeline.h"

namespace penstock::trace {

// Adds to every rank the counter "activations": in shares (saved (stage, micro-batch) pairs / v),
// or in bytes where `stage_bytes` (one per stage) is given. A share is taken at the start of F (of
// R where it is recomputed) and freed at the end of B or W; forward only, at the end of F. Within a
// pair, F counts before B frees. O(slices). REQUIRES: stages of the slices are the schedule's.
void AddActivationCounters(Timeline& timeline, const schedule::Schedule& schedule,
                           const std::vector<double>& stage_bytes = {});

}  // namespace penstock::trace
