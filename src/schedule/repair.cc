#include "schedule/repair.h"

#include <algorithm>
#include <vector>

#include "schedule/dataflow.h"

namespace penstock::schedule {
namespace {

class Repairer {
 public:
  explicit Repairer(Schedule& schedule)
      : schedule_(schedule), flow_(schedule), next_(schedule.ranks.size(), 0) {}

  bool Run() {
    for (int r = schedule_.num_ranks() - 1; r >= 0; --r)
      awake_.push_back(r);
    while (true) {
      while (!awake_.empty()) {
        const int rank = awake_.back();
        awake_.pop_back();
        Advance(rank);
      }
      if (Finished())
        return true;
      if (!PullOne())
        return false;
    }
  }

 private:
  void Advance(int rank) {
    const auto& program = schedule_.ranks[static_cast<size_t>(rank)];
    size_t& next = next_[static_cast<size_t>(rank)];
    while (next < program.size() &&
           (program[next].kind == OpKind::kIdle || flow_.Ready(program[next]))) {
      const Action& action = program[next++];
      if (action.kind == OpKind::kIdle)
        continue;
      flow_.MarkDone(action);
      WakeNeighbours(action);
    }
  }

  void WakeNeighbours(const Action& action) {
    for (const int stage : {action.stage.value() - 1, action.stage.value() + 1}) {
      if (stage >= 0 && stage < schedule_.num_stages()) {
        awake_.push_back(schedule_.RankOf(StageId(stage), action.micro_batch).value());
      }
    }
  }

  bool Finished() const {
    for (size_t r = 0; r < next_.size(); ++r) {
      if (next_[r] < schedule_.ranks[r].size())
        return false;
    }
    return true;
  }

  bool PullOne() {
    for (size_t r = 0; r < next_.size(); ++r) {
      auto& program = schedule_.ranks[r];
      const auto first = program.begin() + static_cast<std::ptrdiff_t>(next_[r]);
      const auto ready = std::find_if(first, program.end(), [this](const Action& action) {
        return action.kind != OpKind::kIdle && flow_.Ready(action);
      });
      if (ready == program.end())
        continue;
      std::rotate(first, ready, ready + 1);
      awake_.push_back(static_cast<int>(r));
      return true;
    }
    return false;
  }

  Schedule& schedule_;
  DataFlow flow_;
  std::vector<size_t> next_;
  std::vector<int> awake_;
};

}  // namespace

Result<Schedule> RepairOrder(Schedule schedule) {
  if (!Repairer(schedule).Run()) {
    return MakeError(
        ErrorCode::kInvalidSchedule,
        "[schedule.repair] {}: no order of its actions can run, wanted a complete schedule",
        schedule.name);
  }
  return schedule;
}

}  // namespace penstock::schedule
