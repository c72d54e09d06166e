// The schedule that serving runs: one lap of the decode ring, lowered and proven.

#pragma once

#include "base/result.h"
#include "schedule/schedule.h"

namespace penstock::serve {

// One stage per rank, `groups` micro-batches per lap. Errors: kInvalidArgument (numbers out of
// range), kInvalidSchedule (the proof fails).
Result<schedule::Schedule> ServingSchedule(int32_t stages, int32_t groups);

}  // namespace penstock::serve
