// Hanayo (Liu et al. 2023, arXiv 2308.15762): 1F1B on a wave: the V placement repeated, v chunks
// per rank in zig-zag, so that a micro-batch turns on a rank instead of travelling round. The paper
// gives pictures; here the order comes from list scheduling after a steady pattern, with at most 2p
// micro-batches in flight. Bubble falls with v, peak activations like interleaved 1F1B.

#include "schedule/generators/generators.h"
#include "schedule/generators/list_scheduler.h"

namespace penstock::schedule {

Result<Schedule> MakeHanayo(const GeneratorOptions& options) {
  Schedule schedule =
      StartSchedule("hanayo", options, Placement::Wave(options.ranks, options.chunks));
  FillGreedily(schedule, (options.chunks == 1 ? 1 : 2) * options.ranks);
  return schedule;
}

}  // namespace penstock::schedule
