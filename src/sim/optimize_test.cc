#include "sim/optimize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <tuple>

#include "schedule/registry.h"
#include "schedule/validate.h"
#include "sim/compare_schedules.h"
#include "sim/list_scheduler.h"
#include "sim/peaks.h"
#include "sim/place_weights.h"

namespace penstock::sim {
namespace {

using schedule::OpKind;
using schedule::Schedule;

cost::CostSource Uniform(double f, double i, double w, double c) {
  cost::CostSource source;
  source.uniform = {f, i, w, -1, c};
  return source;
}

OptimizeOptions Options(int ranks, int micro_batches, std::vector<double> limit = {}) {
  OptimizeOptions options;
  options.ranks = ranks;
  options.micro_batches = micro_batches;
  auto made = ActivationLimit::Make(std::move(limit), ranks);
  EXPECT_TRUE(made.ok());
  options.activation_limit = made.value();
  options.evaluations = 5000;
  return options;
}

TEST(Optimize, IsNeverSlowerThanAGeneratorWithinTheLimit) {
  for (const double limit : {2.0, 3.0, 4.0, 6.0}) {
    const cost::CostSource costs = Uniform(1, 1.2, 0.7, 0.1);
    const auto best = Optimize(costs, Options(4, 8, {limit}));
    ASSERT_TRUE(best.ok()) << best.error().message;
    schedule::ValidateOptions proof;
    proof.activation_limit = {limit};
    const schedule::Report report = schedule::Validate(best->schedule, proof);
    EXPECT_TRUE(report.ok()) << schedule::FormatProblems(best->schedule, report);
    EXPECT_GE(best->gap, 0);
    CompareOptions compare;
    compare.ranks = 4;
    compare.micro_batches = 8;
    compare.activation_limit = ActivationLimit::Make({limit}, 4).value();
    const auto table = CompareSchedules(costs, compare);
    ASSERT_TRUE(table.ok());
    for (const ScheduleRow& row : table->rows) {
      if (row.fits && row.weight_copies == 1 && !row.forward_only && row.name != "sliced-1f1b") {
        EXPECT_LE(best->result.makespan_s, row.result.makespan_s + 1e-9) << row.name << limit;
      }
    }
  }
}

TEST(Optimize, MeetsTheBoundWhereOneIsKnownToBeMet) {
  const auto best = Optimize(Uniform(1, 1, 1, 0), Options(4, 8));
  ASSERT_TRUE(best.ok());
  EXPECT_NEAR(best->result.makespan_s, 24 + 1.5, 1e-9);  // fill of the last rank at v = 2
  EXPECT_NEAR(best->gap, 0, 1e-9);
}

TEST(Optimize, GivesTheSameAnswerTwice) {
  const auto first = Optimize(Uniform(1, 1.3, 0.6, 0.2), Options(3, 5, {2}));
  const auto second = Optimize(Uniform(1, 1.3, 0.6, 0.2), Options(3, 5, {2}));
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_TRUE(first->schedule == second->schedule);
}

TEST(Optimize, SaysWhenNothingFits) {
  const auto best = Optimize(Uniform(1, 1, 1, 0), Options(4, 8, {0.25}));
  ASSERT_FALSE(best.ok());
  EXPECT_EQ(best.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(best.error().message.find("at least"), std::string::npos);
}

TEST(ActivationLimit, TakesOneNumberOrOnePerRank) {
  EXPECT_TRUE(ActivationLimit::Make({}, 4)->none());
  EXPECT_TRUE(ActivationLimit::Make({1.5}, 4).ok());
  EXPECT_TRUE(ActivationLimit::Make({1, 2, 3, 4}, 4).ok());
  EXPECT_FALSE(ActivationLimit::Make({1, 2}, 4).ok());
  EXPECT_FALSE(ActivationLimit::Make({-1}, 4).ok());
  EXPECT_FALSE(ActivationLimit::Make({0}, 4).ok());
}

TEST(Optimize, KeepsToALimitInBytes) {
  cost::CostSource costs;
  costs.file = cost::CostFile{"test", cost::MakeUniformCost({1, 1.2, 0.7, -1, 0.1}, 4, 1)};
  for (size_t s = 0; s < 4; ++s)
    costs.file->model.stages[s].activation_bytes = static_cast<int64_t>(100 + 100 * s);
  OptimizeOptions options = Options(4, 6);
  options.activation_limit = ActivationLimit::Make({1000}, 4, true).value();
  const auto best = Optimize(costs, options);
  ASSERT_TRUE(best.ok()) << best.error().message;
  for (const RankResult& rank : best->result.ranks)
    EXPECT_LE(rank.peak_activation_bytes, 1000);
  options.activation_limit = ActivationLimit::Make({50}, 4, true).value();
  EXPECT_FALSE(Optimize(costs, options).ok());
}

// All orders of p = 2, m = 2 with I and W apart, one stage per rank, by brute force.
double BestByBruteForce(const cost::CostModel& costs) {
  auto program = [](int stage) {
    std::vector<schedule::Action> actions;
    for (int j = 0; j < 2; ++j) {
      for (const OpKind kind : {OpKind::kForward, OpKind::kBackwardInput, OpKind::kBackwardWeight})
        actions.push_back(schedule::MakeAction(kind, StageId(stage), MicroBatchId(j)));
    }
    return actions;
  };
  auto less = [](const schedule::Action& a, const schedule::Action& b) {
    return std::pair(a.micro_batch, a.kind) < std::pair(b.micro_batch, b.kind);
  };
  // Orders of one rank that its own data flow allows.
  auto legal = [](const std::vector<schedule::Action>& order) {
    for (size_t i = 0; i < order.size(); ++i) {
      for (size_t k = 0; k < i; ++k) {
        if (order[k].micro_batch == order[i].micro_batch && order[k].kind > order[i].kind)
          return false;
      }
    }
    return true;
  };
  std::vector<std::vector<schedule::Action>> orders[2];
  for (int stage = 0; stage < 2; ++stage) {
    std::vector<schedule::Action> order = program(stage);
    std::sort(order.begin(), order.end(), less);
    do {
      if (legal(order))
        orders[stage].push_back(order);
    } while (std::next_permutation(order.begin(), order.end(), less));
  }
  double best = 1e300;
  Schedule schedule;
  schedule.placement = schedule::Placement::Loop(2, 1);
  schedule.micro_batches = 2;
  for (const auto& first : orders[0]) {
    for (const auto& second : orders[1]) {
      schedule.ranks = {first, second};
      const auto makespan = SimulateMakespan(schedule, costs);
      if (makespan.ok())
        best = std::min(best, makespan.value());
    }
  }
  return best;
}

TEST(Optimize, FindsTheBestOrderOfATinyStep) {
  for (const auto& [f, i, w, c] :
       {std::tuple(1.0, 1.0, 1.0, 0.0), {1.0, 2.0, 0.5, 0.3}, {1.0, 0.5, 2.0, 1.0}}) {
    const cost::CostSource costs = Uniform(f, i, w, c);
    OptimizeOptions options = Options(2, 2);
    options.chunks = 1;
    const auto best = Optimize(costs, options);
    ASSERT_TRUE(best.ok());
    EXPECT_NEAR(best->result.makespan_s,
                BestByBruteForce(cost::MakeUniformCost(costs.uniform, 2, 1)), 1e-9);
  }
}

TEST(PlaceWeights, IsNeverSlowerAndKeepsTheOrderOfAllElse) {
  for (const schedule::GeneratorInfo& info : schedule::Generators()) {
    auto made = schedule::Generate(info.name, {4, 9, 0, 0});
    ASSERT_TRUE(made.ok());
    const Schedule& before = made.value();
    const cost::CostModel costs =
        cost::MakeUniformCost({1, 1.4, 0.4, -1, 0.2}, before.num_stages(), before.chunks());
    const auto placed = PlaceWeights(before, costs);
    ASSERT_TRUE(placed.ok()) << placed.error().message;
    EXPECT_LE(placed->makespan_s, SimulateMakespan(before, costs).value() + 1e-9);
    EXPECT_TRUE(schedule::Validate(placed->schedule).ok()) << info.name;
    int64_t worst_before = 0;
    int64_t worst_after = 0;
    for (const Peak& peak : ActivationPeaks(before, costs))
      worst_before = std::max(worst_before, peak.count);
    for (const Peak& peak : ActivationPeaks(placed->schedule, costs))
      worst_after = std::max(worst_after, peak.count);
    EXPECT_LE(worst_after, worst_before) << info.name;
    auto without_weights = [](std::vector<schedule::Action> program) {
      std::erase_if(program,
                    [](const schedule::Action& a) { return a.kind == OpKind::kBackwardWeight; });
      return program;
    };
    for (size_t r = 0; r < before.ranks.size(); ++r) {
      EXPECT_EQ(without_weights(before.ranks[r]), without_weights(placed->schedule.ranks[r]));
    }
  }
}

// Stages that save very different amounts: a W that moves changes which of them are held together.
TEST(PlaceWeights, KeepsToALimitInBytesAndWithoutOneToTheFullestRankOfBefore) {
  std::mt19937 random(7);
  int changed = 0;
  for (int round = 0; round < 60; ++round) {
    for (const char* name : {"v-half", "v-min", "zb-v", "interleaved-zb"}) {
      const Schedule before = schedule::Generate(name, {3 + round % 3, 9, 0, 0}).value();
      cost::CostModel costs;
      costs.link.latency_s = 0.1 * static_cast<double>(random() % 4);
      for (int s = 0; s < before.num_stages(); ++s) {
        cost::StageCost stage;
        stage.f_s = 0.5 + 0.1 * static_cast<double>(random() % 10);
        stage.i_s = 0.5 + 0.1 * static_cast<double>(random() % 10);
        stage.w_s = 0.3 + 0.1 * static_cast<double>(random() % 17);
        stage.activation_bytes = std::array{1000, 3000, 10000}[random() % 3];
        costs.stages.push_back(stage);
      }
      std::vector<double> limit;
      int64_t fullest = 0;
      for (const Peak& peak : ActivationPeaks(before, costs)) {
        limit.push_back(static_cast<double>(peak.bytes));
        fullest = std::max(fullest, peak.bytes);
      }
      const auto within = ActivationLimit::Make(limit, before.num_ranks(), true).value();
      const auto limited = PlaceWeights(before, costs, within);
      ASSERT_TRUE(limited.ok());
      changed += limited->changed ? 1 : 0;
      EXPECT_TRUE(within.Allows(ActivationPeaks(limited->schedule, costs))) << name << round;
      const auto free = PlaceWeights(before, costs);
      ASSERT_TRUE(free.ok());
      for (const Peak& peak : ActivationPeaks(free->schedule, costs))
        EXPECT_LE(peak.bytes, fullest) << name << round;
    }
  }
  EXPECT_GT(changed, 20);
}

TEST(ListSchedule, IsLegalAndKeepsToItsLimit) {
  for (const auto& placement : {schedule::Placement::Loop(3, 1), schedule::Placement::Loop(3, 2),
                                schedule::Placement::V(4), schedule::Placement::Wave(2, 4)}) {
    for (int64_t limit = placement.chunks(); limit < 10; ++limit) {
      for (int choice = 0; choice < 8; ++choice) {
        ListOptions options;
        options.micro_batches = 5;
        options.limit.assign(static_cast<size_t>(placement.num_ranks()), limit);
        options.eager_weights = (choice & 1) != 0;
        options.deep_forward = (choice & 2) != 0;
        options.deep_backward = (choice & 4) != 0;
        const cost::CostModel costs =
            cost::MakeUniformCost({1, 1.2, 0.7, -1, 0.1}, placement.num_stages(), 2);
        const auto made = ListSchedule(placement, costs, options);
        ASSERT_TRUE(made.has_value()) << limit;
        EXPECT_TRUE(schedule::Validate(*made).ok());
        for (const Peak& peak : ActivationPeaks(*made, costs))
          EXPECT_LE(peak.count, limit);
      }
    }
  }
}

TEST(CompareSchedules, HasARowForEveryGeneratorAndASentence) {
  CompareOptions options;
  options.ranks = 8;
  options.micro_batches = 32;
  options.activation_limit = ActivationLimit::Make({8}, 8).value();
  const auto table = CompareSchedules(Uniform(1, 1, 1, 0), options);
  ASSERT_TRUE(table.ok());
  EXPECT_EQ(table->rows.size(), schedule::Generators().size());
  EXPECT_TRUE(table->skipped.empty());
  // Of the schedules that keep 8 micro-batches or less, only zb-v has no idle time back to back.
  EXPECT_TRUE(table->advice.starts_with("Take zb-v (v = 2)")) << table->advice;
  EXPECT_NE(table->advice.find("above the limit"), std::string::npos) << table->advice;
  options.activation_limit = ActivationLimit::Make({0.125}, 8).value();
  EXPECT_TRUE(CompareSchedules(Uniform(1, 1, 1, 0), options)
                  ->advice.starts_with("No schedule keeps to the activation limit"));
}

}  // namespace
}  // namespace penstock::sim
