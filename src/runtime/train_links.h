// Messages between ranks of a training pipeline: which values go over which lane.

#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <tuple>
#include <vector>

#include "base/result.h"
#include "comm/channel.h"
#include "model/cut.h"
#include "model/graph.h"
#include "runtime/train_rank.h"
#include "schedule/schedule.h"

namespace penstock::runtime {

// One edge and direction between two stages on one copy of the weights.
struct TrainLink {
  comm::Lane lane;              // with channel ranks of replica 0
  std::vector<ValueId> values;  // in the order of the message
  int64_t max_bytes = 0;        // of one message
};

class TrainLinks {
 public:
  // From the SENDs of all ranks of these schedules (null: none), which every rank sees alike.
  // Errors: kUnsupported (gradients of single values sent apart from the chain's).
  static Result<TrainLinks> Create(const TrainSpec& spec, const model::CutSets& cuts);

  // Of a SEND or RECV. REQUIRES: it is one of the schedules'.
  const TrainLink& Find(const schedule::Schedule& schedule, const schedule::Action& action) const;

  const std::vector<TrainLink>& links() const { return links_; }

  comm::LaneOptions Options(const TrainLink& link) const { return {link.max_bytes, credits_}; }

  // Bytes of message buffers at one rank of the replica.
  int64_t BufferBytes(int32_t rank, bool across_processes) const;

 private:
  // forward, value, from, to, copy of the weights
  using Key = std::tuple<bool, uint16_t, int32_t, int32_t, int32_t>;

  static Key KeyOf(const schedule::Schedule& schedule, const schedule::Action& action);

  std::map<Key, size_t> index_;
  std::vector<TrainLink> links_;
  int32_t credits_ = 1;
};

// Rows of slice `slice` of a micro-batch of `rows`: [SliceBegin(s), SliceBegin(s + 1)).
inline int64_t SliceBegin(int64_t rows, int32_t slice, int32_t slices) {
  return rows * slice / slices;
}

// Rows of the largest slice.
inline int64_t LargestSlice(int64_t rows, int32_t slices) {
  return (rows + slices - 1) / slices;
}

}  // namespace penstock::runtime
