#include "sim/costs_from_trace.h"

#include <gtest/gtest.h>

#include "schedule/registry.h"
#include "sim/simulate.h"

namespace penstock::sim {
namespace {

TEST(CostsFromTimeline, GivesBackTheCostsThatMadeIt) {
  for (const char* name : {"forward", "1f1b", "zb-v"}) {
    auto schedule = schedule::Generate(name, {3, 6, 0, 0});
    ASSERT_TRUE(schedule.ok());
    cost::CostModel costs = cost::MakeUniformCost(
        {1, 1.5, 0.5, -1, 0.25}, schedule.value().num_stages(), schedule.value().chunks());
    for (size_t s = 0; s < costs.stages.size(); ++s) {
      costs.stages[s].f_s += 0.125 * static_cast<double>(s);
      costs.stages[s].r_s = costs.stages[s].f_s;
    }
    SimOptions options;
    options.timeline = true;
    const auto result = Simulate(schedule.value(), costs, options);
    ASSERT_TRUE(result.ok());
    const auto measured = CostsFromTimeline(*result->timeline);
    ASSERT_TRUE(measured.ok()) << measured.error().message;
    ASSERT_EQ(measured->stages.size(), costs.stages.size());
    for (size_t s = 0; s < costs.stages.size(); ++s)
      EXPECT_NEAR(measured->stages[s].f_s, costs.stages[s].f_s, 1e-9) << name << s;
    EXPECT_NEAR(measured->link.latency_s, 0.25, 1e-9);
    const auto again = Simulate(schedule.value(), measured.value());
    ASSERT_TRUE(again.ok());
    // Where the backward was not split only its sum is known.
    if (std::string(name) == "zb-v") {
      EXPECT_NEAR(measured->stages[0].i_s, costs.stages[0].i_s, 1e-9);
    }
    EXPECT_NEAR(again->makespan_s, result->makespan_s, 1e-9) << name;
  }
}

// Two ranks, one group: F of stage 0, a send, F of stage 1, its result back, a decision, and again.
TEST(CostsFromTimeline, AMeasuredLapIsAsLongAgainWhenSimulated) {
  using schedule::MakeAction;
  using schedule::OpKind;
  using trace::WaitCause;
  trace::Timeline timeline;
  timeline.measured = true;
  timeline.ranks.resize(2);
  const auto f0 = MakeAction(OpKind::kForward, StageId(0), MicroBatchId(0));
  const auto f1 = MakeAction(OpKind::kForward, StageId(1), MicroBatchId(0));
  const auto send = MakeAction(OpKind::kSendForward, StageId(0), MicroBatchId(0));
  const auto recv = MakeAction(OpKind::kRecvForward, StageId(1), MicroBatchId(0));
  trace::RankTimeline& first = timeline.ranks[0];
  trace::RankTimeline& second = timeline.ranks[1];
  for (int lap = 0; lap < 5; ++lap) {
    const double t = 22.0 * lap;
    first.slices.push_back({f0, lap, 1, t, t + 10, 0});
    first.slices.push_back({send, lap, 1, t + 10, t + 11, 8});
    first.waits.push_back({f1, RankId(1), WaitCause::kImbalance, t + 11, t + 20});
    first.waits.push_back({f1, RankId(1), WaitCause::kCommunication, t + 20, t + 21});
    second.waits.push_back({f0, RankId(0), WaitCause::kImbalance, t - 1.5, t});  // for the plan
    second.waits.push_back({send, RankId(0), WaitCause::kImbalance, t, t + 10});
    second.waits.push_back({send, RankId(0), WaitCause::kCommunication, t + 10, t + 11.5});
    second.slices.push_back({recv, lap, 1, t + 11.5, t + 12, 8});
    second.slices.push_back({f1, lap, 1, t + 12, t + 20, 0});
    second.waits.push_back({f1, RankId(0), WaitCause::kCommunication, t + 20, t + 20.5});
    second.received.push_back({send, RankId(0), RankId(1), lap, t + 10, t + 11.5, 8});
  }
  const auto costs = CostsFromTimeline(timeline);
  ASSERT_TRUE(costs.ok()) << costs.error().message;
  EXPECT_NEAR(costs->stages[0].f_s, 1 + 10 + 1, 1e-9);     // decide, compute, send
  EXPECT_NEAR(costs->stages[1].f_s, 0.5 + 8 + 0.5, 1e-9);  // copy, compute, send the result
  EXPECT_NEAR(costs->links.at({0, 1}).latency_s, 0.5, 1e-9);
  EXPECT_NEAR(costs->links.at({1, 0}).latency_s, 0.5, 1e-9);
  const auto ring = schedule::Generate("decode-ring", {2, 1, 0, 0});
  ASSERT_TRUE(ring.ok());
  const auto lap = Simulate(ring.value(), costs.value());
  ASSERT_TRUE(lap.ok()) << lap.error().message;
  EXPECT_NEAR(lap->period_s, 22, 1e-9);
}

TEST(CostsFromTimeline, NamesTheStageWithoutForward) {
  trace::Timeline timeline;
  EXPECT_FALSE(CostsFromTimeline(timeline).ok());
  timeline.ranks.resize(1);
  timeline.ranks[0].slices.push_back(
      {schedule::MakeAction(schedule::OpKind::kForward, StageId(1), MicroBatchId(0)), 0, 0, 0, 1,
       0});
  const auto costs = CostsFromTimeline(timeline);
  ASSERT_FALSE(costs.ok());
  EXPECT_NE(costs.error().message.find("stage 0"), std::string::npos);
}

}  // namespace
}  // namespace penstock::sim
