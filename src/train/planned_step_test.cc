#include "train/planned_step.h"

#include <gtest/gtest.h>

#include "schedule/passes.h"
#include "schedule/registry.h"

namespace penstock::train {
namespace {

using schedule::OpKind;

constexpr int kSteps = 3;

// Three steps of a rank without gaps: F takes 1 s, B 2 s, the sum of gradients `reduce_s`, the
// optimizer 0.5 s; the second step met other work.
trace::RankTimeline Measured(const schedule::Schedule& schedule, int rank, double reduce_s) {
  trace::RankTimeline part;
  double now_s = 0;
  for (int step = 0; step < kSteps; ++step) {
    const double slow = step == 1 ? 3 : 1;
    const auto record = [&](const schedule::Action& action, double seconds) {
      part.slices.push_back({action, 0, 0, now_s, now_s + slow * seconds, 0});
      now_s += slow * seconds;
    };
    for (const schedule::Action& action : schedule.ranks[static_cast<size_t>(rank)]) {
      if (action.kind == OpKind::kOptimizer) {
        record(schedule::MakeAction(OpKind::kReduceGrad, action.stage, MicroBatchId(0)), reduce_s);
        record(action, 0.5);
      } else {
        record(action, action.kind == OpKind::kForward ? 1 : 2);
      }
    }
  }
  return part;
}

TEST(PlannedStepTest, IsSimulatedFromMediansAndEndsWithTheSumsAndTheOptimizer) {
  const auto compute = schedule::Generate("1f1b", {2, 2, 0, 0});
  ASSERT_TRUE(compute.ok());
  const auto schedule = schedule::AddStepEnd(compute.value(), {.reduce = false, .optimizer = true});
  ASSERT_TRUE(schedule.ok());
  // Rank 1 comes first and waits for rank 0 in the sum.
  const auto planned = PlanStep(
      schedule.value(), {Measured(schedule.value(), 0, 0.25), Measured(schedule.value(), 1, 1.25)},
      kSteps, true);
  ASSERT_TRUE(planned.ok()) << planned.error().message;
  // (m + p - 1) (F + B), then the sum and the optimizer.
  EXPECT_NEAR(planned.value().step_s, 9 + 0.25 + 0.5, 1e-9);
  // Each rank works for 2 F, 2 B and the optimizer.
  EXPECT_NEAR(planned.value().bubble_ratio, 1 - 6.5 / 9.75, 1e-9);
  ASSERT_TRUE(planned.value().timeline.has_value());
  for (const trace::RankTimeline& rank : planned.value().timeline->ranks) {
    EXPECT_EQ(rank.slices.back().action.kind, OpKind::kOptimizer);
    EXPECT_NEAR(rank.slices.back().end_s, planned.value().step_s, 1e-9)
        << "starts once all are there";
  }
}

}  // namespace
}  // namespace penstock::train
