// What happens inside a training step: halves of the backward pass, memory over time, evaluation on
// the same weights, and steps that go wrong.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "schedule/registry.h"
#include "support/model_maker.h"
#include "support/process.h"
#include "support/training_runs.h"

namespace penstock::testing {
namespace {

using schedule::OpKind;

std::string ModelPath(const std::string& name) {
  return std::string(PENSTOCK_SOURCE_DIR) + "/tests/golden/models/" + name;
}

TEST(TrainingStepTest, InputAndWeightGradientsAreSeparateWorkInTheTrace) {
  auto model = OpenTrainModel(ModelPath("smollm2"));
  ASSERT_TRUE(model.ok()) << model.error().message;
  const auto batches = RandomBatches(4, 131, 48, 3);
  TrainCase test;
  test.schedule = "zb-h2";
  test.ranks = 2;
  test.micro_batches = 4;
  test.keep_trace = true;
  const auto outcome = RunTrainCase(model.value(), test, batches);
  ASSERT_TRUE(outcome.ok()) << outcome.error().message;
  std::map<OpKind, double> seconds;
  for (const runtime::RankGradients& rank : outcome.value().ranks) {
    std::map<OpKind, int> count;
    for (const trace::Slice& slice : rank.timeline.slices) {
      ++count[slice.action.kind];
      seconds[slice.action.kind] += slice.end_s - slice.start_s;
      if (schedule::IsCompute(slice.action.kind)) {
        EXPECT_GT(slice.end_s, slice.start_s);
        EXPECT_EQ(slice.rows,
                  batches[static_cast<size_t>(slice.action.micro_batch.value())].rows());
      }
    }
    // Each half once per micro-batch, none of them hidden in a B.
    EXPECT_EQ(count[OpKind::kForward], 4);
    EXPECT_EQ(count[OpKind::kBackwardInput], 4);
    EXPECT_EQ(count[OpKind::kBackwardWeight], 4);
    EXPECT_EQ(count[OpKind::kBackward], 0);
  }
  for (const auto& [kind, sum] : seconds) {
    RecordProperty(std::string(schedule::OpKindText(kind)), std::to_string(sum));
  }
}

TEST(TrainingStepTest, MemoryOfActivationsRisesToThePlanAndEndsAtNothing) {
  auto model = OpenTrainModel(ModelPath("llama3"));
  ASSERT_TRUE(model.ok()) << model.error().message;
  const auto batches = RandomBatches(8, 131, 32, 3);
  std::map<std::string, double> highest;
  for (const char* schedule : {"gpipe", "1f1b", "zb-v", "v-min"}) {
    TrainCase test;
    test.schedule = schedule;
    test.ranks = 2;
    test.micro_batches = 8;
    test.keep_trace = true;
    const auto outcome = RunTrainCase(model.value(), test, batches);
    ASSERT_TRUE(outcome.ok()) << outcome.error().message;
    for (const runtime::RankGradients& rank : outcome.value().ranks) {
      ASSERT_EQ(rank.timeline.counters.size(), 1U);
      const trace::Counter& counter = rank.timeline.counters[0];
      EXPECT_EQ(counter.name, "activations");
      EXPECT_EQ(counter.samples.back().value, 0);
      double most = 0;
      for (const trace::Counter::Sample& sample : counter.samples) {
        most = std::max(most, sample.value);
      }
      // Between actions less is held than inside one, but most of it.
      const auto planned = static_cast<double>(rank.planned[MemoryCategory::kActivations]);
      EXPECT_LE(most, planned);
      EXPECT_GE(most, planned / 2);
      highest[schedule] = std::max(highest[schedule], most);
    }
  }
  // What schedules are for: GPipe holds all micro-batches, 1F1B those in flight.
  EXPECT_LT(highest["1f1b"], 0.5 * highest["gpipe"]);
}

TEST(TrainingStepTest, RecomputationTradesMemoryForWork) {
  auto model = OpenTrainModel(ModelPath("llama2"));
  ASSERT_TRUE(model.ok()) << model.error().message;
  const auto batches = RandomBatches(6, 131, 64, 3);
  std::vector<int64_t> bytes;
  std::vector<int> again;
  for (const auto recompute :
       {runtime::Recompute::kNone, runtime::Recompute::kSelective, runtime::Recompute::kFull}) {
    TrainCase test;
    test.schedule = "gpipe";
    test.ranks = 3;
    test.micro_batches = 6;
    test.recompute = recompute;
    test.keep_trace = true;
    const auto outcome = RunTrainCase(model.value(), test, batches);
    ASSERT_TRUE(outcome.ok()) << outcome.error().message;
    // The middle rank: no embedding, no logits.
    const runtime::RankGradients& rank = outcome.value().ranks[1];
    bytes.push_back(rank.peak[MemoryCategory::kActivations]);
    again.push_back(static_cast<int>(
        std::count_if(rank.timeline.slices.begin(), rank.timeline.slices.end(),
                      [](const trace::Slice& s) { return s.action.kind == OpKind::kRecompute; })));
  }
  EXPECT_LT(bytes[1], 0.8 * static_cast<double>(bytes[0]));
  EXPECT_LT(bytes[2], 0.5 * static_cast<double>(bytes[1]));
  EXPECT_EQ(again[0], 0);
  EXPECT_GE(again[1], 5);
  EXPECT_EQ(again[1], again[2]);
}

// Trains a step and evaluates before and after it, on all ranks.
class EvalRun {
 public:
  EvalRun(const TrainModel& model, const std::string& name, int ranks,
          const std::vector<runtime::MicroBatchData>& batches)
      : model_(model), batches_(batches), ranks_(ranks) {
    const int m = static_cast<int>(batches.size());
    compute_ = schedule::Generate(name, {ranks, m, 0, 0}).value();
    partition_ =
        model::CutBalanced(model::LayerCountWeights(model.graph), compute_.num_stages(), true)
            .value();
    train_ = runtime::PrepareTrainSchedule(compute_, model.graph, partition_, {}).value();
    eval_ = runtime::PrepareTrainSchedule(runtime::ForwardOf(compute_), model.graph, partition_, {})
                .value();
  }

  // Sums over micro-batches: evaluation, training, evaluation of the first two only.
  std::vector<double> Run() {
    std::vector<std::unique_ptr<MemoryAccount>> accounts;
    for (int r = 0; r < ranks_; ++r) {
      accounts.push_back(std::make_unique<MemoryAccount>());
    }
    auto channels = comm::CreateInProcessChannels(ranks_);
    std::vector<std::vector<double>> sums(static_cast<size_t>(ranks_));
    std::vector<std::thread> threads;
    for (int r = 0; r < ranks_; ++r) {
      threads.emplace_back([&, r] {
        const auto i = static_cast<size_t>(r);
        sums[i] = RunRank(*channels[i], *accounts[i]);
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    std::vector<double> total(3, 0);
    for (const auto& rank : sums) {
      for (size_t i = 0; i < rank.size(); ++i) {
        total[i] += rank[i];
      }
    }
    return total;
  }

 private:
  struct NoOptimizer final : runtime::StepEnd {
    Result<> Optimize(StageId, std::span<const int32_t>) override { return {}; }
  };

  static double Sum(const runtime::StepResult& result) {
    double sum = 0;
    for (const double loss : result.losses) {
      sum += std::isnan(loss) ? 0 : loss;
    }
    return sum;
  }

  std::vector<double> RunRank(comm::Channel& channel, MemoryAccount& account) {
    auto device = kernels::CreateCpuDevice({}).value();
    const auto training = kernels::CreateCpuTraining(*device);
    trace::RankRecorder recorder(RankId(channel.rank()), 0);
    runtime::TrainSpec spec;
    spec.graph = &model_.graph;
    spec.partition = &partition_;
    spec.schedule = &train_;
    spec.eval_schedule = &eval_;
    spec.dropout = 0.2F;
    spec.largest = {64, 64};
    auto rank = runtime::TrainRank::Create(spec, channel, *training, account, recorder);
    EXPECT_TRUE(rank.ok()) << rank.error().message;
    EXPECT_TRUE(rank.value()->Load(*model_.files).ok());
    int64_t counted = 0;
    for (const runtime::MicroBatchData& batch : batches_) {
      counted += batch.counted();
    }
    const std::span<const runtime::MicroBatchData> all = batches_;
    NoOptimizer end;
    std::vector<double> sums;
    const auto add = [&](Result<runtime::StepResult> result) {
      EXPECT_TRUE(result.ok()) << result.error().message;
      sums.push_back(result.ok() ? Sum(result.value()) : 0);
    };
    add(rank.value()->RunEval({0, all, counted}));
    add(rank.value()->RunStep({0, all, counted}, &end));
    add(rank.value()->RunEval({1, all.first(2), counted}));
    return sums;
  }

  const TrainModel& model_;
  const std::vector<runtime::MicroBatchData>& batches_;
  int ranks_;
  schedule::Schedule compute_;
  model::Partition partition_{{0, 0}, 0};
  schedule::Schedule train_;
  schedule::Schedule eval_;
};

TEST(TrainingStepTest, EvaluationRunsOnTheSameWeightsWithoutDropout) {
  auto model = OpenTrainModel(ModelPath("smollm2"));
  ASSERT_TRUE(model.ok());
  const auto batches = RandomBatches(4, 131, 40, 9);
  const std::vector<double> one = EvalRun(model.value(), "1f1b", 1, batches).Run();
  EXPECT_NE(one[0], one[1]);  // dropout
  EXPECT_LT(one[2], one[0]);  // half of the micro-batches
  for (const char* schedule : {"1f1b", "zb-v", "dualpipe", "interleaved-1f1b"}) {
    const std::vector<double> two = EvalRun(model.value(), schedule, 2, batches).Run();
    EXPECT_NEAR(two[0], one[0], 1e-9 * one[0]) << schedule;
    EXPECT_NEAR(two[2], one[2], 1e-9 * one[2]) << schedule;
  }
}

TEST(TrainingStepTest, ALossThatIsNotFiniteNamesStepMicroBatchAndStage) {
  const TemporaryFolder folder;
  LlamaShape shape;
  TensorMap tensors = RandomLlama(shape, 3);
  for (float& x : tensors.at("lm_head.weight").values) {
    x *= 1e38F;
  }
  WriteModel(folder.path() + "/wild", LlamaConfig(shape), tensors);
  auto model = OpenTrainModel(folder.path() + "/wild");
  ASSERT_TRUE(model.ok()) << model.error().message;
  TrainCase test;
  test.ranks = 2;
  test.micro_batches = 2;
  const auto outcome = RunTrainCase(model.value(), test, RandomBatches(2, 96, 8, 1));
  ASSERT_FALSE(outcome.ok());
  EXPECT_EQ(outcome.error().code, ErrorCode::kNotFinite);
  EXPECT_NE(outcome.error().message.find("step 0, micro-batch 0, stage 1: the loss (main) is not"),
            std::string::npos)
      << outcome.error().message;
}

// What keeps a state from row to row can't be cut within a sequence; both are named, and nothing
// runs.
TEST(TrainingStepTest, ASequenceIsNotCutThroughWhatCarriesAState) {
  for (const char* name : {"deepseek_v3", "kimi_linear", "kimi_k3"}) {
    auto model = OpenTrainModel(ModelPath(name));
    ASSERT_TRUE(model.ok()) << model.error().message;
    TrainCase test;
    test.schedule = "sliced-1f1b";
    test.slices = 2;
    test.ranks = 2;
    test.micro_batches = 2;
    const auto outcome = RunTrainCase(model.value(), test, RandomBatches(2, 60, 8, 1));
    ASSERT_FALSE(outcome.ok()) << name;
    EXPECT_EQ(ExitStatus(outcome.error().code), 2) << outcome.error().message;
    EXPECT_NE(outcome.error().message.find("got 2 slices per sequence, wanted 1"),
              std::string::npos)
        << outcome.error().message;
    EXPECT_NE(outcome.error().message.find("layer"), std::string::npos) << outcome.error().message;
  }
}

// Through the verb: threads, then processes.
TEST(TrainingFaultTest, ARankThatFailsStallsOrDiesEndsAllWithinTheDeadline) {
  const TemporaryFolder folder;
  for (const int ranks : {0, 2}) {
    for (const char* fault : {"1:B0:fail", "0:I0:stall", "1:SEND_B0:stall", "1:W0:fail",
                              "1:LOAD:stall", "0:LOAD:stall"}) {
      const bool split = std::string(fault).find(":B0") == std::string::npos;
      const std::vector<std::string> command =
          PenstockCommand({"gradients", "-m", ModelPath("smollm2"), "--tokens", "1,2,3;4,5,6",
                           "--stages", "2", "--schedule", split ? "zb-h1" : "1f1b", "--deadline",
                           "1", "-o", folder.path() + "/g.safetensors"},
                          ranks);
      Running run(command, "", {std::string("PENSTOCK_FAULT=") + fault});
      const auto done = run.Wait(60);
      ASSERT_TRUE(done.has_value()) << fault << " hangs";
      EXPECT_EQ(done->status, 3) << fault << "\n" << done->err;
      const bool fails = std::string(fault).find("fail") != std::string::npos;
      const bool loads = std::string(fault).find("LOAD") != std::string::npos;
      EXPECT_NE(done->err.find(fails   ? "a declared fault"
                               : loads ? "has heard nothing of rank"
                                       : "is late or has stopped"),
                std::string::npos)
          << fault << "\n"
          << done->err;
    }
  }
}

}  // namespace
}  // namespace penstock::testing
