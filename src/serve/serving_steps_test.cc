// The engine's plans are the steps of the rules that the planner simulates (plan/serving_steps.h),
// with the tokens of their rows.

#include "plan/serving_steps.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "serve/decider.h"

namespace penstock::serve {
namespace {

struct Case {
  int32_t groups;
  int64_t chunk;
  double attention_share;
  std::vector<plan::Request> requests;
};

// Runs both until the end, results taken when asked for, and compares every micro-batch.
void ExpectSameSteps(const Case& c) {
  const auto per_group =
      (static_cast<int64_t>(c.requests.size()) + c.groups - 1) / static_cast<int64_t>(c.groups);
  DeciderConfig config;
  config.rules = {c.groups, c.chunk + per_group, c.chunk, c.attention_share};
  config.context = 4096;
  Decider decider(config, BlockManager({{0}, {0}}, {100000}, config.rules.max_rows));
  plan::ServingSteps steps(config.rules);
  for (const plan::Request& request : c.requests) {
    std::vector<int32_t> prompt(static_cast<size_t>(request.prompt_tokens));
    std::iota(prompt.begin(), prompt.end(), 0);  // a token says its position
    ASSERT_TRUE(decider.Admit(prompt, request.output_tokens).ok());
    steps.Add(request);
  }
  std::vector<std::pair<runtime::StepPlan, plan::Step>> live;
  int64_t compared = 0;
  for (;;) {
    auto next = decider.Next();
    plan::Step step;
    int64_t awaited = -1;
    const auto kind = steps.Advance(step, awaited);
    if (std::holds_alternative<AllDone>(next)) {
      ASSERT_EQ(kind, plan::ServingSteps::Next::kDone);
      break;
    }
    if (const auto* need = std::get_if<NeedResult>(&next)) {
      ASSERT_EQ(kind, plan::ServingSteps::Next::kNeedResult);
      ASSERT_EQ(awaited, need->step);
      const auto it = std::find_if(live.begin(), live.end(),
                                   [&](const auto& pair) { return pair.first.step == need->step; });
      ASSERT_NE(it, live.end());
      decider.OnResult(need->step);
      for (const runtime::SequenceSlice& slice : it->first.slices) {
        if (slice.selected() > 0) {
          const auto position = static_cast<int32_t>(slice.first_position + slice.rows());
          decider.OnToken(slice.sequence, position, false);
        }
      }
      steps.OnResult(it->second.number);
      for (const plan::StepSlice& slice : it->second.slices) {
        if (slice.complete) {
          EXPECT_TRUE(steps.OnToken(slice.sequence, false));
        }
      }
      live.erase(it);
      continue;
    }
    const auto& plan = std::get<runtime::StepPlan>(next);
    ASSERT_EQ(kind, plan::ServingSteps::Next::kStep);
    ASSERT_EQ(step.number, plan.step);
    ASSERT_EQ(step.micro_batch, plan.micro_batch);
    ASSERT_EQ(step.slices.size(), plan.slices.size());
    for (size_t i = 0; i < step.slices.size(); ++i) {
      ASSERT_EQ(step.slices[i].sequence, plan.slices[i].sequence);
      ASSERT_EQ(step.slices[i].first, plan.slices[i].first_position);
      ASSERT_EQ(step.slices[i].rows, plan.slices[i].rows());
      ASSERT_EQ(step.slices[i].selected, plan.slices[i].selected());
      for (int64_t row = 0; row < plan.slices[i].rows(); ++row) {
        ASSERT_EQ(plan.slices[i].tokens[static_cast<size_t>(row)], step.slices[i].first + row);
      }
    }
    ++compared;
    live.emplace_back(plan, step);
  }
  EXPECT_GT(compared, 0);
}

TEST(ServingSteps, AreTheDecidersForEveryNumberOfGroupsAndChunks) {
  for (const int32_t groups : {1, 2, 3, 4}) {
    for (const int64_t chunk : {7, 32, 512}) {
      for (const double share : {0.0, 0.002}) {
        for (const size_t sequences : {1, 2, 5, 16}) {
          Case c{groups, chunk, share, {}};
          for (size_t s = 0; s < sequences; ++s) {
            c.requests.push_back({64, 6});
          }
          ExpectSameSteps(c);
        }
      }
    }
  }
}

TEST(ServingSteps, AreTheDecidersForPromptsOfDifferentLengths) {
  ExpectSameSteps({3, 40, 0.001, {{1, 1}, {200, 3}, {33, 9}, {7, 2}, {90, 1}}});
  ExpectSameSteps({2, 16, 0.0, {{100, 20}, {1, 20}, {1, 1}}});
}

}  // namespace
}  // namespace penstock::serve
