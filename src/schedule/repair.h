// Makes a preferred order legal with as little change as possible.

#pragma once

#include "base/result.h"
#include "schedule/schedule.h"

namespace penstock::schedule {

// Runs the compute actions by data flow, each rank in its order; where all ranks wait, the first
// rank that has a ready action further on pulls it forward. A schedule that is legal already comes
// back unchanged. REQUIRES: compute-only, indices in range, every (stage, micro-batch, slice)
// complete. Errors: kInvalidSchedule when no order can help (something is missing). Cost O(actions)
// plus O(actions) per pull.
Result<Schedule> RepairOrder(Schedule schedule);

}  // namespace penstock::schedule
