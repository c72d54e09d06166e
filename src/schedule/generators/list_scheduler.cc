#include "schedule/generators/list_scheduler.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <tuple>
#include <vector>

namespace penstock::schedule {
namespace {

constexpr int64_t kForwardUnits = 1;
constexpr int64_t kBackwardUnits = 2;

class ListScheduler {
 public:
  ListScheduler(Schedule& schedule, const ListRules& rules)
      : schedule_(schedule), rules_(rules), ranks_(static_cast<size_t>(schedule.num_ranks())) {}

  void Run() {
    const int directions = schedule_.placement.num_directions();
    const int ends[3] = {0, directions == 1 ? schedule_.micro_batches : schedule_.direction_split(),
                         schedule_.micro_batches};
    for (int d = 0; d < directions; ++d) {
      entered_[d] = ends[d];
      limit_[d] = ends[d + 1];
      for (int i = 0; i < rules_.in_flight; ++i)
        Enter(d);
    }
    Dispatch(0);
    while (!events_.empty()) {
      const int64_t now = std::get<0>(events_.top());
      while (!events_.empty() && std::get<0>(events_.top()) == now) {
        const Event event = events_.top();
        events_.pop();
        Finish(event);
      }
      Dispatch(now);
    }
  }

 private:
  // Forward candidates: deepest stage first, then the first micro-batch. Backward: first
  // micro-batch, then the latest stage.
  using Candidate = std::tuple<int, int>;
  using Queue = std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>>;

  struct Rank {
    Queue forward;   // (-stage, micro-batch)
    Queue backward;  // (micro-batch, -stage)
    bool busy = false;
  };

  using Event = std::tuple<int64_t, int, int, int>;  // time, kind (0: F, 1: B), micro-batch, stage

  Rank& RankOf(int stage, int micro_batch) {
    return ranks_[static_cast<size_t>(
        schedule_.RankOf(StageId(stage), MicroBatchId(micro_batch)).value())];
  }

  void Enter(int direction) {
    if (entered_[direction] < limit_[direction]) {
      const int micro_batch = entered_[direction]++;
      RankOf(0, micro_batch).forward.emplace(0, micro_batch);
    }
  }

  void Finish(const Event& event) {
    const auto [time, kind, micro_batch, stage] = event;
    RankOf(stage, micro_batch).busy = false;
    if (kind == 0) {
      if (stage + 1 < schedule_.num_stages()) {
        RankOf(stage + 1, micro_batch).forward.emplace(-(stage + 1), micro_batch);
      } else {
        RankOf(stage, micro_batch).backward.emplace(micro_batch, -stage);
      }
    } else if (stage > 0) {
      RankOf(stage - 1, micro_batch).backward.emplace(micro_batch, -(stage - 1));
    } else {
      Enter(schedule_.DirectionOf(MicroBatchId(micro_batch)));
    }
  }

  void Dispatch(int64_t now) {
    for (size_t r = 0; r < ranks_.size(); ++r) {
      Rank& rank = ranks_[r];
      if (rank.busy)
        continue;
      if (!rank.backward.empty()) {
        const auto [micro_batch, negative_stage] = rank.backward.top();
        rank.backward.pop();
        Start(r, OpKind::kBackward, -negative_stage, micro_batch, now + kBackwardUnits);
      } else if (!rank.forward.empty()) {
        const auto [negative_stage, micro_batch] = rank.forward.top();
        rank.forward.pop();
        Start(r, OpKind::kForward, -negative_stage, micro_batch, now + kForwardUnits);
      }
    }
  }

  void Start(size_t rank, OpKind kind, int stage, int micro_batch, int64_t end) {
    ranks_[rank].busy = true;
    schedule_.ranks[rank].push_back(MakeAction(kind, StageId(stage), MicroBatchId(micro_batch)));
    events_.emplace(end, kind == OpKind::kForward ? 0 : 1, micro_batch, stage);
  }

  Schedule& schedule_;
  const ListRules& rules_;
  std::vector<Rank> ranks_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  int entered_[2] = {0, 0};
  int limit_[2] = {0, 0};
};

}  // namespace

void FillGreedily(Schedule& schedule, const ListRules& rules) {
  ListScheduler(schedule, rules).Run();
}

}  // namespace penstock::schedule
