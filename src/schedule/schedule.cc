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
  return SameProgram(a, b) && a.steps == b.steps && a.lowered == b.lowered && a.ring == b.ring &&
         a.edges == b.edges;
}

bool SameProgram(const Schedule& a, const Schedule& b) {
  return a.micro_batches * a.steps == b.micro_batches * b.steps && a.slices == b.slices &&
         a.forward_only == b.forward_only && a.placement == b.placement && a.ranks == b.ranks;
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
