#include "schedule/generators/building_block.h"

#include <algorithm>
#include <array>
#include <utility>

namespace penstock::schedule {
namespace {

constexpr int kPeriod = 6;

struct Slot {
  int at;  // slot of micro-batch 0
  OpKind kind;
  int stage;
};

}  // namespace

void WriteBlocks(Schedule& schedule, int rank, const BuildingBlock& block) {
  const int a = rank;
  const int b = 2 * schedule.num_ranks() - 1 - rank;
  std::array<Slot, kPeriod> slots = {Slot{block.forward_a, OpKind::kForward, a},
                                     Slot{block.forward_b, OpKind::kForward, b},
                                     Slot{block.input_b, OpKind::kBackwardInput, b},
                                     Slot{block.input_a, OpKind::kBackwardInput, a},
                                     Slot{-1, OpKind::kBackwardWeight, b},
                                     Slot{-1, OpKind::kBackwardWeight, a}};
  std::array<bool, kPeriod> taken = {};
  for (size_t i = 0; i < 4; ++i)
    taken[static_cast<size_t>(slots[i].at % kPeriod)] = true;
  for (size_t w = 4; w < kPeriod; ++w) {
    int at = slots[w - 2].at + 1;
    while (taken[static_cast<size_t>(at % kPeriod)])
      ++at;
    taken[static_cast<size_t>(at % kPeriod)] = true;
    slots[w].at = at;
  }
  // Slots are distinct modulo the period, so that every slot of time holds at most one action of
  // one micro-batch.
  std::sort(slots.begin(), slots.end(),
            [](const Slot& x, const Slot& y) { return x.at % kPeriod < y.at % kPeriod; });
  int last_block = 0;
  for (const Slot& slot : slots)
    last_block = std::max(last_block, slot.at / kPeriod);
  auto& program = schedule.ranks[static_cast<size_t>(rank)];
  for (int64_t block_number = 0; block_number < int64_t{schedule.micro_batches} + last_block;
       ++block_number) {
    for (const Slot& slot : slots) {
      const int64_t micro_batch = block_number - slot.at / kPeriod;
      if (micro_batch >= 0 && micro_batch < schedule.micro_batches) {
        program.push_back(MakeAction(slot.kind, StageId(slot.stage),
                                     MicroBatchId(static_cast<int32_t>(micro_batch))));
      }
    }
  }
}

}  // namespace penstock::schedule
