#include "sim/place_weights.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <optional>
#include <utility>

#include "sim/peaks.h"
#include "sim/simulate.h"

namespace penstock::sim {
namespace {

using schedule::Action;
using schedule::OpKind;
using schedule::Schedule;

// What a rank may hold: saved (stage, micro-batch, slice) triples, and their bytes.
struct Room {
  int64_t count = std::numeric_limits<int64_t>::max();
  int64_t bytes = std::numeric_limits<int64_t>::max();
};

// Runs a schedule's actions but its W's by data flow, and puts W's in as it goes.
class WeightPlacer {
 public:
  WeightPlacer(const Schedule& schedule, const cost::CostModel& costs, std::vector<Room> room,
               double threshold)
      : schedule_(schedule),
        costs_(costs),
        room_(std::move(room)),
        threshold_(threshold),
        stages_(schedule.num_stages()),
        arrival_s_(static_cast<size_t>(2 * stages_) * static_cast<size_t>(schedule.micro_batches) *
                       static_cast<size_t>(schedule.slices),
                   -1.0) {
    for (const auto& program : schedule.ranks) {
      Rank rank;
      for (const Action& action : program) {
        if (action.kind != OpKind::kBackwardWeight)
          rank.rest.push_back(action);
      }
      ranks_.push_back(std::move(rank));
    }
  }

  // The new order, or nothing where an F found no room and no W to free it.
  std::optional<Schedule> Run() {
    for (size_t r = 0; r < ranks_.size(); ++r)
      ready_.push_back(r);
    while (!ready_.empty()) {
      const size_t r = ready_.back();
      ready_.pop_back();
      if (!Advance(r))
        return std::nullopt;
    }
    Schedule out = schedule_;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      if (ranks_[r].next < ranks_[r].rest.size())
        return std::nullopt;
      while (!ranks_[r].weights.empty())
        RunWeight(ranks_[r]);
      out.ranks[r] = std::move(ranks_[r].order);
    }
    return out;
  }

 private:
  struct Rank {
    std::vector<Action> rest;
    size_t next = 0;
    std::vector<Action> order;
    std::deque<Action> weights;
    double now_s = 0;
    int64_t held = 0;
    int64_t bytes = 0;
    size_t waits_for = SIZE_MAX;
  };

  size_t CellOf(bool backward, int stage, const Action& action) const {
    return ((static_cast<size_t>(backward ? stages_ : 0) + static_cast<size_t>(stage)) *
                static_cast<size_t>(schedule_.micro_batches) +
            static_cast<size_t>(action.micro_batch.value())) *
               static_cast<size_t>(schedule_.slices) +
           action.slice;
  }

  double Seconds(const Action& action) const {
    double scale = 1;
    if (!costs_.micro_batch_scale.empty())
      scale = costs_.micro_batch_scale[static_cast<size_t>(action.micro_batch.value())];
    scale *= costs_.slice_scale.empty() ? 1.0 / schedule_.slices : costs_.slice_scale[action.slice];
    return costs_.StageSeconds(action.kind, action.stage) * scale;
  }

  void RunWeight(Rank& rank) {
    rank.order.push_back(rank.weights.front());
    rank.now_s += Seconds(rank.weights.front());
    Release(rank, rank.weights.front());
    rank.weights.pop_front();
  }

  int64_t BytesOf(const Action& action) const {
    return costs_.stages[static_cast<size_t>(action.stage.value())].activation_bytes /
           schedule_.slices;
  }

  void Release(Rank& rank, const Action& action) const {
    --rank.held;
    rank.bytes -= BytesOf(action);
  }

  bool IsFull(size_t r, const Action& forward) const {
    const Rank& rank = ranks_[r];
    return rank.held >= room_[r].count || rank.bytes > room_[r].bytes - BytesOf(forward);
  }

  // False: no room.
  bool Advance(size_t r) {
    Rank& rank = ranks_[r];
    while (rank.next < rank.rest.size()) {
      const Action& action = rank.rest[rank.next];
      const bool forward = action.kind == OpKind::kForward;
      const bool backward =
          action.kind == OpKind::kBackward || action.kind == OpKind::kBackwardInput;
      const int stage = action.stage.value();
      double input_s = 0;
      if ((forward && stage > 0) || (backward && stage + 1 < stages_)) {
        const size_t cell = CellOf(backward, stage, action);
        if (arrival_s_[cell] < 0) {
          rank.waits_for = cell;
          return true;
        }
        input_s = arrival_s_[cell];
      }
      if (forward) {
        while (IsFull(r, action) && !rank.weights.empty())
          RunWeight(rank);
        if (IsFull(r, action))
          return false;
      }
      while (!rank.weights.empty() &&
             input_s - rank.now_s >= threshold_ * Seconds(rank.weights.front()) &&
             input_s > rank.now_s) {
        RunWeight(rank);
      }
      Do(r, action, std::max(rank.now_s, input_s));
      ++rank.next;
    }
    return true;
  }

  void Do(size_t r, const Action& action, double start_s) {
    Rank& rank = ranks_[r];
    rank.order.push_back(action);
    if (!schedule::IsCompute(action.kind))
      return;
    rank.now_s = start_s + Seconds(action);
    const int stage = action.stage.value();
    if (action.kind == OpKind::kForward) {
      ++rank.held;
      rank.bytes += BytesOf(action);
      if (stage + 1 < stages_)
        Deliver(false, stage, stage + 1, action, rank.now_s);
      return;
    }
    if (action.kind == OpKind::kRecompute)
      return;
    if (action.kind == OpKind::kBackward)
      Release(rank, action);
    if (action.kind == OpKind::kBackwardInput) {
      Action weight = action;
      weight.kind = OpKind::kBackwardWeight;
      weight.joined = false;
      rank.weights.push_back(weight);
    }
    if (stage > 0)
      Deliver(true, stage, stage - 1, action, rank.now_s);
  }

  void Deliver(bool backward, int from, int to, const Action& action, double sent_s) {
    const RankId a = schedule_.RankOf(StageId(from), action.micro_batch);
    const RankId b = schedule_.RankOf(StageId(to), action.micro_batch);
    double arrival_s = sent_s;
    if (a != b) {
      const cost::LinkCost& link = costs_.Link(a, b);
      const cost::StageCost& stage = costs_.stages[static_cast<size_t>(from)];
      arrival_s += link.latency_s +
                   link.TransferSeconds((backward ? stage.gradient_bytes : stage.output_bytes) /
                                        schedule_.slices);
    }
    const size_t cell = CellOf(backward, to, action);
    arrival_s_[cell] = arrival_s;
    Rank& target = ranks_[static_cast<size_t>(b.value())];
    if (target.waits_for == cell) {
      target.waits_for = SIZE_MAX;
      ready_.push_back(static_cast<size_t>(b.value()));
    }
  }

  const Schedule& schedule_;
  const cost::CostModel& costs_;
  std::vector<Room> room_;
  double threshold_;
  int stages_;
  std::vector<double> arrival_s_;  // [backward][stage][micro-batch][slice]; -1: not sent
  std::vector<Rank> ranks_;
  std::vector<size_t> ready_;
};

bool HasWeights(const Schedule& schedule) {
  for (const auto& program : schedule.ranks) {
    for (const Action& action : program) {
      if (action.kind == OpKind::kBackwardWeight)
        return true;
    }
  }
  return false;
}

std::vector<Room> RoomOf(const Schedule& schedule, const cost::CostModel& costs,
                         const ActivationLimit& limit) {
  constexpr double kRounding = 1e-9;
  constexpr double kMost = 9e18;
  const double parts = static_cast<double>(schedule.chunks()) * schedule.slices;
  std::vector<Room> room(schedule.ranks.size());
  if (limit.none()) {
    Room worst{0, 0};
    for (const Peak& peak : ActivationPeaks(schedule, costs)) {
      worst.count = std::max(worst.count, peak.count);
      worst.bytes = std::max(worst.bytes, peak.bytes);
    }
    room.assign(room.size(), worst);
    return room;
  }
  for (size_t r = 0; r < room.size(); ++r) {
    const double amount = limit.amounts()[r] * (1 + kRounding);
    if (limit.in_bytes()) {
      room[r].bytes = static_cast<int64_t>(std::min(std::floor(amount), kMost));
    } else {
      room[r].count = static_cast<int64_t>(std::min(std::floor(amount * parts), kMost));
    }
  }
  return room;
}

}  // namespace

Result<PlacementOfWeights> PlaceWeights(const Schedule& schedule, const cost::CostModel& costs,
                                        const ActivationLimit& limit) {
  PlacementOfWeights best;
  PENSTOCK_TRY_ASSIGN(best.makespan_s, SimulateMakespan(schedule, costs));
  best.schedule = schedule;
  if (schedule.lowered || schedule.steps != 1 || schedule.ring || !HasWeights(schedule))
    return best;
  const std::vector<Room> room = RoomOf(schedule, costs, limit);
  for (const double threshold : {1.0, 0.75, 0.5, 0.25, 0.0, std::numeric_limits<double>::max()}) {
    const std::optional<Schedule> placed = WeightPlacer(schedule, costs, room, threshold).Run();
    if (!placed)
      continue;
    PENSTOCK_TRY_ASSIGN(const double makespan_s, SimulateMakespan(*placed, costs));
    if (makespan_s < best.makespan_s * (1 - 1e-12)) {
      best.makespan_s = makespan_s;
      best.schedule = *placed;
      best.changed = true;
    }
  }
  return best;
}

}  // namespace penstock::sim
