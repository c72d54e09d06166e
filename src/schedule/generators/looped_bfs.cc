// Looped breadth-first pipeline (Lamy-Poirier 2023, arXiv 2211.05953): each rank's chunks in order,
// all micro-batches of one before the next; backward the chunks reversed. A chunk's weights are
// gathered once per direction, which suits sharded weights. Bubble (p-1)(F+B)/v, peak activations
// m. Backward runs the micro-batches in ascending order (PyTorch reverses them), so that gradients
// add up in one order.

#include "schedule/generators/generators.h"

namespace penstock::schedule {

Result<Schedule> MakeLoopedBfs(const GeneratorOptions& options) {
  auto schedule = MakeGpipe(options);
  if (schedule.ok())
    schedule.value().name = "looped-bfs";
  return schedule;
}

}  // namespace penstock::schedule
