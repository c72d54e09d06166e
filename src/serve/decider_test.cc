#include "serve/decider.h"

#include <gtest/gtest.h>

#include <map>

namespace penstock::serve {
namespace {

using runtime::StepPlan;

runtime::StatePools OnePool(int64_t window = 0) {
  return {{window}, {0}};
}

DeciderConfig Config(int32_t groups, int64_t chunk) {
  DeciderConfig config;
  config.rules.groups = groups;
  config.rules.prefill_chunk = chunk;
  config.rules.max_rows = chunk + 8;
  config.context = 512;
  return config;
}

// Runs the decider against a model that answers with position-dependent tokens; checks what a stage
// would check.
struct Player {
  explicit Player(Decider& d) : decider(d) {}

  void Play(int delay) {
    std::vector<StepPlan> in_flight;
    while (true) {
      auto next = decider.Next();
      if (std::holds_alternative<AllDone>(next)) {
        EXPECT_TRUE(in_flight.empty());
        return;
      }
      if (auto* plan = std::get_if<StepPlan>(&next)) {
        Check(*plan);
        in_flight.push_back(*plan);
        most_in_flight = std::max(most_in_flight, static_cast<int>(in_flight.size()));
        continue;
      }
      const int64_t wanted = std::get<NeedResult>(next).step;
      (void)delay;
      while (!in_flight.empty() && in_flight.front().step <= wanted) {
        Answer(in_flight.front());
        in_flight.erase(in_flight.begin());
      }
    }
  }

  void Check(const StepPlan& plan) {
    EXPECT_EQ(plan.step, steps++);
    EXPECT_GT(plan.rows(), 0);
    for (const auto& slice : plan.slices) {
      EXPECT_EQ(slice.first_position, computed[slice.sequence]);
      computed[slice.sequence] += slice.rows();
      EXPECT_GE(static_cast<int64_t>(slice.blocks[0].size()) * runtime::kBlockTokens,
                computed[slice.sequence]);
      if (slice.rows() == 1 && slice.first_position > 0 && produced[slice.sequence] > 0) {
        EXPECT_EQ(plan.micro_batch, slice.sequence % groups);
      }
      chunks.push_back(slice.rows());
    }
  }

  void Answer(const StepPlan& plan) {
    decider.OnResult(plan.step);
    for (const auto& slice : plan.slices) {
      if (slice.select == runtime::Select::kLast) {
        ++produced[slice.sequence];
        decider.OnToken(slice.sequence, 7, false);
      }
    }
  }

  Decider& decider;
  int32_t groups = 1;
  int64_t steps = 0;
  int most_in_flight = 0;
  std::map<int32_t, int64_t> computed;
  std::map<int32_t, int64_t> produced;
  std::vector<int64_t> chunks;
};

TEST(Decider, ComputesEveryPositionOnceAndProducesWhatWasAsked) {
  for (const int32_t groups : {1, 2, 3, 5}) {
    for (const int sequences : {1, 2, 7}) {
      Decider decider(Config(groups, 16), BlockManager(OnePool(), {1000}, 24));
      for (int i = 0; i < sequences; ++i) {
        const std::vector<int32_t> prompt(static_cast<size_t>(1 + i * 13), i);
        ASSERT_TRUE(decider.Admit(prompt, 5 + i).ok());
      }
      Player player(decider);
      player.groups = groups;
      player.Play(0);
      for (int i = 0; i < sequences; ++i) {
        EXPECT_EQ(player.produced[i], 5 + i);
        EXPECT_EQ(player.computed[i], 1 + i * 13 + 5 + i - 1);  // the last token is not fed back
        EXPECT_TRUE(decider.finished(i));
      }
    }
  }
}

TEST(Decider, KeepsAsManyDecodePlansInFlightAsThereAreGroups) {
  Decider decider(Config(3, 64), BlockManager(OnePool(), {1000}, 72));
  for (int i = 0; i < 6; ++i) {
    ASSERT_TRUE(decider.Admit(std::vector<int32_t>{1}, 20).ok());
  }
  Player player(decider);
  player.groups = 3;
  player.Play(0);
  EXPECT_EQ(player.most_in_flight, 3);
}

TEST(Decider, ShortensLaterChunksWhenAttentionCosts) {
  DeciderConfig config = Config(1, 100);
  config.rules.attention_share = 0.01;
  Decider decider(config, BlockManager(OnePool(), {1000}, 108));
  ASSERT_TRUE(decider.Admit(std::vector<int32_t>(400, 1), 1).ok());
  Player player(decider);
  player.Play(0);
  ASSERT_GE(player.chunks.size(), 5U);
  EXPECT_EQ(player.chunks[0], 100);
  EXPECT_LT(player.chunks[1], 80);
  EXPECT_LT(player.chunks[3], player.chunks[1]);
}

TEST(Decider, RefusesPromptsBeyondTheContextWithBothNumbers) {
  Decider decider(Config(1, 16), BlockManager(OnePool(), {1000}, 24));
  const auto result = decider.Admit(std::vector<int32_t>(510, 1), 5);
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.error().message.find("510"), std::string::npos);
  EXPECT_NE(result.error().message.find("512"), std::string::npos);
  EXPECT_FALSE(decider.Admit({}, 5).ok());
}

TEST(Decider, AStoppedSequenceProducesNothingMore) {
  Decider decider(Config(2, 16), BlockManager(OnePool(), {1000}, 24));
  ASSERT_TRUE(decider.Admit(std::vector<int32_t>{1, 2, 3}, 50).ok());
  auto plan = std::get<StepPlan>(decider.Next());
  decider.OnResult(plan.step);
  decider.OnToken(0, 9, true);
  EXPECT_TRUE(std::holds_alternative<AllDone>(decider.Next()));
  EXPECT_EQ(decider.length(0), 3);
  ASSERT_TRUE(decider.Continue(0, std::vector<int32_t>{4, 5}, 1).ok());
  plan = std::get<StepPlan>(decider.Next());
  EXPECT_EQ(plan.slices[0].first_position, 3);
  EXPECT_EQ(plan.slices[0].rows(), 2);
}

TEST(BlockManager, WindowedPoolsGiveOldPagesBack) {
  BlockManager blocks(runtime::StatePools{{0, 64}, {0, 1}}, {100, 4}, 32);
  ASSERT_TRUE(blocks.Reserve(0, 3000).ok());
  for (int64_t position = 0; position < 3000; position += 25) {
    blocks.Extend(0, position, std::min<int64_t>(25, 3000 - position));
    const auto& tables = blocks.tables(0);
    const int64_t oldest = std::max<int64_t>(0, position - 63) / runtime::kBlockTokens;
    for (size_t i = 0; i < tables[1].size(); ++i) {
      EXPECT_EQ(tables[1][i] >= 0, static_cast<int64_t>(i) >= oldest);
    }
  }
  EXPECT_EQ(blocks.free_blocks(1), 0);
  EXPECT_FALSE(blocks.Reserve(1, 1000).ok());
  blocks.Release(0);
  EXPECT_EQ(blocks.free_blocks(1), 4);
  EXPECT_EQ(blocks.free_blocks(0), 100);
}

}  // namespace
}  // namespace penstock::serve
