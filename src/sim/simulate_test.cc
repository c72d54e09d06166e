#include "sim/simulate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>
#include <tuple>

#include "schedule/passes.h"
#include "schedule/registry.h"
#include "sim/bounds.h"

namespace penstock::sim {
namespace {

using cost::CostModel;
using cost::MakeUniformCost;
using cost::UniformCost;
using schedule::Action;
using schedule::OpKind;
using schedule::Schedule;

Schedule Make(std::string_view name, int ranks, int micro_batches, int chunks = 0) {
  auto schedule = schedule::Generate(name, {ranks, micro_batches, chunks, 0});
  EXPECT_TRUE(schedule.ok()) << schedule.error().message;
  return std::move(schedule).value();
}

SimResult Simulated(const Schedule& schedule, const UniformCost& cost, SimOptions options = {}) {
  auto result =
      Simulate(schedule, MakeUniformCost(cost, schedule.num_stages(), schedule.chunks()), options);
  EXPECT_TRUE(result.ok()) << schedule.name << ": " << result.error().message;
  return std::move(result).value();
}

double WorstPeak(const SimResult& result) {
  double peak = 0;
  for (const RankResult& rank : result.ranks)
    peak = std::max(peak, rank.peak_activations);
  return peak;
}

TEST(Simulate, GivesOneForwardOneBackwardItsClosedForm) {
  for (const auto& [p, m] : {std::pair(4, 8), {2, 5}, {3, 3}, {5, 2}, {1, 1}, {8, 32}}) {
    for (const auto& [name, chunks] :
         {std::pair("1f1b", 0), {"interleaved-1f1b", 1}, {"gpipe", 0}}) {
      const SimResult result = Simulated(Make(name, p, m, chunks), {1, 1, 1, -1, 0});
      EXPECT_NEAR(result.makespan_s, 3.0 * (m + p - 1), 1e-9) << name << p << m;
      for (const RankResult& rank : result.ranks)
        EXPECT_NEAR(rank.busy_s, 3.0 * m, 1e-9);
      EXPECT_NEAR(result.bubble_ratio, (p - 1.0) / (m + p - 1.0), 1e-12);
      EXPECT_NEAR(result.lower_bound_s, result.makespan_s, 1e-9);
    }
  }
}

TEST(Simulate, PaysTheLatencyOfAForwardPipelineOncePerHop) {
  for (const auto& [p, m, c] :
       {std::tuple(4, 8, 0.0), {4, 8, 0.5}, {3, 1, 0.25}, {6, 20, 0.75}, {3, 7, 1.5}}) {
    const SimResult result = Simulated(Make("forward", p, m), {1, 1, 1, -1, c});
    EXPECT_NEAR(result.makespan_s, p + (p - 1) * c + m - 1, 1e-9);
    EXPECT_NEAR(result.period_s, m, 1e-9);
    EXPECT_TRUE(result.period_exact);
  }
}

TEST(Simulate, GivesADecodeRingThePeriodOfItsLongerSide) {
  for (int p = 1; p <= 5; ++p) {
    for (int m = 1; m <= 8; ++m) {
      for (const double c : {0.0, 0.3, 1.0}) {
        const SimResult result = Simulated(Make("decode-ring", p, m), {1, 1, 1, -1, c});
        const double around = p + (p > 1 ? p * c : 0.0);
        EXPECT_NEAR(result.period_s, std::max<double>(around, m), 1e-9)
            << p << " " << m << " " << c;
        EXPECT_TRUE(result.period_exact);
        EXPECT_NEAR(result.period_lower_bound_s, result.period_s, 1e-9);
      }
    }
  }
}

// Section 1.2's closed forms of the zero-bubble family, at costs where they hold.
TEST(Simulate, GivesZeroBubbleSchedulesTheirClosedForms) {
  for (const int p : {2, 4, 8}) {
    const int m = 4 * p;
    const UniformCost equal{1, 1, 1, -1, 0};
    EXPECT_NEAR(Simulated(Make("zb-h1", p, m), equal).makespan_s, 3.0 * m + p - 1, 1e-9);
    EXPECT_NEAR(Simulated(Make("zb-v", p, m), equal).makespan_s, 3.0 * m + (p - 1) / 2.0, 1e-9);
    EXPECT_NEAR(Simulated(Make("zb-v", p, m), equal).period_s, 3.0 * m, 1e-9);
    EXPECT_NEAR(Simulated(Make("zb-h2", p, m), equal).makespan_s, 3.0 * m + p - 1, 1e-9);
    EXPECT_NEAR(Simulated(Make("zb-h2", p, m), equal).period_s, 3.0 * m, 1e-9);
    EXPECT_NEAR(Simulated(Make("interleaved-1f1b", p, m, 2), equal).makespan_s,
                3.0 * m + 3.0 * (p - 1) / 2, 1e-9);
    EXPECT_NEAR(Simulated(Make("interleaved-1f1b", p, m, 4), equal).makespan_s,
                3.0 * m + 3.0 * (p - 1) / 4, 1e-9);
    EXPECT_NEAR(Simulated(Make("looped-bfs", p, m, 2), equal).makespan_s,
                3.0 * m + 3.0 * (p - 1) / 2, 1e-9);
    EXPECT_NEAR(Simulated(Make("dualpipe-v", p, m), equal).makespan_s, 3.0 * m + (p - 1) / 2.0,
                1e-9);
  }
}

struct Row {
  const char* name;
  int chunks;
  double idle_percent[4];
  double peak;
};

// Section 1.4 of the schedule reference: p = 8, m = 32, idle share of the makespan in percent under
// (1,1,1;0), (1,1.2,.7;0), (1,1,1;.1), (1,1,1;.3), and the worst rank's peak.
constexpr Row kTable[] = {
    {"1f1b", 0, {17.9, 17.9, 22.5, 30.1}, 8},
    {"interleaved-1f1b", 2, {9.9, 9.9, 12.3, 16.9}, 11.5},
    {"interleaved-1f1b", 4, {5.2, 5.2, 10.7, 22.2}, 9.75},
    {"looped-bfs", 2, {9.9, 9.9, 11.0, 13.3}, 32},
    {"zb-h1", 0, {6.8, 10.2, 9.3, 13.8}, 8},
    {"interleaved-zb", 2, {3.5, 5.4, 6.9, 16.1}, 8},
    {"zb-h2", 0, {6.8, 7.0, 7.4, 8.7}, 15},
    {"zb-v", 0, {3.5, 4.3, 6.6, 12.3}, 8},
    {"dualpipe-v", 0, {3.5, 5.5, 7.0, 14.0}, 8.5},
    {"v-half", 0, {11.9, 14.5, 14.7, 23.1}, 5},
    {"v-min", 0, {12.3, 28.4, 25.2, 42.1}, 4},
};

TEST(Simulate, ReproducesTheReferenceTable) {
  const UniformCost costs[] = {
      {1, 1, 1, -1, 0}, {1, 1.2, 0.7, -1, 0}, {1, 1, 1, -1, 0.1}, {1, 1, 1, -1, 0.3}};
  for (const Row& row : kTable) {
    const Schedule schedule = Make(row.name, 8, 32, row.chunks);
    for (int c = 0; c < 4; ++c) {
      const SimResult result = Simulated(schedule, costs[c]);
      EXPECT_NEAR(100 * result.bubble_ratio, row.idle_percent[c], 0.0501)
          << row.name << " v " << row.chunks << " cost set " << c;
      EXPECT_DOUBLE_EQ(WorstPeak(result), row.peak) << row.name << " v " << row.chunks;
    }
  }
}

struct Dice {
  std::mt19937 generator;

  uint32_t NextBelow(uint32_t n) { return static_cast<uint32_t>(generator() % n); }
};

// A random legal compute-only schedule: stages dealt to ranks at random, I and W apart or not by
// stage, a random order that data flow allows.
Schedule RandomSchedule(Dice& random) {
  auto below = [&random](uint32_t n) { return static_cast<int>(random.NextBelow(n)); };
  Schedule schedule;
  const int p = 1 + below(4);
  const int stages = p + below(4);
  std::vector<RankId> rank_of;
  for (int s = 0; s < stages; ++s)
    rank_of.emplace_back(s < p ? s : below(static_cast<uint32_t>(p)));
  schedule.placement = std::move(schedule::Placement::FromMap(p, rank_of)).value();
  schedule.micro_batches = 1 + below(5);
  schedule.ranks.resize(static_cast<size_t>(p));
  std::vector<bool> split;
  for (int s = 0; s < stages; ++s)
    split.push_back(below(2) == 0);
  // Progress of a micro-batch: F of stages 0.., then backward of stages S-1..0.
  std::vector<int> forward(static_cast<size_t>(schedule.micro_batches), 0);
  std::vector<int> backward(static_cast<size_t>(schedule.micro_batches), stages);
  std::vector<std::pair<int, int>> weights;  // (stage, micro-batch) that may run W
  const int order = below(3);                // any, forwards first, backwards first
  while (true) {
    std::vector<std::tuple<OpKind, int, int>> ready;
    for (int j = 0; j < schedule.micro_batches; ++j) {
      const auto i = static_cast<size_t>(j);
      if (forward[i] < stages) {
        ready.emplace_back(OpKind::kForward, forward[i], j);
      } else if (backward[i] > 0) {
        const int s = backward[i] - 1;
        ready.emplace_back(
            split[static_cast<size_t>(s)] ? OpKind::kBackwardInput : OpKind::kBackward, s, j);
      }
    }
    for (const auto& [s, j] : weights)
      ready.emplace_back(OpKind::kBackwardWeight, s, j);
    if (ready.empty())
      return schedule;
    auto [kind, s, j] = ready[static_cast<size_t>(below(static_cast<uint32_t>(ready.size())))];
    for (const auto& other : ready) {
      const bool is_forward = std::get<0>(other) == OpKind::kForward;
      if ((order == 1 && is_forward) || (order == 2 && !is_forward))
        std::tie(kind, s, j) = other;
    }
    schedule.ranks[static_cast<size_t>(rank_of[static_cast<size_t>(s)].value())].push_back(
        schedule::MakeAction(kind, StageId(s), MicroBatchId(j)));
    if (kind == OpKind::kForward) {
      ++forward[static_cast<size_t>(j)];
    } else if (kind == OpKind::kBackwardWeight) {
      std::erase(weights, std::pair(s, j));
    } else {
      --backward[static_cast<size_t>(j)];
      if (kind == OpKind::kBackwardInput)
        weights.emplace_back(s, j);
    }
  }
}

CostModel RandomCosts(const Schedule& schedule, Dice& random) {
  CostModel costs;
  auto number = [&random] { return 0.25 * static_cast<double>(random.NextBelow(12)); };
  for (int s = 0; s < schedule.num_stages(); ++s) {
    cost::StageCost stage;
    stage.f_s = number();
    stage.i_s = number();
    stage.w_s = number();
    stage.activation_bytes = 1 + random.NextBelow(100);
    stage.output_bytes = random.NextBelow(10);
    stage.gradient_bytes = random.NextBelow(10);
    costs.stages.push_back(stage);
  }
  costs.link = {number(), random.NextBelow(2) == 0 ? 0.0 : 4.0, false};
  for (int r = 0; r < schedule.num_ranks(); ++r) {
    if (random.NextBelow(3) == 0)
      costs.links[{r, static_cast<int>(random.NextBelow(4)) % schedule.num_ranks()}] = {number(),
                                                                                        8.0, false};
  }
  return costs;
}

// End of every action by relaxation: starts are raised until nothing changes. Another algorithm
// than the simulator's, slow and obvious.
std::map<std::tuple<char, int, int>, double> EndsByRelaxation(const Schedule& schedule,
                                                              const CostModel& costs) {
  std::map<std::tuple<char, int, int>, double> end;
  const int last = schedule.num_stages() - 1;
  auto input = [&](bool backward, int from, int to, int j) {
    const auto it = end.find({backward ? 'b' : 'f', from, j});
    const double sent = it == end.end() ? 0.0 : it->second;
    const RankId a = schedule.placement.RankOf(StageId(from));
    const RankId b = schedule.placement.RankOf(StageId(to));
    if (a == b)
      return sent;
    const cost::LinkCost& link = costs.Link(a, b);
    const cost::StageCost& stage = costs.stages[static_cast<size_t>(from)];
    const auto bytes = static_cast<double>(backward ? stage.gradient_bytes : stage.output_bytes);
    return sent + link.latency_s + (link.bytes_per_s > 0 ? bytes / link.bytes_per_s : 0.0);
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (const auto& program : schedule.ranks) {
      double now = 0;
      for (const Action& action : program) {
        const int s = action.stage.value();
        const int j = action.micro_batch.value();
        const cost::StageCost& stage = costs.stages[static_cast<size_t>(s)];
        char key = 'w';
        double duration = stage.w_s;
        if (action.kind == OpKind::kForward) {
          key = 'f';
          duration = stage.f_s;
          if (s > 0)
            now = std::max(now, input(false, s - 1, s, j));
        } else if (action.kind != OpKind::kBackwardWeight) {
          key = 'b';
          duration = stage.i_s + (action.kind == OpKind::kBackward ? stage.w_s : 0.0);
          if (s < last)
            now = std::max(now, input(true, s + 1, s, j));
        }
        now += duration;
        double& known = end[{key, s, j}];
        if (known < now) {
          known = now;
          changed = true;
        }
      }
    }
  }
  return end;
}

TEST(Simulate, AgreesWithRelaxationOnRandomSchedules) {
  Dice random{std::mt19937(20261130)};
  for (int round = 0; round < 2000; ++round) {
    const Schedule schedule = RandomSchedule(random);
    const CostModel costs = RandomCosts(schedule, random);
    SimOptions options;
    options.timeline = true;
    const auto result = Simulate(schedule, costs, options);
    ASSERT_TRUE(result.ok()) << result.error().message;
    const auto ends = EndsByRelaxation(schedule, costs);
    double makespan = 0;
    for (const trace::RankTimeline& rank : result->timeline->ranks) {
      for (const trace::Slice& slice : rank.slices) {
        const char key = slice.action.kind == OpKind::kForward          ? 'f'
                         : slice.action.kind == OpKind::kBackwardWeight ? 'w'
                                                                        : 'b';
        const double wanted =
            ends.at({key, slice.action.stage.value(), slice.action.micro_batch.value()});
        ASSERT_NEAR(slice.end_s, wanted, 1e-9) << schedule::ActionText(slice.action);
        makespan = std::max(makespan, wanted);
      }
    }
    ASSERT_NEAR(result->makespan_s, makespan, 1e-9);
    for (const RankResult& rank : result->ranks) {
      ASSERT_NEAR(rank.bubble.Sum() + rank.busy_s, result->makespan_s, 1e-9);
      ASSERT_EQ(rank.bubble.other_s, 0);
      ASSERT_GE(rank.bubble.imbalance_s, 0);
      ASSERT_GE(rank.bubble.communication_s, 0);
    }
    const Bounds bounds = LowerBounds(schedule, costs);
    ASSERT_LE(bounds.makespan_s, result->makespan_s + 1e-9);
    ASSERT_LE(bounds.period_s, result->period_s + 1e-9);
    ASSERT_LE(result->period_s, result->makespan_s + 1e-9);
    ASSERT_TRUE(result->period_exact);
  }
}

TEST(Simulate, MeetsTheMemoryBoundOfItsOwnPeaks) {
  Dice random{std::mt19937(7)};
  for (int round = 0; round < 500; ++round) {
    const Schedule schedule = RandomSchedule(random);
    const CostModel costs = RandomCosts(schedule, random);
    const auto result = Simulate(schedule, costs);
    ASSERT_TRUE(result.ok());
    std::vector<double> limit;
    for (const RankResult& rank : result->ranks)
      limit.push_back(rank.peak_activations);
    ASSERT_LE(LowerBounds(schedule, costs, limit).makespan_s, result->makespan_s + 1e-9);
    ASSERT_LE(LowerBounds(schedule, costs, limit).period_s, result->period_s + 1e-9);
  }
}

// Seconds of single actions that are those of the cost model change nothing; messages take theirs.
TEST(Simulate, TakesSecondsOfSingleActions) {
  for (const char* name : {"1f1b", "zb-v", "interleaved-1f1b"}) {
    const Schedule lowered = schedule::AddCommunication(Make(name, 4, 8), {.credits = 2}).value();
    const CostModel costs =
        MakeUniformCost({1, 1.5, 0.75, -1, 0.25}, lowered.num_stages(), lowered.chunks());
    std::vector<std::vector<ActionSeconds>> seconds;
    for (const auto& program : lowered.ranks) {
      std::vector<ActionSeconds>& of_rank = seconds.emplace_back();
      for (const Action& a : program)
        of_rank.push_back(
            {0, schedule::IsCompute(a.kind) ? costs.StageSeconds(a.kind, a.stage) : 0});
    }
    SimOptions options;
    options.transport.credits = 2;
    const SimResult by_model = Simulate(lowered, costs, options).value();
    options.action_seconds = &seconds;
    const SimResult by_action = Simulate(lowered, costs, options).value();
    EXPECT_NEAR(by_action.makespan_s, by_model.makespan_s, 1e-9) << name;
    EXPECT_NEAR(by_action.period_s, by_model.period_s, 1e-9) << name;
    EXPECT_NEAR(by_action.bubble_ratio, by_model.bubble_ratio, 1e-9) << name;

    // The first rank's first two messages: one takes 10 s, before the other there is a gap of 5 s.
    const std::vector<Action>& program = lowered.ranks[0];
    const auto is_send = [](const Action& a) { return schedule::IsSend(a.kind); };
    const auto first = std::find_if(program.begin(), program.end(), is_send);
    const auto second = std::find_if(first + 1, program.end(), is_send);
    seconds[0][static_cast<size_t>(first - program.begin())].own_s = 10;
    seconds[0][static_cast<size_t>(second - program.begin())].before_s = 5;
    EXPECT_GE(Simulate(lowered, costs, options).value().makespan_s, by_model.makespan_s + 10);
    seconds[0].pop_back();
    EXPECT_FALSE(Simulate(lowered, costs, options).ok());
  }
}

TEST(Simulate, StartsEveryStepTogetherBehindABarrier) {
  for (const char* name : {"1f1b", "zb-h2", "zb-v", "dualpipe-v"}) {
    SimOptions options;
    options.barrier = true;
    options.steps = 3;
    const SimResult result = Simulated(Make(name, 4, 8), {1, 1, 1, -1, 0.25}, options);
    EXPECT_NEAR(result.period_s, result.makespan_s, 1e-9) << name;
    ASSERT_EQ(result.step_end_s.size(), 3U);
    EXPECT_NEAR(result.step_end_s[2], 3 * result.makespan_s, 1e-9);
  }
}

TEST(Simulate, KeepsTheTimelineOfAllStepsAskedFor) {
  SimOptions options;
  options.timeline = true;
  options.steps = 3;
  const SimResult result = Simulated(Make("decode-ring", 2, 3), {1, 1, 1, -1, 0}, options);
  EXPECT_EQ(result.timeline->CountSlices(), 18);
  EXPECT_EQ(result.timeline->ranks[1].slices.back().step, 2);
  EXPECT_NEAR(result.timeline->end_s, 10, 1e-9);
  EXPECT_NEAR(result.makespan_s, 4, 1e-9);
  const trace::Account account = trace::AccountOf(*result.timeline);
  EXPECT_NEAR(account.ranks[1].busy_s, 9, 1e-9);
  EXPECT_NEAR(account.ranks[1].bubble.fill_s, 1, 1e-9);
}

TEST(Simulate, PutsIdleTimeBetweenStepsDownToTheirBarrier) {
  SimOptions options;
  options.timeline = true;
  options.barrier = true;
  options.steps = 3;
  const SimResult result = Simulated(Make("1f1b", 3, 3), {1, 1, 1, -1, 0.5}, options);
  const trace::Account account = trace::AccountOf(*result.timeline);
  for (size_t r = 0; r < account.ranks.size(); ++r) {
    const trace::Bubble& bubble = account.ranks[r].bubble;
    const trace::Bubble& alone = result.ranks[r].bubble;
    EXPECT_NEAR(bubble.Sum(), account.ranks[r].idle_s, 1e-9);
    EXPECT_NEAR(bubble.other_s, 0, 1e-12);
    EXPECT_NEAR(bubble.barrier_s, 2 * alone.drain_s, 1e-9);
    EXPECT_NEAR(bubble.drain_s, alone.drain_s, 1e-9);
    // The fill of later steps is a wait for their first input.
    EXPECT_NEAR(bubble.fill_s + bubble.imbalance_s + bubble.communication_s,
                3 * (alone.fill_s + alone.imbalance_s + alone.communication_s), 1e-9);
  }
}

// A message belongs to the step of the action that reads it, also in later steps.
TEST(Simulate, NumbersTheMessagesOfEveryStep) {
  SimOptions options;
  options.timeline = true;
  options.steps = 3;
  for (const int unrolled : {1, 2}) {
    const Schedule schedule = schedule::UnrollSteps(Make("1f1b", 2, 2), unrolled, false).value();
    const SimResult result = Simulated(schedule, {1, 1, 1, -1, 0.5}, options);
    std::map<int, int> messages;
    std::map<int, int> slices;
    for (const trace::RankTimeline& rank : result.timeline->ranks) {
      for (const trace::Message& message : rank.received)
        ++messages[message.step];
      for (const trace::Slice& slice : rank.slices)
        ++slices[slice.step];
    }
    ASSERT_EQ(messages.size(), 3U * static_cast<size_t>(unrolled));
    for (const auto& [step, count] : messages)
      EXPECT_EQ(count, 4) << step;
    ASSERT_EQ(slices.size(), messages.size());
    for (const auto& [step, count] : slices)
      EXPECT_EQ(count, 8) << step;
  }
}

// A million steps cost no more than the few until the pattern repeats, and end where they would.
TEST(Simulate, DoesNotRunWhatItKnows) {
  for (const char* name : {"1f1b", "zb-h2", "zb-v", "decode-ring", "interleaved-zb"}) {
    for (const bool barrier : {false, true}) {
      SimOptions options;
      options.barrier = barrier;
      options.steps = 40;
      options.timeline = true;  // has every step run
      const SimResult run = Simulated(Make(name, 4, 9), {1, 1.2, 0.7, -1, 0.1}, options);
      options.timeline = false;
      const SimResult known = Simulated(Make(name, 4, 9), {1, 1.2, 0.7, -1, 0.1}, options);
      ASSERT_EQ(known.step_end_s.size(), 40U);
      for (size_t i = 0; i < 40; ++i)
        EXPECT_NEAR(known.step_end_s[i], run.step_end_s[i], 1e-6) << name << i;
      EXPECT_NEAR(known.period_s, run.period_s, 1e-9);
      options.steps = 1'000'000;
      const SimResult many = Simulated(Make(name, 4, 9), {1, 1.2, 0.7, -1, 0.1}, options);
      EXPECT_NEAR(many.step_end_s.back() / (1e6 * many.period_s), 1, 1e-4) << name;
      options.timeline = true;
      options.steps = 10'000'000;
      const Schedule schedule = Make(name, 4, 9);
      const auto kept = Simulate(schedule, MakeUniformCost({}, schedule.num_stages(), 1), options);
      ASSERT_FALSE(kept.ok());
      EXPECT_NE(kept.error().message.find("actions in a picture"), std::string::npos);
    }
  }
}

TEST(Simulate, QueuesMessagesOnAnOccupiedLink) {
  const Schedule schedule = Make("forward", 2, 4);
  CostModel costs = MakeUniformCost({1, 1, 1, -1, 0}, 2, 1);
  costs.stages[0].output_bytes = 300;
  costs.link = {0.5, 100, true};
  const auto result = Simulate(schedule, costs);
  ASSERT_TRUE(result.ok());
  // Hand-overs at 1..4; the link takes 3 s each: arrivals 4.5, 7.5, 10.5, 13.5.
  EXPECT_NEAR(result->makespan_s, 14.5, 1e-12);
  EXPECT_NEAR(result->period_s, 12, 1e-9);
  EXPECT_NEAR(result->period_lower_bound_s, 12, 1e-9);
  costs.link.occupied = false;
  EXPECT_NEAR(Simulate(schedule, costs)->makespan_s, 1 + 3.5 + 4, 1e-12);
}

TEST(Simulate, RefusesWhatCannotRun) {
  Schedule schedule = Make("1f1b", 2, 2);
  std::swap(schedule.ranks[0][0], schedule.ranks[0][2]);  // B before its F
  auto result = Simulate(schedule, MakeUniformCost({}, 2, 1));
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::kInvalidSchedule);
  EXPECT_NE(result.error().message.find("no rank can go on"), std::string::npos);

  schedule = Make("1f1b", 2, 2);
  schedule.ranks[0][0].stage = StageId(1);
  EXPECT_FALSE(Simulate(schedule, MakeUniformCost({}, 2, 1)).ok());
  schedule.ranks[0][0].stage = StageId(77);
  EXPECT_FALSE(Simulate(schedule, MakeUniformCost({}, 2, 1)).ok());
  schedule = Make("1f1b", 2, 2);
  EXPECT_FALSE(Simulate(schedule, MakeUniformCost({}, 3, 1)).ok());
  schedule = schedule::AddCommunication(schedule).value();
  EXPECT_TRUE(Simulate(schedule, MakeUniformCost({}, 2, 1)).ok());
  schedule.lowered = false;  // and yet there are messages
  EXPECT_FALSE(Simulate(schedule, MakeUniformCost({}, 2, 1)).ok());
  schedule = Make("1f1b", 2, 2);
  schedule.micro_batches = 1'000'000'000;
  EXPECT_FALSE(Simulate(schedule, MakeUniformCost({}, 2, 1)).ok());
}

}  // namespace
}  // namespace penstock::sim
