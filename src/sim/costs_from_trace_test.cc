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
