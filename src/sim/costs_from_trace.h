// Costs as a run measured them, to simulate and plan with.

#pragma once

#include "base/result.h"
#include "cost/cost_model.h"
#include "trace/timeline.h"

namespace penstock::sim {

// Per stage the median duration of its F, I, W (B in halves where it was not split) and R. Measured
// ones include what their rank does for them before and after that is no wait for others: copying,
// sending, deciding on the next step. Per pair of ranks that exchanged messages the latency: where
// a receiver waited already, the median time from the end of sending to its going on (flight and
// waking up); otherwise from hand-over to arrival, that of the fastest tenth (others lay at a busy
// receiver's). Pairs without messages get that over all pairs. Bytes of messages as output_bytes
// and gradient_bytes. activation_bytes come from the counter "activations" where it is in bytes and
// a rank has one stage: the largest rise. Stages are 0 to the highest in the timeline. Errors:
// kInvalidArgument (no F of some stage).
Result<cost::CostModel> CostsFromTimeline(const trace::Timeline& timeline);

}  // namespace penstock::sim
