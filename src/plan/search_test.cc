#include "plan/search.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

#include "base/config_path.h"
#include "base/json.h"
#include "base/units.h"
#include "model/config.h"
#include "plan/emit.h"
#include "plan/memory.h"
#include "plan/report.h"
#include "plan/training.h"
#include "plan/verdict.h"
#include "schedule/layout.h"
#include "sim/simulate.h"

namespace penstock::plan {
namespace {

cost::ModelProfile Profile(const std::string& name) {
  const auto json = ReadJsonFile(FindConfig("models", "json", name).value());
  const auto model = model::BuildModel(json.value(), name);
  EXPECT_TRUE(model.ok()) << model.error().message;
  return cost::BuildProfile(model->graph, name, model->config.family).value();
}

struct Question {
  cost::ModelProfile model;
  hw::System system;
  Workload workload;

  Question(const std::string& m, const std::string& s, const std::string& mode,
           const std::vector<std::string>& sets = {})
      : model(Profile(m)),
        system(hw::ReadSystem(s).value()),
        workload(ReadWorkload(mode, mode, sets).value()) {}

  Context context() const { return {&model, &system, &workload}; }

  SearchResult Find(int64_t devices, const std::string& fix = "", bool prune = true) const {
    SearchOptions options;
    options.devices = devices;
    options.prune = prune;
    options.fixed = ParseFixed(fix, model.decoder_layers()).value();
    return Search(context(), options).value();
  }

  Verdict Answer(int64_t devices, const std::string& fix = "") const {
    SearchOptions options;
    options.devices = devices;
    options.fixed = ParseFixed(fix, model.decoder_layers()).value();
    return Judge(context(), options, Search(context(), options).value());
  }
};

// Figures that a plan of a list is known by.
std::vector<std::tuple<double, double, double, std::string>> FiguresOf(
    const std::vector<Plan>& plans) {
  std::vector<std::tuple<double, double, double, std::string>> out;
  for (const Plan& p : plans) {
    out.emplace_back(p.tokens_per_s, p.cost_per_million_tokens, p.memory.peak(),
                     p.layout.schedule + " " + LayoutText(p.layout));
  }
  std::sort(out.begin(), out.end());
  return out;
}

TEST(Search, PruningLosesNothing) {
  const Question questions[] = {
      Question("llama-3.1-8b", "dgx-h100", "training", {"global_batch=64"}),
      Question("mixtral-8x7b", "dgx-a100-80gb", "training", {"global_batch=32"}),
      Question("llama-3.1-70b", "dgx-a100-40gb", "inference"),
      Question("mixtral-8x7b", "rtx-4090", "inference", {"precision=int8"}),
  };
  for (const Question& q : questions) {
    const SearchResult fast = q.Find(16);
    const SearchResult whole = q.Find(16, "", false);
    EXPECT_EQ(FiguresOf(fast.plans), FiguresOf(whole.plans)) << q.model.name;
    EXPECT_EQ(FiguresOf(fast.pareto), FiguresOf(whole.pareto)) << q.model.name;
    ASSERT_EQ(fast.plans.empty(), whole.plans.empty()) << q.model.name;
    if (!fast.plans.empty()) {
      EXPECT_EQ(LayoutText(fast.plans[0].layout), LayoutText(whole.plans[0].layout));
    }
    if (q.workload.mode == Mode::kTraining) {
      EXPECT_LT(fast.evaluated, whole.evaluated);
      EXPECT_EQ(fast.evaluated + fast.pruned, whole.evaluated);
    }
  }
}

TEST(Search, ForTheBestAloneFindsTheBestWithAndWithoutStages) {
  const Question questions[] = {
      Question("llama-3.1-8b", "dgx-h100", "training", {"global_batch=64"}),
      Question("llama-3.1-8b", "rtx-4090", "training", {"global_batch=48"}),
      Question("mixtral-8x7b", "dgx-a100-80gb", "training", {"global_batch=32"}),
      Question("llama-3.1-70b", "dgx-h100", "training", {"global_batch=128"}),
  };
  for (const Question& q : questions) {
    for (const int64_t devices : {16, 64}) {
      SearchOptions options;
      options.devices = devices;
      const SearchResult whole = Search(q.context(), options).value();
      options.only_best = true;
      const SearchResult best = Search(q.context(), options).value();
      EXPECT_LT(best.evaluated, whole.evaluated);
      ASSERT_EQ(best.plans.empty(), whole.plans.empty());
      for (const bool staged : {false, true}) {
        const auto first = [&](const SearchResult& result) {
          const auto it = std::find_if(result.plans.begin(), result.plans.end(),
                                       [&](const Plan& p) { return (p.layout.pp > 1) == staged; });
          return it == result.plans.end() ? std::string("none")
                                          : fmt::format("{} {} {}", LayoutText(it->layout),
                                                        it->layout.schedule, it->tokens_per_s);
        };
        EXPECT_EQ(first(best), first(whole)) << q.model.name << " on " << devices;
      }
    }
  }
}

TEST(Search, TheLeastOfATrainingLayoutIsNoMoreThanItsPrice) {
  for (const char* name : {"llama-3.1-8b", "deepseek-v3", "smollm2-135m"}) {
    const Question q(name, "dgx-h200", "training", {"global_batch=240"});
    TrainingPricer pricer(q.context());
    int tight = 0;
    int all = 0;
    for (const int64_t pp : {1, 2, 3, 7, 10}) {
      for (const auto& [schedule, chunks] :
           std::vector<std::pair<std::string, int64_t>>{{"gpipe", 1},
                                                        {"1f1b", 1},
                                                        {"interleaved-1f1b", 2},
                                                        {"looped-bfs", 3},
                                                        {"interleaved-zb", 2},
                                                        {"zb-h1", 1},
                                                        {"zb-h2", 1},
                                                        {"zb-v", 2},
                                                        {"v-half", 2},
                                                        {"v-min", 2},
                                                        {"dualpipe-v", 2}}) {
        for (const auto& [dp, tp, mb] :
             {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1}, {8, 1, 2}, {6, 8, 5}}) {
          for (const int zero : {0, 1, 3}) {
            Plan plan;
            plan.layout.pp = pp;
            plan.layout.dp = dp;
            plan.layout.tp = tp;
            plan.layout.micro_batch = mb;
            plan.layout.schedule = schedule;
            plan.layout.chunks = chunks;
            plan.layout.zero = zero;
            if (!Impossible(q.context(), plan.layout).empty()) {
              continue;
            }
            const LeastPlan least = pricer.Least(plan.layout);
            pricer.Price(plan);
            const std::string what =
                fmt::format("{} {} {}", name, schedule, LayoutText(plan.layout));
            EXPECT_LE(least.step_s, plan.step_s) << what;
            EXPECT_LE(pricer.LeastStepSeconds(plan.layout), plan.step_s) << what;
            EXPECT_LE(least.peak_bytes, plan.memory.peak()) << what;
            tight += least.step_s > 0.8 * plan.step_s ? 1 : 0;
            ++all;
          }
        }
      }
    }
    EXPECT_GT(tight, all / 2) << name;  // a bound that says something
  }
}

// Fewer devices are slower and cheaper: whoever looks for the cheapest finds them.
TEST(Search, TheParetoSetOfTrainingHoldsTheCheapestPlanAndTheOneOfLeastMemory) {
  const Question q("llama-3.1-8b", "dgx-h100", "training", {"global_batch=64"});
  const SearchResult result = q.Find(64);
  const auto least = [](const std::vector<Plan>& plans, const auto& of) {
    double value = INFINITY;
    for (const Plan& p : plans) {
      value = std::min(value, of(p));
    }
    return value;
  };
  int64_t fewest = 64;
  for (const Plan& p : result.pareto) {
    fewest = std::min(fewest, p.layout.devices());
  }
  EXPECT_LT(fewest, 16);
  for (const int64_t devices : {8, 16, 32, 64}) {
    const SearchResult there = q.Find(devices, "", false);
    const auto cost = [](const Plan& p) { return p.cost_per_million_tokens; };
    const auto peak = [](const Plan& p) { return p.memory.peak(); };
    EXPECT_LE(least(result.pareto, cost), least(there.plans, cost) * 1.02) << devices;
    EXPECT_LE(least(result.pareto, peak), least(there.plans, peak) * 1.02) << devices;
  }
  // A script gets a part of a large set, the cheapest in it.
  Answer answer;
  answer.search = result;
  const Json shown = AnswerJson(q.context(), answer, 1)["pareto"];
  EXPECT_LE(shown.size(), 64u);
  double cheapest = INFINITY;
  for (const Json& plan : shown) {
    cheapest = std::min(cheapest, plan["cost_per_million_tokens"].get<double>());
  }
  EXPECT_EQ(cheapest,
            least(result.pareto, [](const Plan& p) { return p.cost_per_million_tokens; }));
}

TEST(Search, SeveralPrecisionsAreSearchedAndTheBestStandsFirst) {
  const Question q("llama-3.1-70b", "dgx-h100", "inference");
  const SearchResult wide = q.Find(4, "precision=bf16");
  const SearchResult narrow = q.Find(4, "precision=fp8");
  const SearchResult both = q.Find(4, "precision=bf16/fp8");
  EXPECT_EQ(both.evaluated, wide.evaluated + narrow.evaluated);
  ASSERT_FALSE(both.plans.empty());
  EXPECT_EQ(both.plans[0].layout.precision, hw::Precision::kFp8);
  EXPECT_EQ(both.plans[0].tokens_per_s, narrow.plans.at(0).tokens_per_s);
  EXPECT_FALSE(ParseFixed("precision=bf16/fp7", 80).ok());
}

TEST(Search, EveryLayerStandsInOneStageOfEveryPlan) {
  const Question q("deepseek-v3", "dgx-h200", "training", {"global_batch=256"});
  const SearchResult result = q.Find(256);
  ASSERT_FALSE(result.plans.empty());
  for (const Plan& plan : result.plans) {
    EXPECT_EQ(std::accumulate(plan.layout.cut.begin(), plan.layout.cut.end(), 0), 63);
    EXPECT_TRUE(plan.memory.fits());
    EXPECT_LE(plan.layout.devices(), 256);
  }
}

TEST(Search, NoPlanOfTheParetoSetIsDominated) {
  const Question q("llama-3.1-70b", "dgx-h100", "inference");
  const SearchResult result = q.Find(16);
  ASSERT_GT(result.pareto.size(), 3u);
  for (const Plan& a : result.pareto) {
    for (const Plan& b : result.pareto) {
      const bool better = a.tpot_s < b.tpot_s && a.tokens_per_s > b.tokens_per_s &&
                          a.cost_per_million_tokens < b.cost_per_million_tokens &&
                          a.memory.peak() < b.memory.peak();
      EXPECT_FALSE(better);
    }
  }
}

TEST(Search, AFixedLayoutThatNeedsMoreDevicesSaysSo) {
  const Question q("llama-3.1-8b", "dgx-h100", "inference");
  const SearchResult result = q.Find(4, "tp=8,pp=1,dp=1");
  EXPECT_TRUE(result.plans.empty());
  ASSERT_FALSE(result.rejected.empty());
  EXPECT_NE(result.rejected[0].why.find("8 devices of 4"), std::string::npos);
}

// The textbook: inside one scale-up domain whose memory holds model and KV, decode gains nothing.
TEST(Verdict, InsideADomainThatHoldsTheModelDecodeGainsNothingFromStages) {
  for (const char* model : {"llama-3.1-8b", "llama-3.1-70b", "qwen3-32b"}) {
    const Question q(model, "dgx-h100", "inference");
    const Verdict v = q.Answer(8);
    EXPECT_FALSE(v.pipeline) << model << ": " << v.reason;
    EXPECT_EQ(v.gain, 1.0);
    EXPECT_NE(v.reason.find("Do not pipeline"), std::string::npos) << v.reason;
  }
}

TEST(Verdict, AModelThatOutgrowsTheDomainGains) {
  // 405B in bf16 (812 GB) over two nodes of 640 GB.
  const Question q("llama-3.1-405b", "dgx-h100", "inference", {"sequences=256"});
  const Verdict v = q.Answer(16);
  EXPECT_TRUE(v.pipeline) << v.reason;
  EXPECT_GT(v.gain.value_or(2), 1.02) << v.reason;
}

// Pencil and paper: C / W rows share a 2-byte weight before 2 operations per weight take as long.
TEST(Verdict, TheBreakEvenBatchIsRateOverBandwidth) {
  const Question q("llama-3.1-8b", "dgx-h100", "inference");
  const Verdict v = q.Answer(1);
  const hw::Calibration& c = q.system.inference;
  const double by_hand = q.system.device.Rate(hw::Precision::kBf16).second *
                         c.matrix_efficiency.At(1000) /
                         (q.system.device.memory_bandwidth * c.memory_efficiency);
  ASSERT_TRUE(v.break_even.batch);
  EXPECT_NEAR(*v.break_even.batch / by_hand, 1, 0.15);  // rows are read and written too
  // The terms that stand beside it give it, to the next whole row.
  const BreakEven& e = v.break_even;
  const double by_terms = e.weights_s / (e.arithmetic_row_s - e.activations_row_s);
  EXPECT_LE(by_terms, *e.batch);
  EXPECT_GT(by_terms, *e.batch - 1.5);
  EXPECT_NEAR(e.weights_s / e.arithmetic_row_s / by_hand, 1, 0.05);
  const std::string line =
      fmt::format("with {:.0f} or more rows per read of the weights", *e.batch);
  const std::string terms = fmt::format(
      ": weights {} / (arithmetic {} - activations {} per row).", FormatSeconds(e.weights_s),
      FormatSeconds(e.arithmetic_row_s), FormatSeconds(e.activations_row_s));
  EXPECT_TRUE(std::any_of(v.lines.begin(), v.lines.end(), [&](const std::string& text) {
    return text.find(line) != std::string::npos && text.ends_with(terms);
  })) << terms;
}

TEST(Verdict, WhatBindsALayoutThatWasAskedForIsItsOwn) {
  const Question serve("llama-3.1-8b", "dgx-h100", "inference");
  const Verdict two = serve.Answer(2, "pp=2");
  ASSERT_TRUE(two.best);
  EXPECT_FALSE(two.without);
  EXPECT_EQ(two.bound_by, two.best->bound_by);
  EXPECT_NE(two.bound_by, "capacity");
  EXPECT_NE(two.reason.find("--fix leaves no layout without stages"), std::string::npos);
  const Question train("llama-3.1-8b", "dgx-h100", "training", {"global_batch=64"});
  for (const char* fix :
       {"chunks=2", "schedule=zb-v", "schedule=interleaved-1f1b", "layers=16/16"}) {
    const Verdict v = train.Answer(16, fix);
    ASSERT_TRUE(v.best) << fix << v.reason;
    EXPECT_EQ(v.bound_by, v.best->bound_by) << fix;
    EXPECT_NE(v.bound_by, "capacity") << fix;
    EXPECT_NE(v.reason.find("--fix leaves no layout without stages"), std::string::npos)
        << v.reason;
  }
  // One device of two holds it no more: then it is capacity.
  const Verdict big = Question("llama-3.1-70b", "dgx-h100", "inference").Answer(3, "tp=1");
  ASSERT_TRUE(big.best) << big.reason;
  EXPECT_FALSE(big.without);
  EXPECT_EQ(big.bound_by, "capacity");
  EXPECT_NE(big.reason.find("without stages nothing fits"), std::string::npos) << big.reason;
}

TEST(Verdict, TheBreakEvenTrafficIsWhereTheBestPlanChangesSides) {
  Question q("llama-3.1-8b", "dgx-h100", "inference", {"prompt_tokens=2000", "sequences=32"});
  q.system.device.memory_bytes = 24e9;  // two cards whose memory soon runs out
  q.system.device.memory_reserve_bytes = 1e9;
  for (hw::LinkLevel& link : q.system.links) {  // and 10 Gbit/s between them
    link.latency_s = 5e-5;
    link.bandwidth = 1.2e9;
    link.collective_latency_s = 2e-4;
  }
  const Verdict v = q.Answer(2);
  ASSERT_TRUE(v.break_even.sequences) << v.reason;
  const auto piped = [&](double sequences) {
    Question there = q;
    there.workload.inference.sequences = std::round(sequences);
    return there.Answer(2).pipeline;
  };
  EXPECT_NE(piped(*v.break_even.sequences * 0.9), piped(*v.break_even.sequences * 1.1));
  EXPECT_GT(v.break_even.requests_per_s.value_or(0), 0);
  EXPECT_GE(v.break_even.full_groups, 2);
}

TEST(Verdict, StagesReadTheWeightsOncePerGroupAndTensorParallelismOnce) {
  const Question q("llama-3.1-405b", "dgx-h100", "inference", {"sequences=256"});
  const Verdict v = q.Answer(16);
  const StagesAgainstTensor& a = v.against;
  ASSERT_EQ(a.stages, v.best->layout.pp);
  const double weights = 2 * q.model.parameters;
  const auto groups = static_cast<double>(v.best->layout.micro_batches);
  EXPECT_NEAR((a.pipeline_bytes - a.tensor_bytes) / ((groups - 1) * weights), 1, 0.01);
  EXPECT_EQ(a.collectives, 2 * 126 + 1);  // two per layer, one for the embedding
  EXPECT_GT(a.collectives_s, a.hops_s);
}

TEST(Verdict, LatencyNeverImprovesWithStages) {
  const Question q("llama-3.1-8b", "dgx-h100", "inference", {"sequences=1"});
  const double one = q.Find(1, "tp=1,pp=1").plans.at(0).tpot_s;
  for (const int pp : {2, 4, 8}) {
    const double more = q.Find(pp, fmt::format("tp=1,pp={},dp=1", pp)).plans.at(0).tpot_s;
    EXPECT_GE(more, one * 0.999) << pp;
  }
}

TEST(Verdict, TrainingGainsMoreThanServingSinceStatesShrinkToo) {
  // Two nodes hold the 350 GB of weights for serving; training holds 18 bytes per parameter.
  const Verdict serve = Question("gpt3-175b", "dgx-a100-80gb", "inference").Answer(128);
  const Verdict train =
      Question("gpt3-175b", "dgx-a100-80gb", "training", {"global_batch=512"}).Answer(128);
  EXPECT_FALSE(serve.pipeline) << serve.reason;
  EXPECT_TRUE(train.pipeline) << train.reason;
  EXPECT_GT(train.gain.value_or(2), serve.gain.value_or(2) + 0.02);
}

TEST(Verdict, NamesTheConstantThatWouldTurnIt) {
  const Question q("llama-3.1-70b", "dgx-h100", "inference");
  SearchOptions options;
  options.devices = 16;
  const Verdict v = q.Answer(16);
  ASSERT_FALSE(v.pipeline);
  const auto memory =
      std::find_if(v.sensitivity.begin(), v.sensitivity.end(),
                   [](const Sensitivity& s) { return s.constant == "memory per device"; });
  ASSERT_NE(memory, v.sensitivity.end());
  EXPECT_LT(memory->flips_at, memory->value);
  // At that value the search itself says so.
  Question less = q;
  less.system.device.memory_reserve_bytes *= memory->flips_at / memory->value;
  less.system.device.memory_bytes = memory->flips_at * 0.99;
  EXPECT_TRUE(less.Answer(16).pipeline);
}

// Both sides of every named value, by the whole search.
TEST(Verdict, TurnsOnBothSidesOfEveryValueThatItNames) {
  const Question questions[] = {
      Question("llama-2-7b", "rtx-4090", "training", {"global_batch=64"}),
      Question("mixtral-8x7b", "rtx-4090", "inference", {"precision=int8"}),
  };
  for (const Question& q : questions) {
    const Verdict v = q.Answer(8);
    for (const Sensitivity& s : v.sensitivity) {
      if (s.constant != "memory bandwidth") {
        continue;
      }
      const double aside = s.flips_at > s.value ? 1.02 : 1 / 1.02;
      Question there = q;
      there.system.device.memory_bandwidth = s.flips_at * aside;
      EXPECT_NE(there.Find(8).plans.at(0).layout.pp > 1, v.pipeline) << q.model.name;
      there.system.device.memory_bandwidth = s.flips_at / aside;
      EXPECT_EQ(there.Find(8).plans.at(0).layout.pp > 1, v.pipeline) << q.model.name;
    }
  }
}

TEST(Search, TheBestStandsInTheParetoSetAfterSimulating) {
  const Question q("llama-3.1-8b", "dgx-h100", "training", {"global_batch=64"});
  const SearchResult result = q.Find(16);
  double most = 0;
  for (const Plan& plan : result.pareto) {
    most = std::max(most, plan.tokens_per_s);
    EXPECT_GE(plan.exposed_s, 0);
  }
  for (const Plan& plan : result.plans) {
    EXPECT_LE(plan.tokens_per_s, most * (1 + 1e-12));
  }
}

TEST(Search, AKeyOfTheOtherKindOfWorkIsRefused) {
  const Question q("llama-3.1-8b", "dgx-h100", "inference");
  SearchOptions options;
  options.fixed = ParseFixed("zero=2", 32).value();
  const auto result = Search(q.context(), options);
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.error().message.find("--fix zero"), std::string::npos);
}

TEST(Workload, KeysOfTheOtherSectionAndPartsOfASequenceAreRefused) {
  EXPECT_FALSE(ReadWorkload("inference", "", {"training.global_batch=3"}).ok());
  EXPECT_FALSE(ReadWorkload("inference", "", {"sequences=2.5"}).ok());
  EXPECT_TRUE(ReadWorkload("inference", "", {"requests_per_s=2", "sequences=0"}).ok());
}

TEST(Verdict, WhereNothingFitsTheNearestLayoutSaysWhatItLacks) {
  const Question q("llama-3.1-70b", "dgx-h100", "inference");
  const Verdict v = q.Answer(1);
  EXPECT_FALSE(v.best.has_value());
  EXPECT_NE(v.reason.find("Nothing fits"), std::string::npos);
  EXPECT_NE(v.reason.find("more than the"), std::string::npos) << v.reason;
}

TEST(Verdict, TheReplicaRuleGivesItsPublishedPoints) {
  EXPECT_NEAR(ReplicaRule(0.1, 2), 1.005, 0.001);
  EXPECT_NEAR(ReplicaRule(0.5, 4), 1.27, 0.005);
  EXPECT_NEAR(ReplicaRule(0.9, 4), 4.6, 0.05);
}

TEST(Memory, KvPerDeviceDoesNotFallWithStagesAtTheSameSequencesPerGroup) {
  const Question q("llama-3.1-8b", "dgx-h100", "inference", {"sequences=8"});
  const double one = q.Find(1, "tp=1,pp=1,dp=1").plans.at(0).memory.kv;
  const Question four("llama-3.1-8b", "dgx-h100", "inference", {"sequences=32"});
  const Plan staged = four.Find(4, "tp=1,pp=4,dp=1").plans.at(0);
  EXPECT_EQ(staged.layout.micro_batch, 8);
  // The fullest of four uneven stages: the cut gives the head's stage fewer layers.
  EXPECT_NEAR(staged.memory.kv / one, 1, 0.15);
  EXPECT_LT(staged.memory.weights, 0.32 * q.Find(1, "tp=1,pp=1").plans.at(0).memory.weights);
}

TEST(Memory, InFlightByClosedFormIsNotBelowTheSimulatedSchedule) {
  for (const auto& [name, chunks] :
       std::vector<std::pair<std::string, int64_t>>{{"gpipe", 1},
                                                    {"1f1b", 1},
                                                    {"interleaved-1f1b", 2},
                                                    {"interleaved-1f1b", 3},
                                                    {"zb-h1", 1},
                                                    {"zb-h2", 1},
                                                    {"zb-v", 2},
                                                    {"dualpipe-v", 2}}) {
    Layout layout;
    layout.pp = 4;
    layout.chunks = chunks;
    layout.micro_batches = 16;
    layout.schedule = name;
    const auto schedule = ScheduleOf(layout);
    ASSERT_TRUE(schedule.ok()) << schedule.error().message;
    const cost::CostModel costs =
        cost::MakeUniformCost({}, static_cast<int>(layout.stages()), static_cast<int>(chunks));
    const auto result = sim::Simulate(schedule.value(), costs);
    ASSERT_TRUE(result.ok()) << result.error().message;
    for (int64_t r = 0; r < layout.pp; ++r) {
      const double peak = result->ranks[static_cast<size_t>(r)].peak_activations;
      EXPECT_GE(InFlight(layout, r), peak - 1.01) << name << " rank " << r;
      EXPECT_LE(InFlight(layout, 0), result->ranks[0].peak_activations + 1.01) << name;
    }
  }
}

TEST(Training, ClosedFormsAreNearTheSimulator) {
  const Question q("llama-3.1-8b", "dgx-h100", "training", {"global_batch=64"});
  for (const auto& [name, chunks] : std::vector<std::pair<std::string, int64_t>>{
           {"gpipe", 1}, {"1f1b", 1}, {"interleaved-1f1b", 2}, {"zb-h1", 1}}) {
    Plan plan;
    plan.layout.pp = 4;
    plan.layout.tp = 2;
    plan.layout.micro_batch = 1;
    plan.layout.chunks = chunks;
    plan.layout.schedule = name;
    plan.layout.recompute = Recompute::kSelective;
    TrainingPricer pricer(q.context());
    pricer.Price(plan);
    const double closed = plan.step_s;
    ASSERT_TRUE(pricer.Simulate(plan).ok());
    EXPECT_NEAR(closed / plan.step_s, 1, 0.04) << name;
  }
}

TEST(Emit, MegatronsLayoutStringHasEveryLayerOnceInItsStage) {
  const Question q("llama-3.1-405b", "dgx-h100", "training", {"global_batch=256"});
  const SearchResult result = q.Find(256, "tp=8,pp=8,chunks=4,schedule=interleaved-1f1b");
  ASSERT_FALSE(result.plans.empty());
  const Layout& layout = result.plans[0].layout;
  const auto stages = schedule::ParseLayout(MegatronLayout(layout), 8);
  ASSERT_TRUE(stages.ok()) << stages.error().message << " " << MegatronLayout(layout);
  const std::vector<int64_t> layers = DecoderLayers(layout.cut);
  ASSERT_EQ(stages->size(), layers.size());
  for (size_t s = 0; s < layers.size(); ++s) {
    EXPECT_EQ(static_cast<int64_t>(stages.value()[s].decoder_layers.size()), layers[s]) << s;
  }
  const auto flags = Emit(q.context(), result.plans[0], "megatron");
  ASSERT_TRUE(flags.ok()) << flags.error().message;
  EXPECT_NE(flags->find("--tensor-model-parallel-size 8"), std::string::npos);
  EXPECT_FALSE(Emit(q.context(), result.plans[0], "vllm").ok());
  EXPECT_FALSE(Emit(q.context(), result.plans[0], "penstock").ok());
  EXPECT_FALSE(Emit(q.context(), result.plans[0], "other").ok());
}

TEST(Report, TheJsonHasTheKeysOfTheContract) {
  const Question q("llama-3.1-8b", "dgx-h100", "inference");
  SearchOptions options;
  options.devices = 2;
  Answer answer;
  answer.search = Search(q.context(), options).value();
  answer.verdict = Judge(q.context(), options, answer.search);
  const Json j = AnswerJson(q.context(), answer, 5);
  for (const char* key : {"verdict", "plans", "rejected", "evaluated", "seconds_s"}) {
    EXPECT_TRUE(j.contains(key)) << key;
  }
  for (const char* key :
       {"pipeline", "gain", "reason", "bound_by", "best", "best_without_pipelining"}) {
    EXPECT_TRUE(j["verdict"].contains(key)) << key;
  }
  for (const char* key : {"dp",
                          "tp",
                          "pp",
                          "ep",
                          "cp",
                          "chunks",
                          "layers_per_stage",
                          "micro_batch",
                          "micro_batches",
                          "schedule",
                          "recompute",
                          "precision",
                          "devices",
                          "memory",
                          "step_s",
                          "compute_s",
                          "memory_s",
                          "communication_s",
                          "bubble_s",
                          "bubble_ratio",
                          "mfu",
                          "ttft_s",
                          "tpot_s",
                          "tokens_per_s",
                          "tokens_per_s_per_device",
                          "cost_per_million_tokens",
                          "bound_by"}) {
    EXPECT_TRUE(j["plans"][0].contains(key)) << key;
  }
}

}  // namespace
}  // namespace penstock::plan
