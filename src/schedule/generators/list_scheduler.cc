#include "schedule/generators/list_scheduler.h"

#include <functional>
#include <queue>
#include <tuple>
#include <vector>

#include "schedule/generators/building_block.h"

namespace penstock::schedule {
namespace {

class ListScheduler {
 public:
  ListScheduler(Schedule& schedule, int in_flight)
      : schedule_(schedule),
        in_flight_(in_flight),
        period_(EarliestBlocksPeriod(schedule.placement)),
        ranks_(static_cast<size_t>(schedule.num_ranks())) {
    for (auto& of_direction : slot_) {
      for (auto& of_kind : of_direction)
        of_kind.resize(static_cast<size_t>(schedule.num_stages()));
    }
    for (const auto& slots : EarliestBlocks(schedule.placement)) {
      for (const BlockSlot& slot : slots) {
        slot_[slot.direction][slot.kind == OpKind::kBackward][static_cast<size_t>(slot.stage)] =
            slot.at;
      }
    }
  }

  void Run() {
    const int split = schedule_.direction_split();
    const bool two = schedule_.placement.num_directions() == 2;
    const int ends[3] = {0, two ? split : schedule_.micro_batches, schedule_.micro_batches};
    for (int d = 0; d < (two ? 2 : 1); ++d) {
      first_[d] = entered_[d] = ends[d];
      limit_[d] = ends[d + 1];
      for (int i = 0; i < in_flight_; ++i)
        Enter(d);
    }
    Dispatch(0);
    while (!events_.empty()) {
      const int64_t now = events_.top().end;
      while (!events_.empty() && events_.top().end == now) {
        const Event event = events_.top();
        events_.pop();
        Finish(event);
      }
      Dispatch(now);
    }
  }

 private:
  struct Work {
    int64_t key;  // slot of the steady pattern
    bool back;
    int stage;
    int micro_batch;
    auto operator<=>(const Work&) const = default;
  };

  struct Event {
    int64_t end;
    Work work;
    auto operator<=>(const Event&) const = default;
  };
  template <class T>
  using MinQueue = std::priority_queue<T, std::vector<T>, std::greater<>>;

  struct Rank {
    MinQueue<Work> ready;
    bool busy = false;
  };

  Rank& RankOf(int stage, int micro_batch) {
    return ranks_[static_cast<size_t>(
        schedule_.RankOf(StageId(stage), MicroBatchId(micro_batch)).value())];
  }

  void Offer(bool back, int stage, int micro_batch) {
    const int d = schedule_.DirectionOf(MicroBatchId(micro_batch));
    const int64_t key =
        slot_[d][back][static_cast<size_t>(stage)] + int64_t{period_} * (micro_batch - first_[d]);
    RankOf(stage, micro_batch).ready.push({key, back, stage, micro_batch});
  }

  void Enter(int direction) {
    if (entered_[direction] < limit_[direction])
      Offer(false, 0, entered_[direction]++);
  }

  void Finish(const Event& event) {
    const auto [key, back, stage, micro_batch] = event.work;
    RankOf(stage, micro_batch).busy = false;
    if (!back && stage + 1 < schedule_.num_stages()) {
      Offer(false, stage + 1, micro_batch);
    } else if (!back) {
      Offer(true, stage, micro_batch);
    } else if (stage > 0) {
      Offer(true, stage - 1, micro_batch);
    } else {
      Enter(schedule_.DirectionOf(MicroBatchId(micro_batch)));
    }
  }

  void Dispatch(int64_t now) {
    for (size_t r = 0; r < ranks_.size(); ++r) {
      Rank& rank = ranks_[r];
      if (rank.busy || rank.ready.empty())
        continue;
      const Work work = rank.ready.top();
      rank.ready.pop();
      rank.busy = true;
      schedule_.ranks[r].push_back(MakeAction(work.back ? OpKind::kBackward : OpKind::kForward,
                                              StageId(work.stage), MicroBatchId(work.micro_batch)));
      events_.push({now + (work.back ? 2 : 1), work});
    }
  }

  Schedule& schedule_;
  int in_flight_;
  int period_;
  std::vector<int> slot_[2][2];  // [direction][back][stage]
  std::vector<Rank> ranks_;
  MinQueue<Event> events_;
  int first_[2] = {0, 0};
  int entered_[2] = {0, 0};
  int limit_[2] = {0, 0};
};

}  // namespace

void FillGreedily(Schedule& schedule, int in_flight) {
  ListScheduler(schedule, in_flight).Run();
}

}  // namespace penstock::schedule
