#include "sim/list_scheduler.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <tuple>

namespace penstock::sim {
namespace {

using schedule::Action;
using schedule::OpKind;
using schedule::Placement;
using schedule::Schedule;

class ListScheduler {
 public:
  ListScheduler(const Placement& placement, const cost::CostModel& costs,
                const ListOptions& options)
      : costs_(costs), options_(options), stages_(placement.num_stages()) {
    schedule_.name = "list";
    schedule_.placement = placement;
    schedule_.micro_batches = options.micro_batches;
    schedule_.ranks.resize(static_cast<size_t>(placement.num_ranks()));
    ranks_.resize(schedule_.ranks.size());
    forward_.resize(static_cast<size_t>(stages_));
    backward_.resize(static_cast<size_t>(stages_));
    for (int r = 0; r < placement.num_ranks(); ++r) {
      for (const StageId stage : placement.StagesOf(RankId(r)))
        ranks_[static_cast<size_t>(r)].stages.push_back(stage.value());
    }
    left_ = static_cast<int64_t>(stages_) * options.micro_batches * 3;
  }

  std::optional<Schedule> Run() {
    for (int j = 0; j < options_.micro_batches; ++j)
      forward_[0].push_back({0.0, j});
    for (size_t r = 0; r < ranks_.size(); ++r)
      events_.emplace(0.0, r);
    while (!events_.empty()) {
      const auto [now_s, r] = events_.top();
      events_.pop();
      if (ranks_[r].free_s <= now_s)
        Decide(r, now_s);
    }
    if (left_ != 0)
      return std::nullopt;
    return std::move(schedule_);
  }

 private:
  // Micro-batches that wait for a stage, in order of arrival: (arrival, micro-batch).
  struct Queue {
    std::vector<std::pair<double, int>> items;
    size_t head = 0;

    void push_back(std::pair<double, int> item) { items.push_back(item); }

    bool Ready(double now_s) const { return head < items.size() && items[head].first <= now_s; }
  };

  struct Rank {
    std::vector<int> stages;  // ascending
    double free_s = 0;
    int64_t held = 0;
    int64_t first_chunk_ahead = 0;
    std::queue<std::pair<int, int>> weights;  // (stage, micro-batch)
  };

  bool HasRoom(size_t r, size_t chunk) const {
    const Rank& rank = ranks_[r];
    // One place stays free for each later chunk: otherwise a rank full of first chunks would wait
    // for itself.
    const auto later = static_cast<int64_t>(rank.stages.size() - 1 - chunk);
    if (rank.held + 1 > options_.limit[r] - later)
      return false;
    const auto after = static_cast<int64_t>(ranks_.size() - 1 - r);
    return chunk > 0 || rank.first_chunk_ahead < options_.ahead_base + options_.ahead_slope * after;
  }

  // The stage of this rank that has something ready, in the wanted order; -1: none.
  int Pick(size_t r, const std::vector<Queue>& queues, bool deep, double now_s,
           bool forward) const {
    const Rank& rank = ranks_[r];
    const size_t count = rank.stages.size();
    for (size_t i = 0; i < count; ++i) {
      const size_t chunk = deep ? count - 1 - i : i;
      const int stage = rank.stages[chunk];
      if (queues[static_cast<size_t>(stage)].Ready(now_s) && (!forward || HasRoom(r, chunk)))
        return stage;
    }
    return -1;
  }

  void Decide(size_t r, double now_s) {
    Rank& rank = ranks_[r];
    const int backward = Pick(r, backward_, options_.deep_backward, now_s, false);
    if (backward >= 0) {
      Start(r, OpKind::kBackwardInput, backward, Take(backward_, backward), now_s);
      return;
    }
    if (options_.eager_weights && !rank.weights.empty()) {
      StartWeight(r, now_s);
      return;
    }
    const int forward = Pick(r, forward_, options_.deep_forward, now_s, true);
    if (forward >= 0) {
      Start(r, OpKind::kForward, forward, Take(forward_, forward), now_s);
    } else if (!rank.weights.empty()) {
      StartWeight(r, now_s);
    }
  }

  static int Take(std::vector<Queue>& queues, int stage) {
    Queue& queue = queues[static_cast<size_t>(stage)];
    return queue.items[queue.head++].second;
  }

  void StartWeight(size_t r, double now_s) {
    const auto [stage, micro_batch] = ranks_[r].weights.front();
    ranks_[r].weights.pop();
    --ranks_[r].held;
    Start(r, OpKind::kBackwardWeight, stage, micro_batch, now_s);
  }

  void Start(size_t r, OpKind kind, int stage, int micro_batch, double now_s) {
    Rank& rank = ranks_[r];
    double seconds = costs_.StageSeconds(kind, StageId(stage));
    if (!costs_.micro_batch_scale.empty())
      seconds *= costs_.micro_batch_scale[static_cast<size_t>(micro_batch)];
    rank.free_s = now_s + seconds;
    schedule_.ranks[r].push_back(
        schedule::MakeAction(kind, StageId(stage), MicroBatchId(micro_batch)));
    --left_;
    events_.emplace(rank.free_s, r);
    const bool first_chunk = stage == rank.stages.front();
    if (kind == OpKind::kForward) {
      ++rank.held;
      rank.first_chunk_ahead += first_chunk ? 1 : 0;
      if (stage + 1 < stages_) {
        Deliver(forward_, stage, stage + 1, micro_batch, rank.free_s,
                costs_.stages[static_cast<size_t>(stage)].output_bytes);
      } else {
        Deliver(backward_, stage, stage, micro_batch, rank.free_s, 0);
      }
    } else if (kind == OpKind::kBackwardInput) {
      rank.first_chunk_ahead -= first_chunk ? 1 : 0;
      rank.weights.emplace(stage, micro_batch);
      if (stage > 0) {
        Deliver(backward_, stage, stage - 1, micro_batch, rank.free_s,
                costs_.stages[static_cast<size_t>(stage)].gradient_bytes);
      }
    }
  }

  void Deliver(std::vector<Queue>& queues, int from, int to, int micro_batch, double sent_s,
               int64_t bytes) {
    const RankId a = schedule_.placement.RankOf(StageId(from));
    const RankId b = schedule_.placement.RankOf(StageId(to));
    double arrival_s = sent_s;
    if (a != b) {
      const cost::LinkCost& link = costs_.Link(a, b);
      arrival_s += link.latency_s + link.TransferSeconds(bytes);
    }
    queues[static_cast<size_t>(to)].push_back({arrival_s, micro_batch});
    events_.emplace(arrival_s, static_cast<size_t>(b.value()));
  }

  using Event = std::pair<double, size_t>;

  const cost::CostModel& costs_;
  const ListOptions& options_;
  int stages_;
  Schedule schedule_;
  std::vector<Rank> ranks_;
  std::vector<Queue> forward_;  // per stage
  std::vector<Queue> backward_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  int64_t left_ = 0;
};

}  // namespace

std::optional<Schedule> ListSchedule(const Placement& placement, const cost::CostModel& costs,
                                     const ListOptions& options) {
  for (int r = 0; r < placement.num_ranks(); ++r) {
    const auto stages = static_cast<int64_t>(placement.StagesOf(RankId(r)).size());
    if (options.limit[static_cast<size_t>(r)] < stages)
      return std::nullopt;
  }
  return ListScheduler(placement, costs, options).Run();
}

}  // namespace penstock::sim
