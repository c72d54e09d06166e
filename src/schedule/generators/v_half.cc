// V-Half (Qi et al. 2024, arXiv 2405.15362): half the activations of 1F1B. The building block's
// slots are those of the paper's table for controllable memory; where they collide modulo 6 (p
// even) the backward starts 3 slots later. Peak activations at most (p+2)/2, rounded down; idle
// about p/2m of the work.

#include "schedule/generators/building_block.h"
#include "schedule/generators/generators.h"

namespace penstock::schedule {

Result<Schedule> MakeVHalf(const GeneratorOptions& options) {
  const int p = options.ranks;
  Schedule schedule = StartSchedule("v-half", options, Placement::V(p));
  const int shift = p % 2 == 0 ? 3 : 0;
  for (int r = 0; r < p; ++r) {
    WriteVBlocks(schedule, r, 2 * r, 3 * p - r - 2, 3 * p + 2 * r - 1 + shift,
                 6 * p - r - 2 + shift);
  }
  return schedule;
}

}  // namespace penstock::schedule
