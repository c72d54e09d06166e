#include "plan/layout.h"

#include <gtest/gtest.h>

#include "plan/workload.h"

namespace penstock::plan {
namespace {

TEST(Fixed, ReadsKeysAndRefusesLayersThatDoNotAddUp) {
  const auto fixed = ParseFixed("tp=8,pp=2,layers=30/31,recompute=full,zero=1", 61);
  ASSERT_TRUE(fixed.ok()) << fixed.error().message;
  EXPECT_EQ(fixed->tp, 8);
  EXPECT_EQ(fixed->recompute, Recompute::kFull);
  const auto wrong = ParseFixed("tp=8,pp=8,layers=7/8/8/8/8/8/8/5", 61);
  ASSERT_FALSE(wrong.ok());
  EXPECT_NE(wrong.error().message.find("60 layers"), std::string::npos) << wrong.error().message;
  EXPECT_FALSE(ParseFixed("pp=3,layers=30/31", 61).ok());
}

TEST(Fixed, SuggestsTheNearestKeyAndSchedule) {
  const auto key = ParseFixed("microbatch=2", 4);
  ASSERT_FALSE(key.ok());
  EXPECT_NE(key.error().message.find("'micro_batch'?"), std::string::npos) << key.error().message;
  const auto schedule = ParseFixed("schedule=zb-w", 4);
  ASSERT_FALSE(schedule.ok());
  EXPECT_NE(schedule.error().message.find("'zb-v'?"), std::string::npos);
  EXPECT_FALSE(ParseFixed("tp=0", 4).ok());
  EXPECT_FALSE(ParseFixed("zero=4", 4).ok());
  EXPECT_FALSE(ParseFixed("tp=16777216,pp=4096,dp=16777216,cp=16777216", 4).ok());
  EXPECT_FALSE(ParseFixed("tp", 4).ok());
}

TEST(Layout, CountsDecoderLayersWithoutEmbeddingAndHead) {
  EXPECT_EQ(DecoderLayers({3, 2, 2}), (std::vector<int64_t>{2, 2, 1}));
  EXPECT_EQ(DecoderLayers({7}), (std::vector<int64_t>{5}));
  EXPECT_EQ(DecoderLayers({1, 5, 1}), (std::vector<int64_t>{0, 5, 0}));
}

TEST(Workload, DefaultsReadAndKeysAreSetFromTheCommandLine) {
  const auto w = ReadWorkload("inference", "", {"precision=fp8", "sequences=7", "max_tpot_s=0.05"});
  ASSERT_TRUE(w.ok()) << w.error().message;
  EXPECT_EQ(w->inference.precision, hw::Precision::kFp8);
  EXPECT_EQ(w->inference.sequences, 7);
  EXPECT_EQ(w->inference.max_tpot_s, 0.05);
  const auto t = ReadWorkload("training", "training", {"global_batch=64"});
  ASSERT_TRUE(t.ok()) << t.error().message;
  EXPECT_EQ(t->training.global_batch, 64);
}

TEST(Workload, RefusesUnknownKeysAndImpossibleValues) {
  const auto unknown = ReadWorkload("inference", "", {"prompt_token=3"});
  ASSERT_FALSE(unknown.ok());
  EXPECT_NE(unknown.error().message.find("'prompt_tokens'?"), std::string::npos)
      << unknown.error().message;
  EXPECT_FALSE(ReadWorkload("inference", "", {"prompt_tokens=0"}).ok());
  EXPECT_FALSE(ReadWorkload("inference", "", {"precision=fp61"}).ok());
  EXPECT_FALSE(ReadWorkload("inference", "training", {}).ok());
  EXPECT_FALSE(ReadWorkload("nothing-here", "", {}).ok());
}

TEST(Length, VariationOfALogNormalFromItsPercentiles) {
  const Length one{100, 100, 100, 100};
  EXPECT_EQ(one.variation(), 0);
  const Length wide{120, 100, 100 * 3.602224479, 800};  // sigma 1
  EXPECT_NEAR(wide.variation(), 1.718281828, 1e-6);
}

}  // namespace
}  // namespace penstock::plan
