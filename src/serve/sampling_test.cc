#include "serve/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "serve/head_note.h"

namespace penstock::serve {
namespace {

const std::vector<float> kLogits = {1.0F, 3.0F, 2.0F, -1.0F, 3.0F};

TEST(Sampling, GreedyTakesTheLowestIdAmongEquals) {
  EXPECT_EQ(Sample(kLogits, {}, {}, 0, 0).token, 1);
}

TEST(Sampling, DrawsFollowTheDistribution) {
  SamplingParams params;
  params.temperature = 1.0F;
  params.seed = 5;
  std::map<int32_t, int> counts;
  constexpr int kDraws = 20000;
  for (int i = 0; i < kDraws; ++i) {
    ++counts[Sample(kLogits, params, {}, 0, i).token];
  }
  double sum = 0;
  for (const float logit : kLogits) {
    sum += std::exp(logit);
  }
  for (int32_t token = 0; token < 5; ++token) {
    const double p = std::exp(kLogits[static_cast<size_t>(token)]) / sum;
    EXPECT_NEAR(counts[token], p * kDraws, 4 * std::sqrt(p * (1 - p) * kDraws) + 1) << token;
  }
}

TEST(Sampling, DrawsDependOnSeedSequenceAndPositionOnly) {
  SamplingParams params;
  params.temperature = 1.0F;
  int differ = 0;
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(Sample(kLogits, params, {}, 3, i).token, Sample(kLogits, params, {}, 3, i).token);
    differ +=
        Sample(kLogits, params, {}, 3, i).token != Sample(kLogits, params, {}, 4, i).token ? 1 : 0;
  }
  EXPECT_GT(differ, 20);
}

TEST(Sampling, TopKTopPAndMinPCut) {
  SamplingParams params;
  params.temperature = 1.0F;
  params.top_k = 2;
  for (int i = 0; i < 200; ++i) {
    const int32_t token = Sample(kLogits, params, {}, 0, i).token;
    EXPECT_TRUE(token == 1 || token == 4);
  }
  params.top_k = 0;
  params.top_p = 0.3F;
  for (int i = 0; i < 200; ++i) {
    EXPECT_EQ(Sample(kLogits, params, {}, 0, i).token, 1);
  }
  params.top_p = 1;
  params.min_p = 0.5F;
  for (int i = 0; i < 200; ++i) {
    const int32_t token = Sample(kLogits, params, {}, 0, i).token;
    EXPECT_TRUE(token == 1 || token == 4);
  }
}

TEST(Sampling, PenaltiesActOnTokensThatOccurred) {
  SamplingParams params;
  params.repetition_penalty = 2.0F;
  const std::vector<int32_t> history = {1, 4};
  EXPECT_EQ(Sample(kLogits, params, history, 0, 0).token, 2);
  params.repetition_penalty = 1.0F;
  params.presence_penalty = 5.0F;
  EXPECT_EQ(Sample(kLogits, params, history, 0, 0).token, 2);
}

TEST(Sampling, LogprobsAreOfTheModelAndSorted) {
  SamplingParams params;
  params.logprobs = 3;
  const Sampled sampled = Sample(kLogits, params, {}, 0, 0);
  ASSERT_EQ(sampled.top.size(), 3U);
  EXPECT_EQ(sampled.top[0].token, 1);
  EXPECT_EQ(sampled.top[1].token, 4);
  EXPECT_EQ(sampled.top[2].token, 2);
  EXPECT_NEAR(sampled.logprob, LogProbability(kLogits, 1), 1e-6);
}

TEST(Sampling, RefusesImpossibleParameters) {
  SamplingParams params;
  params.top_p = 0;
  EXPECT_FALSE(CheckSampling(params).ok());
  params = {};
  params.temperature = std::nanf("");
  EXPECT_FALSE(CheckSampling(params).ok());
}

TEST(HeadNote, NotesAndResultsSurviveTheRoundTrip) {
  HeadNote note;
  note.admissions.push_back({3, {}, {1, 2, 3}});
  note.targets = {5, -1};
  const auto back = DecodeNote(EncodeNote(note));
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->admissions[0].history, note.admissions[0].history);
  EXPECT_EQ(back->targets, note.targets);
  std::vector<RowResult> rows(2);
  rows[1].sampled.top = {{4, -0.5F}};
  rows[1].logits = {1, 2};
  const auto bytes = EncodeResults(rows);
  const auto decoded = DecodeResults(bytes);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded.value()[1].logits, rows[1].logits);
  for (size_t cut = 0; cut < bytes.size(); ++cut) {
    EXPECT_FALSE(DecodeResults(std::span(bytes).first(cut)).ok());
  }
}

}  // namespace
}  // namespace penstock::serve
