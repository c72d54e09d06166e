#include "trace/compare.h"

#include <gtest/gtest.h>

#include "base/json.h"
#include "trace/activations.h"
#include "trace/critical_path.h"

namespace penstock::trace {
namespace {

using schedule::MakeAction;
using schedule::OpKind;

schedule::Action Act(OpKind kind, int stage, int micro_batch) {
  return MakeAction(kind, StageId(stage), MicroBatchId(micro_batch));
}

// Two ranks run F of two micro-batches, `steps` times, each F `seconds` long.
Timeline Forwards(const char* name, double seconds, int steps) {
  std::vector<RankTimeline> parts;
  for (int r = 0; r < 2; ++r) {
    RankRecorder recorder(RankId(r), 100);
    double now = r * seconds;
    for (int t = 0; t < steps; ++t) {
      for (int j = 0; j < 2; ++j) {
        recorder.Record(Act(OpKind::kForward, r, j), t, now, now + seconds);
        now += seconds;
      }
    }
    parts.push_back(recorder.Take());
  }
  return MergeRanks(name, std::move(parts));
}

TEST(Compare, TakesTheMedianOverStepsAndSumsPerKindAndRank) {
  const Timeline planned = Forwards("plan", 1, 1);
  Timeline measured = Forwards("run", 1.5, 3);
  measured.ranks[0].slices[0].end_s = 0.1;  // one odd action does not move the median
  const Comparison c = Compare(planned, measured);
  EXPECT_EQ(c.planned_steps, 1);
  EXPECT_EQ(c.measured_steps, 3);
  ASSERT_EQ(c.actions.size(), 4U);
  EXPECT_EQ(c.actions[0].action, "0F0");
  EXPECT_DOUBLE_EQ(c.actions[0].planned_s, 1);
  EXPECT_DOUBLE_EQ(c.actions[0].measured_s, 1.5);
  EXPECT_EQ(c.actions[0].count, 3);
  ASSERT_EQ(c.kinds.size(), 2U);
  EXPECT_EQ(c.kinds[1].planned_count, 2);
  EXPECT_EQ(c.kinds[1].measured_count, 2);
  EXPECT_DOUBLE_EQ(c.kinds[1].planned_s, 2);
  EXPECT_DOUBLE_EQ(c.kinds[1].measured_s, 3);
  EXPECT_DOUBLE_EQ(c.planned_step_s, 3);
  EXPECT_DOUBLE_EQ(c.measured_step_s, (1.5 + 9) / 3);
  EXPECT_TRUE(c.only_planned.empty());
  const Json json = ComparisonJson(c);
  EXPECT_DOUBLE_EQ(json["kinds"][1]["ratio"].get<double>(), 1.5);
  EXPECT_NE(ComparisonText(c).find("+50.0 %"), std::string::npos);
}

// Three steps of F and B on one rank, far apart and of different lengths; before each B a wait.
TEST(Compare, TakesTheMedianStepOfATraining) {
  RankRecorder recorder(RankId(0), 100);
  for (int t = 0; t < 3; ++t) {
    const double begin = 100.0 * t;
    const double seconds = t == 1 ? 5 : 1 + t;  // 1, 5, 3
    recorder.Record(Act(OpKind::kForward, 0, 0), t + 7, begin, begin + seconds);
    recorder.RecordWait(WaitCause::kImbalance, Act(OpKind::kBackward, 1, 0), RankId(1),
                        begin + seconds, begin + seconds + 0.5);
    recorder.Record(Act(OpKind::kBackward, 0, 0), t + 7, begin + seconds + 0.5,
                    begin + 3 * seconds + 0.5);
  }
  const Timeline run = MergeRanks("run", {recorder.Take()});
  const Comparison c = Compare(run, run);
  EXPECT_EQ(c.measured_steps, 3);
  EXPECT_EQ(c.measured_median_step, 9);
  EXPECT_DOUBLE_EQ(c.measured_step_s, 9.5);
  ASSERT_EQ(c.kinds.size(), 2U);
  EXPECT_DOUBLE_EQ(c.kinds[0].measured_s, 3);
  EXPECT_EQ(c.kinds[0].measured_count, 1);
  ASSERT_EQ(c.measured_account.ranks.size(), 1U);
  EXPECT_DOUBLE_EQ(c.measured_account.ranks[0].busy_s, 9);
  EXPECT_DOUBLE_EQ(c.measured_account.ranks[0].bubble.imbalance_s, 0.5);
  EXPECT_NEAR(c.measured_account.ranks[0].bubble.other_s, 0, 1e-12);
  EXPECT_NE(ComparisonText(c).find("3 steps, the median one is step 9"), std::string::npos)
      << ComparisonText(c);
}

TEST(Compare, ListsActionsThatOnlyOneSideHas) {
  Timeline planned = Forwards("plan", 1, 1);
  Timeline measured = Forwards("run", 1, 1);
  planned.ranks[0].slices.push_back({Act(OpKind::kBackward, 0, 0), 0, 0, 4, 5, 0});
  measured.ranks.emplace_back();
  measured.ranks[2].slices.push_back({Act(OpKind::kForward, 2, 0), 0, 0, 4, 5, 0});
  const Comparison c = Compare(planned, measured);
  ASSERT_EQ(c.only_planned.size(), 1U);
  EXPECT_EQ(c.only_planned[0], "rank 0: 0B0");
  ASSERT_EQ(c.only_measured.size(), 1U);
  EXPECT_EQ(c.only_measured[0], "rank 2: 2F0");
}

TEST(CriticalPath, CrossesToTheRankThatAWaitNames) {
  RankRecorder a(RankId(0), 10);
  RankRecorder b(RankId(1), 10);
  a.Record(Act(OpKind::kForward, 0, 0), 0, 0, 1);
  a.Record(Act(OpKind::kForward, 0, 1), 0, 1, 3);
  b.RecordWait(WaitCause::kImbalance, Act(OpKind::kForward, 0, 0), RankId(0), 0, 1);
  b.RecordWait(WaitCause::kCommunication, Act(OpKind::kForward, 0, 0), RankId(0), 1, 1.25);
  b.Record(Act(OpKind::kForward, 1, 0), 0, 1.25, 2);
  b.RecordWait(WaitCause::kImbalance, Act(OpKind::kForward, 0, 1), RankId(0), 2, 3);
  b.RecordWait(WaitCause::kCommunication, Act(OpKind::kForward, 0, 1), RankId(0), 3, 3.25);
  b.Record(Act(OpKind::kForward, 1, 1), 0, 3.25, 4);
  std::vector<RankTimeline> parts;
  parts.push_back(a.Take());
  parts.push_back(b.Take());
  const Timeline timeline = MergeRanks("t", std::move(parts));
  const std::vector<PathStep> path = CriticalPath(timeline);
  ASSERT_EQ(path.size(), 3U);
  EXPECT_EQ(path[0].slice.action, Act(OpKind::kForward, 0, 0));
  EXPECT_EQ(path[1].slice.action, Act(OpKind::kForward, 0, 1));
  EXPECT_EQ(path[2].slice.action, Act(OpKind::kForward, 1, 1));
  EXPECT_TRUE(path[2].hop);
  EXPECT_DOUBLE_EQ(path[2].lead_s, 0.25);
}

TEST(AddActivationCounters, RisesWithForwardsAndFallsWithBackwards) {
  schedule::Schedule schedule;
  schedule.placement = schedule::Placement::Loop(1, 2);
  schedule.micro_batches = 1;
  RankRecorder recorder(RankId(0), 10);
  recorder.Record(Act(OpKind::kForward, 0, 0), 0, 0, 1);
  recorder.Record(Act(OpKind::kForward, 1, 0), 0, 1, 2);
  recorder.Record(Act(OpKind::kBackwardInput, 1, 0), 0, 2, 3);
  recorder.Record(Act(OpKind::kBackward, 0, 0), 0, 3, 4);
  recorder.Record(Act(OpKind::kBackwardWeight, 1, 0), 0, 4, 5);
  std::vector<RankTimeline> parts;
  parts.push_back(recorder.Take());
  Timeline timeline = MergeRanks("t", std::move(parts));
  AddActivationCounters(timeline, schedule);
  const std::vector<Counter::Sample> wanted = {{0, 0.5}, {1, 1}, {4, 0.5}, {5, 0}};
  EXPECT_EQ(timeline.ranks[0].counters.at(0).samples, wanted);
}

}  // namespace
}  // namespace penstock::trace
