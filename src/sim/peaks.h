// Saved activations of each rank over its program. Since a rank does one thing at a time, the peak
// depends on the order alone and no times are needed.

#pragma once

#include <cstdint>
#include <vector>

#include "cost/cost_model.h"
#include "schedule/schedule.h"

namespace penstock::sim {

struct Peak {
  int64_t count = 0;    // saved (stage, micro-batch, slice) triples at once
  double shares = 0;    // count / (v * slices)
  int64_t bytes = 0;    // by activation_bytes; 0: not known
  size_t position = 0;  // in the rank's program, where the count is first reached
};

// One per rank. An activation lives from the start of its F (of its R where the program has one for
// it) to the end of its B or W; the F's of an overlapped pair count before its B releases. In a
// forward-only schedule it lives for the F alone. O(actions).
// REQUIRES: indices in range, costs of every stage.
std::vector<Peak> ActivationPeaks(const schedule::Schedule& schedule, const cost::CostModel& costs);

}  // namespace penstock::sim
