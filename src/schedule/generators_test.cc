#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "schedule/registry.h"
#include "schedule/timing_for_tests.h"

namespace penstock::schedule {
namespace {

struct Size {
  int p, m, v;
};

// Every generator with every small size that it takes.
template <class Check>
void ForAll(const Check& check) {
  for (const GeneratorInfo& info : Generators()) {
    for (int p = 1; p <= 9; ++p) {
      for (const int m : {1, 2, 3, 4, 5, 7, 8, 9, 12, 17, 20}) {
        for (int v = 1; v <= (info.any_chunks ? 4 : 1); ++v) {
          const auto schedule = Generate(info.name, {p, m, info.any_chunks ? v : 0, 0});
          ASSERT_TRUE(schedule.ok()) << schedule.error().message;
          SCOPED_TRACE(fmt::format("{} p={} m={} v={}", info.name, p, m, v));
          check(info, schedule.value());
          if (testing::Test::HasFatalFailure())
            return;
        }
      }
    }
  }
}

double Peak(const TestTiming& timing) {
  return *std::max_element(timing.peak.begin(), timing.peak.end());
}

TestTiming Timing(std::string_view name, int p, int m, int v = 0, const TestCosts& costs = {}) {
  return RunForTest(Generate(name, {p, m, v, 0}).value(), costs);
}

TEST(Generators, EveryTripleRunsExactlyOnceOnItsRank) {
  ForAll([](const GeneratorInfo& info, const Schedule& s) {
    std::map<std::tuple<int, int, int>, std::string> seen;
    for (int r = 0; r < s.num_ranks(); ++r) {
      for (const Action& a : s.ranks[static_cast<size_t>(r)]) {
        ASSERT_EQ(s.RankOf(a.stage, a.micro_batch), RankId(r));
        seen[{a.stage.value(), a.micro_batch.value(), a.slice}] += OpKindText(a.kind);
      }
    }
    ASSERT_EQ(seen.size(), static_cast<size_t>(s.num_stages() * s.micro_batches * s.slices));
    for (const auto& [key, kinds] : seen) {
      if (info.backward) {
        ASSERT_TRUE(kinds == "FB" || kinds == "FIW") << kinds;
      } else {
        ASSERT_EQ(kinds, "F");
      }
    }
  });
}

TEST(Generators, EverySizeRunsToItsEnd) {
  ForAll([](const GeneratorInfo&, const Schedule& s) { ASSERT_GT(RunForTest(s).makespan, 0); });
}

TEST(Generators, WeightGradientsOfAStageAscendByMicroBatch) {
  ForAll([](const GeneratorInfo&, const Schedule& s) {
    for (const auto& program : s.ranks) {
      std::map<std::pair<int, int>, int> last;  // stage, direction
      for (const Action& a : program) {
        if (a.kind != OpKind::kBackward && a.kind != OpKind::kBackwardWeight)
          continue;
        auto [it, fresh] = last.try_emplace({a.stage.value(), s.DirectionOf(a.micro_batch)}, -1);
        ASSERT_GE(a.micro_batch.value(), it->second);
        it->second = a.micro_batch.value();
      }
    }
  });
}

TEST(Generators, OverlappedPairsAreAForwardAndABackward) {
  ForAll([](const GeneratorInfo& info, const Schedule& s) {
    for (const auto& program : s.ranks) {
      for (size_t i = 0; i < program.size(); ++i) {
        if (!program[i].joined)
          continue;
        ASSERT_TRUE(info.name == "dualpipe" || info.name == "dualpipe-v");
        ASSERT_GT(i, 0U);
        ASSERT_FALSE(program[i - 1].joined);
        ASSERT_EQ(program[i - 1].kind, OpKind::kForward);
        ASSERT_EQ(program[i].kind, OpKind::kBackward);
      }
    }
  });
}

TEST(Generators, PeakActivationsMeetTheirFormulas) {
  for (int p = 1; p <= 9; ++p) {
    for (const int m : {1, 2, 3, 5, 8, 13, 21, 32}) {
      SCOPED_TRACE(fmt::format("p={} m={}", p, m));
      const TestTiming one = Timing("1f1b", p, m);
      const TestTiming sliced = RunForTest(Generate("sliced-1f1b", {p, m, 0, 4}).value());
      for (int r = 0; r < p; ++r) {
        EXPECT_EQ(one.peak[static_cast<size_t>(r)], std::min(p - r, m));
        EXPECT_NEAR(sliced.peak[static_cast<size_t>(r)], std::min(p - 1 - r + 4, 4 * m) / 4.0,
                    1e-9);
      }
      EXPECT_EQ(Peak(Timing("gpipe", p, m)), m);
      EXPECT_NEAR(Peak(Timing("looped-bfs", p, m)), m, 1e-9);
      EXPECT_LE(Peak(Timing("zb-h1", p, m)), p);
      EXPECT_LE(Peak(Timing("zb-h2", p, m)), 2 * p - 1);
      EXPECT_LE(Peak(Timing("zb-v", p, m)), p + 1e-9);
      EXPECT_LE(Peak(Timing("v-half", p, m)), (p + 2) / 2 + 1e-9);
      EXPECT_LE(Peak(Timing("v-min", p, m)), (p + 4) / 3 + 1e-9);
      EXPECT_LE(Peak(Timing("dualpipe", p, m)), p + 1 + (p % 2));
      EXPECT_LE(Peak(Timing("dualpipe-v", p, m)), p + 0.5 + 1e-9);
      EXPECT_LE(Peak(Timing("chimera", p, m)), p + (p % 2));
    }
  }
}

TEST(Generators, PeakActivationsAreReachedWithEnoughMicroBatches) {
  for (const int p : {2, 3, 4, 8}) {
    const int m = 4 * p;
    SCOPED_TRACE(p);
    EXPECT_EQ(Peak(Timing("zb-h1", p, m)), p);
    EXPECT_EQ(Peak(Timing("zb-h2", p, m)), 2 * p - 1);
    for (const double peak : Timing("zb-v", p, m).peak)
      EXPECT_NEAR(peak, p, 1e-9);
    EXPECT_NEAR(Peak(Timing("v-half", p, m)), (p + 2) / 2, 0.5 + 1e-9);
    EXPECT_NEAR(Peak(Timing("v-min", p, m)), (p + 4) / 3, 0.5 + 1e-9);
    EXPECT_NEAR(Peak(Timing("dualpipe-v", p, m)), p + 0.5, 1e-9);
    for (const int v : {2, 3, 4}) {
      EXPECT_NEAR(Peak(Timing("interleaved-1f1b", p, m, v)), (2.0 * (p - 1) + (v - 1) * p + 1) / v,
                  1e-9)
          << v;
      EXPECT_NEAR(Peak(Timing("interleaved-zb", p, m, v)), p, 1e-9) << v;
    }
  }
}

TEST(Generators, MakespansMeetTheirClosedForms) {
  for (const int p : {1, 2, 3, 4, 5, 8}) {
    for (const int m : {2 * p, 4 * p, 4 * p + 2}) {
      SCOPED_TRACE(fmt::format("p={} m={}", p, m));
      const TestCosts costs = {1, 1.25, 0.75, 0};
      const double work = 3.0 * m;
      EXPECT_NEAR(Timing("gpipe", p, m, 0, costs).makespan, work + 3 * (p - 1), 1e-9);
      EXPECT_NEAR(Timing("1f1b", p, m, 0, costs).makespan, work + 3 * (p - 1), 1e-9);
      EXPECT_NEAR(Timing("zb-h1", p, m, 0, costs).makespan, work + (p - 1) * (1 + 1.25 - 0.75),
                  1e-9);
      EXPECT_NEAR(Timing("interleaved-1f1b", p, m, 1, costs).makespan, work + 3 * (p - 1), 1e-9);
      EXPECT_NEAR(Timing("zb-v", p, m).makespan, work + (p - 1) / 2.0, 1e-9);
      EXPECT_NEAR(Timing("forward", p, m).makespan, p + m - 1, 1e-9);
      for (const int v : {1, 2, 4})
        EXPECT_NEAR(Timing("looped-bfs", p, m, v, costs).makespan, work + 3.0 * (p - 1) / v, 1e-9);
      if (m % p == 0) {
        for (const int v : {2, 4}) {
          EXPECT_NEAR(Timing("interleaved-1f1b", p, m, v, costs).makespan, work + 3.0 * (p - 1) / v,
                      1e-9);
          EXPECT_NEAR(Timing("interleaved-zb", p, m, v).makespan, work + 1.0 * (p - 1) / v, 1e-9);
        }
      }
    }
  }
}

// Idle share of the makespan in percent for p = 8, m = 32, and peaks, from the independent dry run
// in the reference; the V-shaped memory schedules there have no warm-up or cool-down reordering, as
// here.
TEST(Generators, IdleSharesEqualAnIndependentDryRunToThePrintedDigit) {
  struct Row {
    const char* name;
    int v;
    double idle[4];
    double peak;
  };

  const TestCosts costs[4] = {{1, 1, 1, 0}, {1, 1.2, 0.7, 0}, {1, 1, 1, 0.1}, {1, 1, 1, 0.3}};
  const Row rows[] = {{"1f1b", 0, {17.9, 17.9, 22.5, 30.1}, 8},
                      {"interleaved-1f1b", 2, {9.9, 9.9, 12.3, 16.9}, 11.5},
                      {"interleaved-1f1b", 4, {5.2, 5.2, 10.7, 22.2}, 9.75},
                      {"looped-bfs", 2, {9.9, 9.9, 11.0, 13.3}, 32},
                      {"zb-h1", 0, {6.8, 10.2, 9.3, 13.8}, 8},
                      {"interleaved-zb", 2, {3.5, 5.4, 6.9, 16.1}, 8},
                      {"zb-h2", 0, {6.8, 7.0, 7.4, 8.7}, 15},
                      {"zb-v", 0, {3.5, 4.3, 6.6, 12.3}, 8},
                      {"dualpipe-v", 0, {3.5, 5.5, 7.0, 14.0}, 8.5},
                      {"v-half", 0, {11.9, 14.5, 14.7, 23.1}, 5},
                      {"v-min", 0, {12.3, 28.4, 25.2, 42.1}, 4}};
  for (const Row& row : rows) {
    for (int c = 0; c < 4; ++c) {
      const TestTiming timing = Timing(row.name, 8, 32, row.v, costs[c]);
      const double work = 32 * (costs[c].forward + costs[c].input + costs[c].weight);
      EXPECT_NEAR(100 * (1 - work / timing.makespan), row.idle[c], 0.0501) << row.name << " " << c;
      EXPECT_NEAR(Peak(timing), row.peak, 1e-9) << row.name;
    }
  }
}

TEST(Generators, TwoDirectionsBeatOneWhereTheirPapersSaySo) {
  for (const int p : {4, 8}) {
    const double one = Timing("1f1b", p, p).makespan;
    EXPECT_LT(Timing("chimera", p, p).makespan, one);
    EXPECT_LT(Timing("hanayo", p, p, 2).makespan, one);
    EXPECT_LT(Timing("hanayo", p, p, 4).makespan, Timing("hanayo", p, p, 2).makespan);
    EXPECT_LT(Timing("chimera", p, 4 * p).makespan, Timing("1f1b", p, 4 * p).makespan);
    EXPECT_LT(Timing("hanayo", p, 4 * p, 2).makespan, Timing("1f1b", p, 4 * p).makespan);
  }
}

TEST(Generators, NumbersThatCannotBeAreRefusedBeforeAnythingIsAllocated) {
  constexpr int kHuge = 1000000000;
  for (const GeneratorInfo& info : Generators()) {
    for (const GeneratorOptions& options : {GeneratorOptions{0, 4, 0, 0},
                                            {-1, 4, 0, 0},
                                            {4, 0, 0, 0},
                                            {4, -3, 0, 0},
                                            {4, 8, -1, 0},
                                            {4, 8, 0, -1},
                                            {kHuge, kHuge, 0, 0},
                                            {4, kHuge, 0, 0},
                                            {kHuge, 1, 0, 0},
                                            {4, 8, kHuge, 0},
                                            {4, 8, 0, kHuge}}) {
      const auto schedule = Generate(info.name, options);
      ASSERT_FALSE(schedule.ok()) << info.name;
      EXPECT_EQ(schedule.error().code, ErrorCode::kInvalidArgument);
    }
  }
  EXPECT_NE(Generate("zb-w", {4, 8, 0, 0}).error().message.find("did you mean zb-v?"),
            std::string::npos);
}

}  // namespace
}  // namespace penstock::schedule
