// The links of a cost model as the routes of long values see them.

#pragma once

#include "cost/cost_model.h"
#include "schedule/passes.h"

namespace penstock::cost {

// Seconds of a message over the links of `model`, for schedule::LongRoute::kCheapest.
schedule::LinkSeconds LinkSecondsOf(const CostModel& model);

}  // namespace penstock::cost
