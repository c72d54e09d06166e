#include "plan/serving_sim.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/config_path.h"
#include "base/json.h"
#include "model/config.h"

namespace penstock::plan {
namespace {

cost::ModelProfile Profile(const char* name) {
  const auto json = ReadJsonFile(FindConfig("models", "json", name).value());
  const auto built = model::BuildModel(json.value(), name);
  return cost::BuildProfile(built->graph, name, "").value();
}

hw::Curve Line(double at_one, double per_row) {
  return hw::Curve::Make({{1, at_one}, {512, at_one + 511 * per_row}}, hw::Curve::Scale::kLinear,
                         "test")
      .value();
}

// One product shape; nothing but products takes time.
hw::Engine Machine(int64_t cores) {
  hw::Engine e;
  e.cores = cores;
  hw::ProductTable table;
  table.weights = hw::Precision::kBf16;
  table.outputs = 1000;
  table.inputs = 1000;
  table.alone_s = Line(1e-5, 1e-6);
  table.together_s = Line(1e-5, 1e-6);
  e.products.push_back(table);
  hw::AttentionTable attention;
  attention.pair_alone_s = hw::Curve(1e-18);
  attention.pair_together_s = hw::Curve(1e-18);
  e.attention.push_back(attention);
  return e;
}

ServingQuestion Ask(const cost::ModelProfile& model, const hw::Engine& engine,
                    std::vector<int32_t> units, int64_t sequences, int64_t output) {
  ServingQuestion q;
  q.model = &model;
  q.engine = &engine;
  q.units = std::move(units);
  const auto stages = static_cast<int32_t>(q.units.size());
  q.rules = {stages, 64 + sequences, 64, 0};
  q.requests.assign(static_cast<size_t>(sequences), {64, output});
  return q;
}

TEST(ServingSim, OneStageTakesTheSumOfItsSteps) {
  const cost::ModelProfile model = Profile("smollm2-135m");
  const hw::Engine engine = Machine(1);
  const ServingForecast f = ForecastServing(Ask(model, engine, {32}, 1, 9));
  double decode = 0;
  double prefill = 0;
  for (int32_t l = 0; l < model.num_layers(); ++l) {
    decode += cost::EngineRowsSeconds(model.layer(l), 1, 1, {}, {}, engine).alone_s;
    prefill += cost::EngineRowsSeconds(model.layer(l), 64, 1, {}, {}, engine).alone_s;
  }
  EXPECT_NEAR(f.prefill_s, prefill, 1e-9 + 1e-6 * prefill);
  EXPECT_NEAR(f.decode_s, 8 * decode, 1e-6 * decode);
  EXPECT_EQ(f.decode_tokens, 8);
  EXPECT_FALSE(f.shares_cores);
}

TEST(ServingSim, OneSequenceGainsNothingFromStages) {
  const cost::ModelProfile model = Profile("smollm2-135m");
  const hw::Engine engine = Machine(4);
  const ServingForecast one = ForecastServing(Ask(model, engine, {32}, 1, 33));
  const ServingForecast four = ForecastServing(Ask(model, engine, {9, 8, 8, 7}, 1, 33));
  EXPECT_NEAR(four.tpot_s, one.tpot_s, 1e-6 * one.tpot_s);
}

TEST(ServingSim, FullGroupsAreLimitedByTheSlowestStage) {
  const cost::ModelProfile model = Profile("smollm2-135m");
  const hw::Engine engine = Machine(4);
  const ServingQuestion q = Ask(model, engine, {16, 16}, 2, 65);
  const ServingForecast f = ForecastServing(q);
  double slowest = 0;
  for (const auto& [first, end] : {std::pair{0, 16}, {16, 32}}) {
    cost::EngineStage stage(model, first, end, {}, engine);
    slowest = std::max(slowest, stage.Seconds(1, 1, {}).alone_s);
  }
  // Two groups of one sequence: a lap is two passes of the slowest stage.
  EXPECT_NEAR(f.tpot_s, 2 * slowest, 0.1 * slowest);  // and the prompt of the other
}

TEST(ServingSim, HandOversCostIdleTimeWhereStagesShareCores) {
  const cost::ModelProfile model = Profile("smollm2-135m");
  hw::Engine engine = Machine(2);
  const auto Decode = [&](std::vector<int32_t> units, int64_t sequences) {
    return ForecastServing(Ask(model, engine, std::move(units), sequences, 65)).decode_s;
  };
  const double shared = Decode({11, 11, 10}, 3);
  const double own = Decode({16, 16}, 2);
  const double alone = Decode({11, 11, 10}, 1);
  constexpr double kIdle = 1e-3;
  engine.hand_over_s = hw::Curve(kIdle);
  // 3 groups, 3 stages: nine starts a lap on two cores; the last laps have fewer micro-batches.
  EXPECT_NEAR(Decode({11, 11, 10}, 3) - shared, 64 * 9 * kIdle / 2, 0.1 * 64 * 9 * kIdle / 2);
  EXPECT_DOUBLE_EQ(Decode({16, 16}, 2), own);        // a core each
  EXPECT_DOUBLE_EQ(Decode({11, 11, 10}, 1), alone);  // never two at work
}

TEST(ServingSim, DevicesBeyondTheCoresShareThem) {
  const cost::ModelProfile model = Profile("smollm2-135m");
  const hw::Engine wide = Machine(4);
  const hw::Engine narrow = Machine(2);
  const ServingForecast own = ForecastServing(Ask(model, wide, {9, 8, 8, 7}, 4, 65));
  const ServingForecast shared = ForecastServing(Ask(model, narrow, {9, 8, 8, 7}, 4, 65));
  EXPECT_FALSE(own.shares_cores);
  EXPECT_TRUE(shared.shares_cores);
  double work = 0;
  for (const double s : own.busy_s) {
    work += s;
  }
  EXPECT_GE(shared.end_s, 0.999 * work / 2);  // no more than two cores' worth
  EXPECT_LT(shared.end_s, 1.35 * work / 2);
  EXPECT_GT(shared.end_s, 1.2 * own.end_s);
}

TEST(ServingSim, MemoryThatIsSharedSlowsStagesOnlyWhileTheyRunTogether) {
  const cost::ModelProfile model = Profile("smollm2-135m");
  hw::Engine engine = Machine(2);
  engine.products[0].together_s = Line(2e-5, 2e-6);
  const ServingForecast alone = ForecastServing(Ask(model, engine, {16, 16}, 1, 33));
  const ServingForecast together = ForecastServing(Ask(model, engine, {16, 16}, 2, 33));
  // One sequence: one stage at a time, at full speed. Two: both always run, at half of it.
  EXPECT_NEAR(together.tpot_s / alone.tpot_s, 2, 0.1);
}

TEST(ServingSim, LongOutputsAreSimulatedInPieces) {
  const cost::ModelProfile model = Profile("smollm2-135m");
  const hw::Engine engine = Machine(2);
  const ServingForecast f = ForecastServing(Ask(model, engine, {16, 16}, 2, 1024));
  const ServingForecast few = ForecastServing(Ask(model, engine, {16, 16}, 2, 128));
  EXPECT_NEAR(f.decode_tokens_per_s() / few.decode_tokens_per_s(), 1, 0.05);
  EXPECT_EQ(f.decode_tokens, 2 * 1023);
  EXPECT_NEAR(f.decode_s, 1023 * f.tpot_s, 0.02 * f.decode_s);
}

TEST(EngineTrainingCosts, EachStageHasItsLayersAndTheGradientsTakeAsLongAsTheProducts) {
  const cost::ModelProfile model = Profile("smollm2-135m");
  hw::Engine engine = Machine(2);
  engine.message_s = Line(1e-5, 1e-9);
  const std::vector<int32_t> units = {16, 16};
  const cost::CostModel costs =
      cost::EngineTrainingCosts(model, units, 256, 256, {}, engine, false);
  ASSERT_EQ(costs.stages.size(), 2u);
  double first = 0;
  for (int32_t l = 0; l < 16; ++l) {
    first += cost::EngineRowsSeconds(model.layer(l), 256, 256, {}, {}, engine).together_s;
  }
  EXPECT_NEAR(costs.stages[0].f_s / first, 1, 1e-6);
  EXPECT_NEAR(costs.stages[0].w_s / first, 1, 1e-6);
  // Tokens have no gradient: the embedding has no I.
  const double embedding =
      cost::EngineRowsSeconds(model.layer(0), 256, 256, {}, {}, engine).together_s;
  EXPECT_NEAR(costs.stages[0].i_s, first - embedding, 1e-6 * first);
  EXPECT_EQ(costs.stages[0].output_bytes, 256 * 576 * 4);
  EXPECT_NEAR(costs.link.latency_s, 1e-5, 1e-9);
}

TEST(CutByEngine, AByteWeighsWhatItTakesInMultiplyAdds) {
  hw::Engine engine = Machine(2);
  engine.message_s = Line(1e-5, 1e-9);
  const auto weight = [&](bool processes) {
    return cost::DecodeWorkPerByte(engine, hw::Precision::kBf16, processes);
  };
  // 4 rows of a product of 1e6 weights: 1e-5 s and 3 times 1e-6 s.
  EXPECT_NEAR(weight(false), 1e-9 / (1.3e-5 / 4e6), 1e-3);
  EXPECT_EQ(weight(true), weight(false)) << "processes were not measured";
  engine.mpi_message_s = Line(1e-5, 3e-9);
  EXPECT_NEAR(weight(true), 3 * weight(false), 1e-3);
  // 512 rows; forward and backward multiply three times, and send a value and its gradient.
  EXPECT_NEAR(cost::TrainWorkPerByte(engine, false), 1e-9 / (5.21e-4 / 512e6) * 2 / 3, 1e-5);
  engine.message_s = Line(1e-5, 0);
  EXPECT_GT(weight(false), 0) << "measured, and next to nothing";
  EXPECT_EQ(cost::DecodeWorkPerByte(hw::Engine(), hw::Precision::kBf16, false), 0);
}

TEST(ServingSim, AnEngineReadsBackAsItWasWritten) {
  hw::Engine engine = Machine(2);
  engine.operation = {1e-6, 2e-6};
  engine.message_s = Line(1e-5, 1e-9);
  engine.thread_speedup = {{2, 16, 1.9}};
  engine.hand_over_s =
      hw::Curve::Make({{3, 2e-4}, {4, 1e-4}}, hw::Curve::Scale::kLogX, "test").value();
  const auto table = ParseToml(hw::FormatEngine(engine), "engine.toml");
  ASSERT_TRUE(table.ok());
  const auto read = hw::ReadEngine(table->Table("engine").value());
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->cores, 2);
  EXPECT_NEAR(read->ProductSeconds(hw::Precision::kBf16, 1000, 1000, 100).alone_s,
              engine.ProductSeconds(hw::Precision::kBf16, 1000, 1000, 100).alone_s, 1e-9);
  EXPECT_DOUBLE_EQ(read->Speedup(2, 20), 1.9);
  EXPECT_DOUBLE_EQ(read->operation.together_s, 2e-6);
  EXPECT_DOUBLE_EQ(read->HandOver(3), 2e-4);
  EXPECT_DOUBLE_EQ(read->HandOver(64), 1e-4);
  EXPECT_DOUBLE_EQ(Machine(2).HandOver(3), 0);
}

TEST(ServingSim, ProductsBetweenMeasuredShapesLieBetweenThem) {
  hw::Engine engine = Machine(1);
  hw::ProductTable slow = engine.products[0];
  slow.outputs = 4000;
  slow.inputs = 4000;
  slow.alone_s = Line(16 * 4e-5, 16 * 4e-6);  // per weight four times as long
  slow.together_s = slow.alone_s;
  engine.products.push_back(slow);
  const double per_weight =
      engine.ProductSeconds(hw::Precision::kBf16, 2000, 2000, 1).alone_s / 4e6;
  EXPECT_GT(per_weight, 1e-11);
  EXPECT_LT(per_weight, 4e-11);
  // Another type is priced as the nearest that was measured.
  EXPECT_DOUBLE_EQ(engine.ProductSeconds(hw::Precision::kFp8, 2000, 2000, 1).alone_s,
                   engine.ProductSeconds(hw::Precision::kBf16, 2000, 2000, 1).alone_s);
}

}  // namespace
}  // namespace penstock::plan
