// Greedy list scheduling for schedules that their papers state as a picture or a rule, not as a
// program.

#pragma once

#include "schedule/schedule.h"

namespace penstock::schedule {

// Fills `schedule.ranks` by running it: a free rank takes, of what is ready, the action that comes
// first in the steady pattern of EarliestBlocks; a new micro-batch enters only while fewer than
// `in_flight` of its direction are between their first F and their last B. F takes 1 and B 2 units.
// Legal by construction, with at most in_flight * v saved stages per direction on a rank. REQUIRES:
// header and placement filled in, programs empty. Cost O(n log n) for n = S * m.
void FillGreedily(Schedule& schedule, int in_flight);

}  // namespace penstock::schedule
