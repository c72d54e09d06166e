// Schedules stated as a building block: the slots at which one micro-batch runs, repeated with a
// fixed period. If the slots of a rank are distinct modulo the period, the repetition has no
// conflict; its program is the slots in order of time.

#pragma once

#include <vector>

#include "schedule/schedule.h"

namespace penstock::schedule {

// One action of the first micro-batch of a direction; micro-batch j of that direction runs j *
// period later.
struct BlockSlot {
  int at = 0;
  OpKind kind = OpKind::kForward;
  int stage = 0;
  int direction = 0;
};

// Appends the program of `rank` for all micro-batches. REQUIRES: the slots are distinct modulo
// `period`. Cost O(actions).
void WriteBlocks(Schedule& schedule, int rank, int period, std::vector<BlockSlot> slots);

// As WriteBlocks with period 6 for the V of two stages per rank, a = r and b = 2p-1-r; W takes the
// first slot after its I that is left over.
void WriteVBlocks(Schedule& schedule, int rank, int forward_a, int forward_b, int input_b,
                  int input_a);

// A building block without conflicts for any placement: F takes 1 slot and B 2, period 3 v (6 v
// with two directions). One micro-batch goes through all stages and back, each action at the
// earliest time that is free on its rank modulo the period, such that room for the backwards to
// come stays unbroken. Result per rank.
std::vector<std::vector<BlockSlot>> EarliestBlocks(const Placement& placement);
int EarliestBlocksPeriod(const Placement& placement);

}  // namespace penstock::schedule
