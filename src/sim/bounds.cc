#include "sim/bounds.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

namespace penstock::sim {
namespace {

using schedule::Action;
using schedule::OpKind;
using schedule::Schedule;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Work of one rank in all its actions.
struct RankWork {
  double forward_s = 0;
  double recompute_s = 0;
  double backward_s = 0;  // B, I and W
  double weight_s = 0;    // W alone
  double other_s = 0;     // optimizer

  double all_s() const { return forward_s + recompute_s + backward_s + other_s; }
};

// The way of one part of a micro-batch (the smallest that flows on its own) through the stages of
// one copy of the weights, nothing else in its way.
struct Way {
  std::vector<double> up_s;    // from the start of the step to the start of F
  std::vector<double> f_s;     // F
  std::vector<double> rest_s;  // from the end of F to the end of F of the last stage
  std::vector<double> back_s;  // from the end of F of the last stage to the start of B or I
  std::vector<double> b_s;     // B or I
  std::vector<double> down_s;  // from the end of B or I to the end of that of stage 0
};

class BoundMaker {
 public:
  BoundMaker(const Schedule& schedule, const cost::CostModel& costs)
      : schedule_(schedule), costs_(costs), stages_(schedule.num_stages()) {
    double smallest_micro_batch = 1;
    if (!costs.micro_batch_scale.empty()) {
      smallest_micro_batch =
          *std::min_element(costs.micro_batch_scale.begin(), costs.micro_batch_scale.end());
    }
    double smallest_slice = 1.0 / schedule.slices;
    if (!costs.slice_scale.empty())
      smallest_slice = *std::min_element(costs.slice_scale.begin(), costs.slice_scale.end());
    smallest_ = smallest_micro_batch * smallest_slice;
    MeasureWork();
    for (int d = 0; d < schedule.placement.num_directions(); ++d)
      ways_.push_back(MakeWay(d));
  }

  Bounds Make(const std::vector<double>& activation_limit) const;

 private:
  void MeasureWork();
  Way MakeWay(int direction) const;
  double RankBound(int rank) const;
  double AloneSeconds(int direction) const;
  double BusiestLink() const;
  double MemoryBound(const std::vector<double>& limit) const;
  double Scale(const Action& action) const;
  double Hop(int from, int to, int direction, int64_t bytes) const;

  int MicroBatchesOf(int direction) const {
    if (schedule_.placement.num_directions() == 1)
      return schedule_.micro_batches;
    return direction == 0 ? schedule_.direction_split()
                          : schedule_.micro_batches - schedule_.direction_split();
  }

  const Schedule& schedule_;
  const cost::CostModel& costs_;
  int stages_;
  double smallest_ = 1;
  bool split_ = false;  // some backward is I and W
  std::vector<RankWork> work_;
  std::vector<Way> ways_;  // per direction
};

double BoundMaker::Scale(const Action& action) const {
  double scale = 1;
  if (!costs_.micro_batch_scale.empty()) {
    scale = costs_.micro_batch_scale[static_cast<size_t>(action.micro_batch.value() %
                                                         schedule_.micro_batches)];
  }
  return scale *
         (costs_.slice_scale.empty() ? 1.0 / schedule_.slices : costs_.slice_scale[action.slice]);
}

double BoundMaker::Hop(int from, int to, int direction, int64_t bytes) const {
  const RankId a = schedule_.placement.RankOf(StageId(from), direction);
  const RankId b = schedule_.placement.RankOf(StageId(to), direction);
  if (a == b)
    return 0;
  const cost::LinkCost& link = costs_.Link(a, b);
  return link.latency_s + link.TransferSeconds(bytes / schedule_.slices);
}

void BoundMaker::MeasureWork() {
  work_.resize(schedule_.ranks.size());
  for (size_t r = 0; r < schedule_.ranks.size(); ++r) {
    RankWork& work = work_[r];
    for (const Action& action : schedule_.ranks[r]) {
      const double base_s = costs_.StageSeconds(action.kind, action.stage);
      if (action.kind == OpKind::kOptimizer) {
        work.other_s += base_s;
        continue;
      }
      if (!schedule::IsCompute(action.kind))
        continue;
      const double seconds = base_s * Scale(action);
      if (action.kind == OpKind::kForward) {
        work.forward_s += seconds;
      } else if (action.kind == OpKind::kRecompute) {
        work.recompute_s += seconds;
      } else {
        work.backward_s += seconds;
      }
      if (action.kind == OpKind::kBackwardWeight) {
        work.weight_s += seconds;
        split_ = true;
      }
    }
  }
}

Way BoundMaker::MakeWay(int direction) const {
  const auto count = static_cast<size_t>(stages_);
  Way way;
  for (auto* part : {&way.up_s, &way.f_s, &way.rest_s, &way.back_s, &way.b_s, &way.down_s})
    part->assign(count, 0);
  for (size_t s = 0; s < count; ++s) {
    const cost::StageCost& stage = costs_.stages[s];
    way.f_s[s] = stage.f_s * smallest_;
    way.b_s[s] = (stage.i_s + (split_ ? 0.0 : stage.w_s)) * smallest_;
  }
  for (int s = 1; s < stages_; ++s) {
    const auto i = static_cast<size_t>(s);
    way.up_s[i] = way.up_s[i - 1] + way.f_s[i - 1] +
                  Hop(s - 1, s, direction, costs_.stages[i - 1].output_bytes);
    way.down_s[i] = way.down_s[i - 1] + way.b_s[i - 1] +
                    Hop(s, s - 1, direction, costs_.stages[i].gradient_bytes);
  }
  for (int s = stages_ - 2; s >= 0; --s) {
    const auto i = static_cast<size_t>(s);
    way.rest_s[i] = way.rest_s[i + 1] + way.f_s[i + 1] +
                    Hop(s, s + 1, direction, costs_.stages[i].output_bytes);
    way.back_s[i] = way.back_s[i + 1] + way.b_s[i + 1] +
                    Hop(s + 1, s, direction, costs_.stages[i + 1].gradient_bytes);
  }
  return way;
}

double BoundMaker::RankBound(int rank) const {
  const RankWork& work = work_[static_cast<size_t>(rank)];
  double head_s = kInfinity;  // before its first F
  double tail_s = kInfinity;  // after its last B or I
  double turn_s = kInfinity;  // before its first backward
  double after_last_f_s = kInfinity;
  for (int d = 0; d < static_cast<int>(ways_.size()); ++d) {
    const Way& way = ways_[static_cast<size_t>(d)];
    for (const StageId stage : schedule_.placement.StagesOf(RankId(rank), d)) {
      const auto s = static_cast<size_t>(stage.value());
      head_s = std::min(head_s, way.up_s[s]);
      tail_s = std::min(tail_s, way.down_s[s]);
      turn_s = std::min(turn_s, way.up_s[s] + way.f_s[s] + way.rest_s[s] + way.back_s[s]);
      after_last_f_s =
          std::min(after_last_f_s,
                   way.rest_s[s] +
                       (schedule_.forward_only ? 0.0 : way.back_s[s] + way.b_s[s] + way.down_s[s]));
    }
  }
  if (head_s == kInfinity)
    return 0;  // a rank without stages
  const double forward_bound_s = head_s + work.forward_s + after_last_f_s;
  if (schedule_.forward_only)
    return forward_bound_s;
  // A rank that splits may end with W's: only what they don't cover is left after its work.
  const double end_s = std::max(0.0, tail_s - work.weight_s);
  return std::max(
      {forward_bound_s, head_s + work.all_s() + end_s, turn_s + work.backward_s + end_s});
}

double BoundMaker::AloneSeconds(int direction) const {
  const Way& way = ways_[static_cast<size_t>(direction)];
  const double forward_s = way.f_s[0] + way.rest_s[0];
  return schedule_.forward_only ? forward_s : forward_s + way.back_s[0] + way.b_s[0];
}

double BoundMaker::BusiestLink() const {
  std::map<std::pair<int, int>, double> busy_s;
  auto add = [&](int from, int to, int direction, int64_t bytes) {
    const RankId a = schedule_.placement.RankOf(StageId(from), direction);
    const RankId b = schedule_.placement.RankOf(StageId(to), direction);
    const cost::LinkCost& link = costs_.Link(a, b);
    if (a != b && link.occupied) {
      busy_s[{a.value(), b.value()}] += link.TransferSeconds(bytes / schedule_.slices) *
                                        schedule_.slices * MicroBatchesOf(direction);
    }
  };
  for (int d = 0; d < schedule_.placement.num_directions(); ++d) {
    for (int s = 0; s + 1 < stages_; ++s) {
      add(s, s + 1, d, costs_.stages[static_cast<size_t>(s)].output_bytes);
      if (!schedule_.forward_only)
        add(s + 1, s, d, costs_.stages[static_cast<size_t>(s + 1)].gradient_bytes);
    }
  }
  double most_s = 0;
  for (const auto& [pair, seconds] : busy_s)
    most_s = std::max(most_s, seconds);
  return most_s;
}

double BoundMaker::MemoryBound(const std::vector<double>& limit) const {
  std::vector<double> held_s(schedule_.ranks.size(), 0);  // share-seconds of one step
  for (int d = 0; d < schedule_.placement.num_directions(); ++d) {
    const Way& way = ways_[static_cast<size_t>(d)];
    for (int stage = 0; stage < stages_; ++stage) {
      const auto s = static_cast<size_t>(stage);
      const double weight_s = split_ ? costs_.stages[s].w_s * smallest_ : 0.0;
      const double life_s = way.f_s[s] + way.rest_s[s] + way.back_s[s] + way.b_s[s] + weight_s;
      held_s[static_cast<size_t>(schedule_.placement.RankOf(StageId(stage), d).value())] +=
          life_s * MicroBatchesOf(d) / schedule_.chunks();
    }
  }
  double bound_s = 0;
  for (size_t r = 0; r < held_s.size(); ++r)
    bound_s = std::max(bound_s, held_s[r] / limit[r]);
  return bound_s;
}

Bounds BoundMaker::Make(const std::vector<double>& activation_limit) const {
  Bounds bounds;
  for (int r = 0; r < schedule_.num_ranks(); ++r) {
    const double work_s = work_[static_cast<size_t>(r)].all_s();
    bounds.makespan_s = std::max({bounds.makespan_s, work_s, RankBound(r)});
    bounds.period_s = std::max(bounds.period_s, work_s / schedule_.steps);
  }
  bounds.period_s = std::max(bounds.period_s, BusiestLink());
  for (int d = 0; d < schedule_.placement.num_directions(); ++d) {
    if (MicroBatchesOf(d) == 0)
      continue;
    bounds.makespan_s = std::max(bounds.makespan_s, AloneSeconds(d));
    if (schedule_.ring) {
      const double around_s =
          Hop(stages_ - 1, 0, d, costs_.stages[static_cast<size_t>(stages_ - 1)].output_bytes);
      bounds.period_s = std::max(bounds.period_s, AloneSeconds(d) + around_s);
    }
  }
  bool recomputes = false;  // then an activation may live from R instead of F
  for (const RankWork& work : work_)
    recomputes = recomputes || work.recompute_s > 0;
  if (activation_limit.size() == work_.size() && !schedule_.forward_only && !recomputes) {
    const double memory_s = MemoryBound(activation_limit);
    bounds.makespan_s = std::max(bounds.makespan_s, memory_s);
    bounds.period_s = std::max(bounds.period_s, memory_s);
  }
  return bounds;
}

}  // namespace

Bounds LowerBounds(const Schedule& schedule, const cost::CostModel& costs,
                   const std::vector<double>& activation_limit) {
  return BoundMaker(schedule, costs).Make(activation_limit);
}

}  // namespace penstock::sim
