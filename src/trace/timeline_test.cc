#include "trace/timeline.h"

#include <gtest/gtest.h>

namespace penstock::trace {
namespace {

using schedule::MakeAction;
using schedule::OpKind;

schedule::Action Forward(int stage, int micro_batch) {
  return MakeAction(OpKind::kForward, StageId(stage), MicroBatchId(micro_batch));
}

TEST(RankRecorder, KeepsSlicesWaitsAndMessagesInOrder) {
  RankRecorder recorder(RankId(1), 8);
  recorder.RecordWait(WaitCause::kImbalance, Forward(0, 0), RankId(0), 0, 1);
  recorder.Record(Forward(1, 0), 0, 1, 2, 16, 100);
  recorder.RecordMessage(MakeAction(OpKind::kSendForward, StageId(0), MicroBatchId(0)), RankId(0),
                         0, 0.5, 1, 64);
  recorder.RecordCounter("activations", "bytes", 1, 10);
  recorder.RecordCounter("activations", "bytes", 2, 0);
  const RankTimeline rank = recorder.Take();
  ASSERT_EQ(rank.slices.size(), 1U);
  EXPECT_EQ(rank.slices[0].rows, 16);
  ASSERT_EQ(rank.waits.size(), 1U);
  EXPECT_EQ(rank.waits[0].awaited_rank, RankId(0));
  ASSERT_EQ(rank.received.size(), 1U);
  EXPECT_EQ(rank.received[0].to, RankId(1));
  ASSERT_EQ(rank.counters.size(), 1U);
  EXPECT_EQ(rank.counters[0].samples.size(), 2U);
  EXPECT_TRUE(recorder.timeline().slices.empty());
  EXPECT_EQ(recorder.timeline().name, "rank 1");
}

TEST(RankRecorder, KeepsTotalsBeyondItsCapacity) {
  RankRecorder recorder(RankId(0), 2);
  for (int i = 0; i < 10; ++i) {
    recorder.RecordWait(WaitCause::kCommunication, Forward(0, i), RankId(1), 2 * i, 2 * i + 1);
    recorder.Record(Forward(1, i), 0, 2 * i + 1, 2 * i + 2);
  }
  EXPECT_EQ(recorder.timeline().slices.size(), 2U);
  EXPECT_EQ(recorder.timeline().dropped, 16);
  EXPECT_DOUBLE_EQ(recorder.totals().busy_s(), 10);
  // The first wait lies before the first work: it is part of the fill.
  EXPECT_DOUBLE_EQ(recorder.totals().idle_s(WaitCause::kCommunication), 9);
}

TEST(RankRecorder, SplitsAMessageWaitWhereTheSenderHandedItOver) {
  RankRecorder recorder(RankId(0), 8);
  recorder.Record(Forward(0, 0), 0, 0, 1);
  recorder.RecordMessageWait(Forward(1, 0), RankId(1), 1, 4, 3);
  recorder.Record(Forward(0, 1), 0, 4, 5);
  EXPECT_DOUBLE_EQ(recorder.totals().idle_s(WaitCause::kImbalance), 2);
  EXPECT_DOUBLE_EQ(recorder.totals().idle_s(WaitCause::kCommunication), 1);
}

TEST(MergeRanks, TakesTheWindowFromAllRanksAndShiftsClocks) {
  RankRecorder a(RankId(0), 4);
  RankRecorder b(RankId(1), 4);
  a.Record(Forward(0, 0), 0, 10, 11);
  b.Record(Forward(1, 0), 0, 2, 3);
  std::vector<RankTimeline> parts;
  parts.push_back(a.Take());
  parts.push_back(b.Take());
  const Timeline timeline = MergeRanks("run", std::move(parts), {0, 9});
  EXPECT_DOUBLE_EQ(timeline.begin_s, 10);
  EXPECT_DOUBLE_EQ(timeline.end_s, 12);
  EXPECT_EQ(timeline.CountSlices(), 2);
}

TEST(TotalsOf, EqualsWhatTheRecorderCounted) {
  RankRecorder recorder(RankId(0), 100);
  double now = 0;
  for (int i = 0; i < 20; ++i) {
    recorder.RecordWait(static_cast<WaitCause>(i % kWaitCauseCount), Forward(0, i), RankId(1), now,
                        now + 0.25 * i);
    now += 0.25 * i + 0.125;
    recorder.Record(Forward(1, i), 0, now, now + 1);
    now += 1;
  }
  const RankTotals kept = recorder.totals();
  const RankTotals again = TotalsOf(recorder.timeline());
  EXPECT_DOUBLE_EQ(again.busy_s(), kept.busy_s());
  for (int c = 0; c < kWaitCauseCount; ++c) {
    EXPECT_DOUBLE_EQ(again.idle_s(static_cast<WaitCause>(c)),
                     kept.idle_s(static_cast<WaitCause>(c)));
  }
}

TEST(TotalsOf, CountsAWaitThatRoundingMadeEndTooLate) {
  RankTimeline rank;
  rank.slices = {{Forward(0, 0), 0, 0, 0, 1, 0}, {Forward(0, 1), 0, 0, 2, 3, 0}};
  rank.waits = {{Forward(1, 0), RankId(1), WaitCause::kImbalance, 1, 2 + 1e-10}};
  EXPECT_NEAR(TotalsOf(rank).idle_s(WaitCause::kImbalance), 1, 1e-9);
}

}  // namespace
}  // namespace penstock::trace
