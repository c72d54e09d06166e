// V-shaped schedules that are stated as a building block: the slots at which one micro-batch runs,
// repeated every 6 slots.

#pragma once

#include "schedule/schedule.h"

namespace penstock::schedule {

// Slots of micro-batch 0 on one rank; micro-batch j runs 6j later. Stage a = r goes down, b =
// 2p-1-r comes back. REQUIRES: the four are distinct modulo 6.
struct BuildingBlock {
  int forward_a;
  int forward_b;
  int input_b;
  int input_a;
};

// Appends the program of `rank`: the blocks of all micro-batches in order of their slots, W of each
// stage in the two slots that are left over, the first free one after its I.
void WriteBlocks(Schedule& schedule, int rank, const BuildingBlock& block);

}  // namespace penstock::schedule
