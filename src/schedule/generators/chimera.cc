// Chimera (Li and Hoefler 2021, arXiv 2107.06925): two 1F1B streams in opposite directions over two
// copies of the weights, half of the micro-batches each, so that each fills the other's bubble. Up
// to about p micro-batches the order comes from list scheduling with all of them in flight, as in
// the paper's picture; for more, which the paper treats as such pictures in a row, from a steady
// pattern, which keeps the memory below p. Bubble about (p-2)/(2m+p-2) where F and B take the same
// time; peak activations at most p.

#include "schedule/generators/building_block.h"
#include "schedule/generators/generators.h"
#include "schedule/generators/list_scheduler.h"

namespace penstock::schedule {

Result<Schedule> MakeChimera(const GeneratorOptions& options) {
  const int p = options.ranks;
  Schedule schedule = StartSchedule("chimera", options, Placement::Mirrored(p));
  if (options.micro_batches <= p + p / 4) {
    FillGreedily(schedule, (p + 1) / 2);
    return schedule;
  }
  const auto slots = EarliestBlocks(schedule.placement);
  for (int r = 0; r < p; ++r) {
    WriteBlocks(schedule, r, EarliestBlocksPeriod(schedule.placement),
                slots[static_cast<size_t>(r)]);
  }
  return schedule;
}

}  // namespace penstock::schedule
