// Chimera (Li and Hoefler 2021, arXiv 2107.06925): two 1F1B streams in opposite directions over two
// copies of the weights, half of the micro-batches each, so that each fills the other's bubble.
// Greedy list scheduling, backward first, with p/2 micro-batches of each direction in flight, which
// gives the paper's picture for m = p. Peak activations at most p.

#include "schedule/generators/generators.h"
#include "schedule/generators/list_scheduler.h"

namespace penstock::schedule {

Result<Schedule> MakeChimera(const GeneratorOptions& options) {
  Schedule schedule = StartSchedule("chimera", options, Placement::Mirrored(options.ranks));
  FillGreedily(schedule, {.in_flight = (options.ranks + 1) / 2});
  return schedule;
}

}  // namespace penstock::schedule
