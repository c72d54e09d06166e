// Greedy list scheduling for schedules that their papers state as a picture or a rule, not as a
// program.

#pragma once

#include "schedule/schedule.h"

namespace penstock::schedule {

struct ListRules {
  int in_flight = 1;  // micro-batches per direction between the start of their first F and the end
                      // of their last B
};

// Fills `schedule.ranks` by running it: a free rank takes the backward that is ready with the
// lowest micro-batch, else the ready forward that is deepest in the pipeline, else the first; a new
// micro-batch enters only while fewer than `in_flight` of its direction are. F takes 1 and B 2
// units. Legal by construction, with at most in_flight * v saved stages per direction on a rank.
// REQUIRES: header and placement filled in, programs empty. Cost O(n log n) for n = S * m.
void FillGreedily(Schedule& schedule, const ListRules& rules);

}  // namespace penstock::schedule
