#include "schedule/schedule.h"

#include <algorithm>

namespace penstock::schedule {

int64_t Schedule::CountActions() const {
  int64_t count = 0;
  for (const auto& program : ranks) {
    count += std::count_if(program.begin(), program.end(),
                           [](const Action& action) { return action.kind != OpKind::kIdle; });
  }
  return count;
}

bool operator==(const Schedule& a, const Schedule& b) {
  return a.placement == b.placement && SameProgram(a, b) && a.steps == b.steps &&
         a.lowered == b.lowered && a.ring == b.ring && a.edges == b.edges;
}

bool SameProgram(const Schedule& a, const Schedule& b) {
  const bool same_shape =
      int64_t{a.micro_batches} * a.steps == int64_t{b.micro_batches} * b.steps &&
      a.slices == b.slices && a.forward_only == b.forward_only && a.num_ranks() == b.num_ranks() &&
      a.num_stages() == b.num_stages();
  if (!same_shape)
    return false;
  for (const int micro_batch : {0, std::min(a.direction_split(), a.micro_batches - 1)}) {
    for (int s = 0; s < a.num_stages(); ++s) {
      if (a.RankOf(StageId(s), MicroBatchId(micro_batch)) !=
          b.RankOf(StageId(s), MicroBatchId(micro_batch)))
        return false;
    }
  }
  return a.ranks == b.ranks;
}

int64_t LongGradientBytes(const Schedule& schedule, StageId boundary) {
  int64_t bytes = 0;
  for (const Edge& edge : schedule.edges) {
    if (edge.kind == EdgeKind::kValue && edge.from <= boundary && !edge.to.empty() &&
        boundary < edge.to.back()) {
      bytes += edge.bytes;
    }
  }
  return bytes;
}

}  // namespace penstock::schedule
