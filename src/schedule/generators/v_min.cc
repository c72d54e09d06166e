// V-Min (Qi et al. 2024, arXiv 2405.15362): the least activations that a V placement allows without
// idle slots at equal times, a third of 1F1B. Where the slots collide modulo 6 (p divisible by 3)
// the backward starts 2 slots later. Peak activations at most (p+4)/3, rounded down; the idle time
// grows with m where F, I and W take different times.

#include "schedule/generators/building_block.h"
#include "schedule/generators/generators.h"

namespace penstock::schedule {

Result<Schedule> MakeVMin(const GeneratorOptions& options) {
  const int p = options.ranks;
  Schedule schedule = StartSchedule("v-min", options, Placement::V(p));
  const int shift = p % 3 == 0 ? 2 : 0;
  for (int r = 0; r < p; ++r) {
    WriteVBlocks(schedule, r, r, 2 * p - r - 1, 2 * p + r + shift, 4 * p - r - 1 + shift);
  }
  return schedule;
}

}  // namespace penstock::schedule
