#include "train/planned_step.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <map>
#include <string>

#include "schedule/passes.h"
#include "schedule/registry.h"

namespace penstock::train {
namespace {

using schedule::Action;
using schedule::OpKind;
using schedule::Schedule;

constexpr double kLatencyS = 0.125;

// Two ranks, a tied tensor on both.
Schedule Lowered(const char* name, int micro_batches) {
  Schedule made = schedule::Generate(name, {2, micro_batches, 0, 0}).value();
  made.edges.push_back(
      {"w", schedule::EdgeKind::kTied, StageId(0), {StageId(made.num_stages() - 1)}, 0});
  made = schedule::AddCommunication(made, {.credits = 2}).value();
  return schedule::AddStepEnd(made, {.reduce = true, .optimizer = true}).value();
}

bool CrossesRanks(const Schedule& schedule, const Action& sum) {
  return sum.value > 0 && std::all_of(schedule.ranks.begin(), schedule.ranks.end(), [&](auto& r) {
           return std::any_of(r.begin(), r.end(), [&](const Action& a) {
             return a.kind == OpKind::kReduceGrad && a.value == sum.value;
           });
         });
}

// Runs both ranks against each other on a clock of its own; every action takes what `seconds` says,
// with an eighth of it before it.
class Execution {
 public:
  Execution(const Schedule& schedule, std::function<double(int, const Action&)> seconds)
      : schedule_(schedule), seconds_(std::move(seconds)) {}

  std::vector<MeasuredStep> Run() {
    while (Step(0) || Step(1)) {
    }
    for (MeasuredStep& rank : steps_) {
      rank.end_s = std::max(now_[0], now_[1]);
    }
    return {steps_.begin(), steps_.end()};
  }

 private:
  static std::string Key(const Action& action) {
    Action send = action;
    if (schedule::IsRecv(action.kind)) {
      send.kind =
          action.kind == OpKind::kRecvForward ? OpKind::kSendForward : OpKind::kSendBackward;
      send.stage = schedule::PeerStage(action);
    }
    return schedule::ActionText(send);
  }

  void Record(int r, const Action& action, double seconds) {
    const auto rank = static_cast<size_t>(r);
    steps_[rank].timeline.slices.push_back({action, 0, 0, now_[rank], now_[rank] + seconds, 0});
    now_[rank] += seconds;
  }

  void WaitUntil(int r, const Action& awaited, double until_s) {
    const auto rank = static_cast<size_t>(r);
    if (until_s > now_[rank]) {
      steps_[rank].timeline.waits.push_back(
          {awaited, RankId(1 - r), trace::WaitCause::kImbalance, now_[rank], until_s});
      now_[rank] = until_s;
    }
  }

  // One action of a rank; false where it can't go on.
  bool Step(int r) {
    const auto rank = static_cast<size_t>(r);
    if (at_[rank] == schedule_.ranks[rank].size()) {
      return false;
    }
    const Action& action = schedule_.ranks[rank][at_[rank]];
    const double seconds = seconds_(r, action);
    const bool meets = action.kind == OpKind::kReduceGrad && CrossesRanks(schedule_, action);
    const bool last = at_[rank] + 1 == schedule_.ranks[rank].size();  // the norm is waited for
    if (schedule::IsRecv(action.kind) && !sent_.contains(Key(action))) {
      return false;
    }
    if (meets || last) {
      const std::string place = meets ? "sum" : "norm";
      arrived_[place].emplace(r, now_[rank]);
      if (arrived_[place].size() < 2) {
        return false;
      }
    } else {
      now_[rank] += seconds / 8;
    }
    if (meets) {
      const double begin_s = now_[rank];
      const double both_s = std::max(arrived_["sum"][0], arrived_["sum"][1]) + 0.5;
      Record(r, action, std::max(0.25, both_s - begin_s));
    } else if (last) {
      WaitUntil(r, action, std::max(arrived_["norm"][0], arrived_["norm"][1]));
      Record(r, action, 1);
    } else if (schedule::IsRecv(action.kind)) {
      WaitUntil(r, action, sent_[Key(action)] + kLatencyS);
      Action send = action;
      send.kind =
          action.kind == OpKind::kRecvForward ? OpKind::kSendForward : OpKind::kSendBackward;
      send.stage = schedule::PeerStage(action);
      steps_[rank].timeline.received.push_back(
          {send, RankId(1 - r), RankId(r), 0, sent_[Key(action)], now_[rank], 0});
      Record(r, action, seconds);
    } else {
      Record(r, action, seconds);
      if (schedule::IsSend(action.kind)) {
        sent_[Key(action)] = now_[rank];
      }
    }
    ++at_[rank];
    return true;
  }

  const Schedule& schedule_;
  std::function<double(int, const Action&)> seconds_;
  std::array<MeasuredStep, 2> steps_;
  std::array<double, 2> now_ = {};
  std::array<size_t, 2> at_ = {};
  std::map<std::string, double> sent_;
  std::map<std::string, std::map<int, double>> arrived_;
};

// F about 1, I and W about 2 and 1, others short; each action of each step another time.
std::function<double(int, const Action&)> Jittered(unsigned seed) {
  return [seed](int rank, const Action& action) {
    const auto text = schedule::ActionText(action);
    const size_t mixed =
        std::hash<std::string>()(text) * 31 + seed * 7919 + static_cast<size_t>(rank);
    const double jitter = 1 + static_cast<double>(mixed % 97) / 97;
    switch (action.kind) {
      case OpKind::kForward:
      case OpKind::kBackwardWeight:
        return jitter;
      case OpKind::kBackward:
        return 3 * jitter;
      case OpKind::kBackwardInput:
        return 2 * jitter;
      default:
        return 0.0625 * jitter;
    }
  };
}

double Length(const std::vector<MeasuredStep>& step) {
  return step[0].end_s - step[0].begin_s;
}

double BubbleOf(const std::vector<MeasuredStep>& step) {
  double busy_s = 0;
  for (const MeasuredStep& rank : step) {
    for (const trace::Slice& slice : rank.timeline.slices) {
      busy_s += trace::IsWork(slice.action.kind) ? slice.end_s - slice.start_s : 0;
    }
  }
  return 1 - busy_s / (2 * Length(step));
}

// The waits are left out of what is simulated: they must come out again.
TEST(PlannedStepTest, ReplaysEachStepAndTakesTheMiddle) {
  for (const char* name : {"1f1b", "zb-h1", "zb-v", "gpipe"}) {
    const Schedule schedule = Lowered(name, 3);
    std::vector<std::vector<MeasuredStep>> steps;
    for (unsigned seed = 0; seed < 3; ++seed) {
      steps.push_back(Execution(schedule, Jittered(seed)).Run());
      const auto alone = PlanStep(schedule, {steps.back()}, true);
      ASSERT_TRUE(alone.ok()) << alone.error().message;
      EXPECT_NEAR(alone.value().step_s, Length(steps.back()), 1e-9) << name << " " << seed;
      EXPECT_NEAR(alone.value().bubble_ratio, BubbleOf(steps.back()), 1e-9) << name << " " << seed;
    }
    const auto planned = PlanStep(schedule, steps, true);
    ASSERT_TRUE(planned.ok()) << planned.error().message;
    std::sort(steps.begin(), steps.end(),
              [](const auto& a, const auto& b) { return Length(a) < Length(b); });
    EXPECT_LT(Length(steps[0]), Length(steps[1]));
    EXPECT_NEAR(planned.value().step_s, Length(steps[1]), 1e-9) << name;
    ASSERT_TRUE(planned.value().timeline.has_value());
    for (const trace::RankTimeline& rank : planned.value().timeline->ranks) {
      EXPECT_EQ(rank.slices.back().action.kind, OpKind::kOptimizer);
      EXPECT_NEAR(rank.slices.back().end_s, planned.value().step_s, 1e-9);
    }
  }
}

TEST(PlannedStepTest, SlicesOfAnotherProgramAreRefused) {
  const Schedule schedule = Lowered("1f1b", 3);
  const std::vector<MeasuredStep> step = Execution(schedule, Jittered(1)).Run();
  EXPECT_FALSE(PlanStep(Lowered("zb-h1", 3), {step}, true).ok());
  EXPECT_FALSE(PlanStep(schedule, {}, true).ok());
}

}  // namespace
}  // namespace penstock::train
