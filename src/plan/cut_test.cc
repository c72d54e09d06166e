#include "plan/cut.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/rng.h"

namespace penstock::plan {
namespace {

double Draw(uint32_t& counter) {
  return UniformDouble(Philox({counter++, 0, 0, 0}, 7)[0], Philox({counter, 1, 0, 0}, 7)[1]);
}

TEST(FindCut, EqualsEveryCutTriedOnSmallProblems) {
  uint32_t counter = 0;
  int checked = 0;
  for (int trial = 0; trial < 400; ++trial) {
    const int units = 2 + static_cast<int>(Draw(counter) * 8);
    const int stages = 1 + static_cast<int>(Draw(counter) * 4);
    std::vector<double> seconds(units), fixed(units), live(units), times(stages);
    for (int i = 0; i < units; ++i) {
      seconds[i] = 0.1 + Draw(counter) * (trial % 3 == 0 ? 0.001 : 3);
      fixed[i] = 1 + Draw(counter);
      live[i] = 0.2 * Draw(counter);
    }
    for (int s = 0; s < stages; ++s) {
      times[s] = stages - s;
    }
    const double capacity = trial % 2 == 0 ? 0 : 2.4 * units / stages * (0.6 + Draw(counter));
    const CutProblem problem{seconds, fixed, live, times, capacity, stages};
    const auto fast = FindCut(problem);
    const auto slow = FindCutExhaustively(problem);
    ASSERT_EQ(fast.has_value(), slow.has_value()) << trial;
    if (fast) {
      ++checked;
      EXPECT_NEAR(fast->bottleneck_s, slow->bottleneck_s, 1e-6 * slow->bottleneck_s) << trial;
      EXPECT_EQ(std::accumulate(fast->units.begin(), fast->units.end(), 0), units);
    }
  }
  EXPECT_GT(checked, 200);
}

TEST(FindCut, WeighsWhatCrossesAsEveryCutTriedDoes) {
  uint32_t counter = 1000;
  int checked = 0;
  for (int trial = 0; trial < 200; ++trial) {
    const int units = 4 + static_cast<int>(Draw(counter) * 6);
    const int stages = 2 + static_cast<int>(Draw(counter) * 3);
    std::vector<double> seconds(units), fixed(units), live(units), times(stages), bytes(units + 1);
    for (int i = 0; i < units; ++i) {
      seconds[i] = 1 + Draw(counter);
      fixed[i] = 1 + Draw(counter);
      live[i] = 0.2 * Draw(counter);
      bytes[i] = i == 0 ? 0 : 1 + 3 * Draw(counter);
    }
    for (int s = 0; s < stages; ++s) {
      times[s] = stages - s;
    }
    CutProblem problem{seconds, fixed, live, times};
    problem.capacity_bytes = trial % 2 == 0 ? 0 : 2.4 * units / stages * (0.8 + Draw(counter));
    problem.stages = stages;
    problem.crossing_bytes = bytes;
    problem.seconds_per_byte = 0.3;
    problem.live_per_crossing_byte = 0.05;
    const auto fast = FindCut(problem);
    const auto slow = FindCutExhaustively(problem);
    ASSERT_EQ(fast.has_value(), slow.has_value()) << trial;
    if (fast) {
      ++checked;
      EXPECT_GE(fast->bottleneck_s, slow->bottleneck_s * (1 - 1e-9)) << trial;
      EXPECT_LE(fast->bottleneck_s, slow->bottleneck_s * 1.0101) << trial;
      EXPECT_EQ(std::accumulate(fast->units.begin(), fast->units.end(), 0), units);
    }
  }
  EXPECT_GT(checked, 100);
}

TEST(FindCut, GivesALongHeadFewerLayers) {
  std::vector<double> seconds(10, 1.0);
  seconds.front() = 0;
  seconds.back() = 3.0;
  const auto cut = FindCut({.seconds = seconds, .stages = 3});
  ASSERT_TRUE(cut);
  EXPECT_EQ(cut->bottleneck_s, 4.0);
  EXPECT_LE(cut->units.back(), 2);
}

TEST(FindCut, KeepsEveryLayerWhenThereAreMoreStagesThanUnits) {
  const std::vector<double> seconds(3, 1.0);
  const auto cut = FindCut({.seconds = seconds, .stages = 5});
  ASSERT_TRUE(cut);
  EXPECT_EQ(std::accumulate(cut->units.begin(), cut->units.end(), 0), 3);
  EXPECT_EQ(cut->units.size(), 5u);
}

}  // namespace
}  // namespace penstock::plan
