#include "trace/bubble.h"

#include <gtest/gtest.h>

#include "base/json.h"

namespace penstock::trace {
namespace {

using schedule::Action;
using schedule::MakeAction;
using schedule::OpKind;

TEST(AccountOf, PutsEachIdleSecondDownToOneCause) {
  RankRecorder recorder(RankId(0), 16);
  const Action forward = MakeAction(OpKind::kForward, StageId(0), MicroBatchId(0));
  recorder.RecordWait(WaitCause::kCommunication, forward, RankId(1), 0, 1);
  recorder.Record(forward, 0, 1, 2);
  recorder.RecordWait(WaitCause::kImbalance, forward, RankId(1), 2, 2.5);
  recorder.RecordWait(WaitCause::kCommunication, forward, RankId(1), 2.5, 2.75);
  recorder.Record(forward, 0, 3, 4);
  recorder.RecordWait(WaitCause::kBarrier, Action(), RankId(), 4, 5);
  recorder.Record(MakeAction(OpKind::kOptimizer, StageId(0), MicroBatchId(0)), 0, 5, 6);
  recorder.RecordWait(WaitCause::kImbalance, forward, RankId(1), 6, 8);
  const RankAccount account = AccountOf(recorder.totals(), 0, 8);
  EXPECT_DOUBLE_EQ(account.busy_s, 3);
  EXPECT_DOUBLE_EQ(account.idle_s, 5);
  EXPECT_DOUBLE_EQ(account.bubble.fill_s, 1);
  EXPECT_DOUBLE_EQ(account.bubble.imbalance_s, 0.5);
  EXPECT_DOUBLE_EQ(account.bubble.communication_s, 0.25);
  EXPECT_DOUBLE_EQ(account.bubble.barrier_s, 1);
  EXPECT_DOUBLE_EQ(account.bubble.drain_s, 2);
  EXPECT_DOUBLE_EQ(account.bubble.other_s, 0.25);
  EXPECT_DOUBLE_EQ(account.bubble.Sum(), account.idle_s);
}

TEST(AccountOf, CountsMessageSlicesAsIdleForCommunication) {
  RankRecorder recorder(RankId(0), 16);
  recorder.Record(MakeAction(OpKind::kForward, StageId(0), MicroBatchId(0)), 0, 0, 1);
  recorder.Record(MakeAction(OpKind::kSendForward, StageId(0), MicroBatchId(0)), 0, 1, 1.5);
  recorder.Record(MakeAction(OpKind::kForward, StageId(0), MicroBatchId(1)), 0, 1.5, 2.5);
  const RankAccount account = AccountOf(recorder.totals(), 0, 2.5);
  EXPECT_DOUBLE_EQ(account.busy_s, 2);
  EXPECT_DOUBLE_EQ(account.bubble.communication_s, 0.5);
  EXPECT_DOUBLE_EQ(account.bubble.Sum(), account.idle_s);
}

TEST(AccountOf, CallsAWindowWithoutWorkFill) {
  Timeline timeline;
  timeline.begin_s = 1;
  timeline.end_s = 4;
  timeline.ranks.resize(2);
  const Account account = AccountOf(timeline);
  EXPECT_DOUBLE_EQ(account.ranks[0].bubble.fill_s, 3);
  EXPECT_DOUBLE_EQ(account.bubble_ratio, 1);
}

TEST(BubbleJson, HoldsOnlySecondsThatSumToTheIdleTime) {
  Bubble bubble;
  bubble.fill_s = 1;
  bubble.drain_s = 2;
  bubble.barrier_s = 0.5;
  double sum = 0;
  const Json json = BubbleJson(bubble);
  for (const auto& [key, value] : json.items()) {
    EXPECT_TRUE(key.ends_with("_s")) << key;
    sum += value.get<double>();
  }
  EXPECT_DOUBLE_EQ(sum, bubble.Sum());
}

}  // namespace
}  // namespace penstock::trace
