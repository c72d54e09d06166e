#include "schedule/generators/building_block.h"

#include <algorithm>

namespace penstock::schedule {
namespace {

constexpr int kVPeriod = 6;
constexpr int kForwardSlots = 1;
constexpr int kBackwardSlots = 2;

// The slots of one rank modulo the period, with room kept for the backwards that are still to be
// placed.
class Timetable {
 public:
  Timetable(int period, int backwards)
      : taken_(static_cast<size_t>(period), false), backwards_left_(backwards) {}

  // Takes `length` slots in a row from the first possible time at or after `earliest`; that time.
  // One exists: a backward fits at the start of any run of two; a forward at the end of an odd run
  // or where runs hold more than the backwards need.
  int Take(int earliest, int length) {
    for (int at = earliest;; ++at) {
      if (!Free(at, length))
        continue;
      Mark(at, length, true);
      if (length == kBackwardSlots)
        --backwards_left_;
      if (RoomForBackwards() >= backwards_left_)
        return at;
      Mark(at, length, false);
      if (length == kBackwardSlots)
        ++backwards_left_;
    }
  }

 private:
  size_t Slot(int at) const { return static_cast<size_t>(at) % taken_.size(); }

  bool Free(int at, int length) const {
    for (int i = 0; i < length; ++i) {
      if (taken_[Slot(at + i)])
        return false;
    }
    return true;
  }

  void Mark(int at, int length, bool value) {
    for (int i = 0; i < length; ++i)
      taken_[Slot(at + i)] = value;
  }

  // How many backwards fit into the free runs, which may go round the end.
  int RoomForBackwards() const {
    const auto period = static_cast<int>(taken_.size());
    const auto first =
        static_cast<int>(std::find(taken_.begin(), taken_.end(), true) - taken_.begin());
    int room = 0;
    int run = 0;
    for (int i = 1; i <= period; ++i) {
      if (taken_[Slot(first + i)]) {
        room += run / kBackwardSlots;
        run = 0;
      } else {
        ++run;
      }
    }
    return room;
  }

  std::vector<bool> taken_;
  int backwards_left_;
};

}  // namespace

void WriteBlocks(Schedule& schedule, int rank, int period, std::vector<BlockSlot> slots) {
  std::sort(slots.begin(), slots.end(), [period](const BlockSlot& x, const BlockSlot& y) {
    return x.at % period < y.at % period;
  });
  int64_t last_block = 0;
  for (const BlockSlot& slot : slots)
    last_block = std::max<int64_t>(last_block, slot.at / period);
  const int m = schedule.micro_batches;
  const bool two = schedule.placement.num_directions() == 2;
  const int first[2] = {0, schedule.direction_split()};
  const int count[2] = {two ? first[1] : m, m - first[1]};
  auto& program = schedule.ranks[static_cast<size_t>(rank)];
  for (int64_t block = 0; block < count[0] + last_block; ++block) {
    for (const BlockSlot& slot : slots) {
      const int64_t j = block - slot.at / period;
      if (j >= 0 && j < count[slot.direction]) {
        program.push_back(
            MakeAction(slot.kind, StageId(slot.stage),
                       MicroBatchId(first[slot.direction] + static_cast<int32_t>(j))));
      }
    }
  }
}

void WriteVBlocks(Schedule& schedule, int rank, int forward_a, int forward_b, int input_b,
                  int input_a) {
  const int a = rank;
  const int b = 2 * schedule.num_ranks() - 1 - rank;
  std::vector<BlockSlot> slots = {{forward_a, OpKind::kForward, a, 0},
                                  {forward_b, OpKind::kForward, b, 0},
                                  {input_b, OpKind::kBackwardInput, b, 0},
                                  {input_a, OpKind::kBackwardInput, a, 0}};
  std::vector<bool> taken(kVPeriod, false);
  for (const BlockSlot& slot : slots)
    taken[static_cast<size_t>(slot.at % kVPeriod)] = true;
  for (const size_t input : {size_t{2}, size_t{3}}) {
    int at = slots[input].at + 1;
    while (taken[static_cast<size_t>(at % kVPeriod)])
      ++at;
    taken[static_cast<size_t>(at % kVPeriod)] = true;
    slots.push_back({at, OpKind::kBackwardWeight, slots[input].stage, 0});
  }
  WriteBlocks(schedule, rank, kVPeriod, std::move(slots));
}

int EarliestBlocksPeriod(const Placement& placement) {
  return (kForwardSlots + kBackwardSlots) * placement.chunks() * placement.num_directions();
}

std::vector<std::vector<BlockSlot>> EarliestBlocks(const Placement& placement) {
  const int stages = placement.num_stages();
  const int directions = placement.num_directions();
  std::vector<std::vector<BlockSlot>> slots(static_cast<size_t>(placement.num_ranks()));
  std::vector<Timetable> tables(
      slots.size(), Timetable(EarliestBlocksPeriod(placement), placement.chunks() * directions));
  int free_from[2] = {0, 0};
  for (int step = 0; step < 2 * stages; ++step) {
    const bool back = step >= stages;
    const int stage = back ? 2 * stages - 1 - step : step;
    const int length = back ? kBackwardSlots : kForwardSlots;
    for (int d = 0; d < directions; ++d) {
      const auto rank = static_cast<size_t>(placement.RankOf(StageId(stage), d).value());
      const int at = tables[rank].Take(free_from[d], length);
      slots[rank].push_back({at, back ? OpKind::kBackward : OpKind::kForward, stage, d});
      free_from[d] = at + length;
    }
  }
  return slots;
}

}  // namespace penstock::schedule
