// What crosses between ranks per micro-batch, and what ranks hold of long values: for layers that
// read earlier blocks, skips and the like.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json_reader.h"
#include "base/result.h"
#include "cost/cost_model.h"
#include "schedule/schedule.h"

namespace penstock::sim {

struct Hop {
  int from_stage = 0;
  int to_stage = 0;
  int from_rank = 0;
  int to_rank = 0;
  std::vector<std::string> values;  // long ones, forward
  int64_t forward_bytes = 0;        // of one micro-batch, chain and long values
  int64_t backward_bytes = 0;
};

struct HopReport {
  // Ascending by (from_stage, to_stage), both forward; where there are two copies of the weights
  // first those of the first copy's micro-batches, then those of the second's.
  std::vector<Hop> hops;
  int64_t forward_bytes = 0;  // of one micro-batch over all hops
  int64_t backward_bytes = 0;
  int64_t peak_hop_forward_bytes = 0;
  int64_t peak_hop_backward_bytes = 0;
  // Per rank: most bytes of long values held at once (made or received, until their FREE), over the
  // program.
  std::vector<int64_t> peak_value_bytes;
};

// REQUIRES: a proven schedule. A compute-only one is measured as AddCommunication lowers it. Where
// a lowered one has no FREE actions, values are taken as released at the earliest legal action.
// Backward, the gradients of long values travel with the chain. Bytes are those of the schedule's
// edges and the costs' output_bytes and gradient_bytes. O(actions). Errors: those of
// AddCommunication and ReleaseValues.
Result<HopReport> MeasureHops(const schedule::Schedule& schedule, const cost::CostModel& costs);

// {"hops":[...],"forward_bytes",...}.
Json HopReportJson(const HopReport& report);

}  // namespace penstock::sim
