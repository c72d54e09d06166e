// The same bits of loss and gradients whatever the schedule, the cut and the number of threads, as
// long as micro-batches, slices and lanes are the same; and the memory that was foretold.

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "model/cut.h"
#include "schedule/passes.h"
#include "schedule/registry.h"
#include "support/training_runs.h"

namespace penstock::testing {
namespace {

std::string ModelPath(const std::string& name) {
  return std::string(PENSTOCK_SOURCE_DIR) + "/tests/golden/models/" + name;
}

// One model and its micro-batches, and the one stage that all are compared with.
class Comparison {
 public:
  Comparison(const std::string& name, int micro_batches) {
    auto opened = OpenTrainModel(ModelPath(name));
    EXPECT_TRUE(opened.ok()) << (opened.ok() ? "" : opened.error().message);
    model_ = std::move(opened).value();
    batches_ = RandomBatches(micro_batches, model_.graph.value(model_.graph.logits).width, 24, 5);
  }

  const TrainModel& model() const { return model_; }

  const std::vector<runtime::MicroBatchData>& batches() const { return batches_; }

  TrainOutcome Run(const TrainCase& test, const schedule::Schedule* compute = nullptr) const {
    auto outcome = RunTrainCase(model_, test, batches_, compute);
    EXPECT_TRUE(outcome.ok()) << test.Text() << ": "
                              << (outcome.ok() ? "" : outcome.error().message);
    return outcome.ok() ? std::move(outcome).value() : TrainOutcome();
  }

  // One stage with the lanes and slices of the case.
  TrainOutcome Reference(const TrainCase& test) const {
    TrainCase one = test;
    one.schedule = test.slices > 1 ? "sliced-1f1b" : "1f1b";
    one.ranks = 1;
    one.chunks = 0;
    one.threads = 1;
    one.replicas = 1;
    one.cut.clear();
    one.micro_batches = test.micro_batches * test.replicas;
    one.recompute = runtime::Recompute::kNone;
    return Run(one);
  }

 private:
  TrainModel model_;
  std::vector<runtime::MicroBatchData> batches_;
};

void ExpectSame(const TrainOutcome& wanted, const TrainOutcome& got, const std::string& text) {
  EXPECT_EQ(wanted.loss, got.loss) << text;
  ASSERT_EQ(wanted.gradients.size(), got.gradients.size()) << text;
  for (const auto& [name, numbers] : wanted.gradients) {
    const auto it = got.gradients.find(name);
    ASSERT_NE(it, got.gradients.end()) << text << ": " << name;
    ASSERT_EQ(numbers.size(), it->second.size());
    EXPECT_EQ(std::memcmp(numbers.data(), it->second.data(), numbers.size() * 4), 0)
        << text << ": " << name;
  }
}

// Every category of every rank within 2 %.
void ExpectPlannedMemory(const TrainOutcome& outcome, const std::string& text) {
  for (size_t r = 0; r < outcome.ranks.size(); ++r) {
    const MemoryFigures& planned = outcome.ranks[r].planned;
    const MemoryFigures& peak = outcome.ranks[r].peak;
    for (size_t c = 0; c < kMemoryCategories; ++c) {
      EXPECT_NEAR(static_cast<double>(peak.bytes[c]), static_cast<double>(planned.bytes[c]),
                  0.02 * static_cast<double>(planned.bytes[c]))
          << text << ", rank " << r << ", " << MemoryCategoryName(static_cast<MemoryCategory>(c));
    }
  }
}

// Lanes of a schedule over m micro-batches.
std::vector<int32_t> LanesOf(const schedule::Schedule& schedule) {
  return schedule.placement.num_directions() == 2
             ? std::vector<int32_t>{0, schedule.direction_split()}
             : std::vector<int32_t>{};
}

void CheckSchedules(const std::string& model, int m, int most_ranks, float dropout,
                    runtime::Recompute recompute) {
  const Comparison comparison(model, m);
  std::map<std::string, TrainOutcome> references;  // by lanes and slices
  for (const schedule::GeneratorInfo& info : schedule::Generators()) {
    if (!info.backward) {
      continue;
    }
    for (int p = 1; p <= most_ranks; ++p) {
      for (int v = 1; v <= 2; ++v) {
        if (v != info.default_chunks && !info.any_chunks) {
          continue;
        }
        TrainCase test;
        test.schedule = info.name;
        test.ranks = p;
        test.chunks = v;
        test.micro_batches = m;
        test.dropout = dropout;
        test.recompute = recompute;
        test.slices = info.default_slices;
        const auto generated = schedule::Generate(info.name, {p, m, v, test.slices});
        if (!generated.ok()) {
          continue;  // an odd number of ranks, or micro-batches that do not fit
        }
        test.lane_starts = LanesOf(generated.value());
        const std::string key =
            std::to_string(test.lane_starts.size()) + "/" + std::to_string(test.slices);
        if (!references.contains(key)) {
          references[key] = comparison.Reference(test);
        }
        const TrainOutcome outcome = comparison.Run(test);
        ExpectSame(references[key], outcome, test.Text());
        ExpectPlannedMemory(outcome, test.Text());
      }
    }
  }
}

TEST(TrainingEqualityTest, EveryScheduleGivesTheBitsOfOneStage) {
  CheckSchedules("smollm2", 4, 3, 0, runtime::Recompute::kNone);
}

TEST(TrainingEqualityTest, DropoutAndFullRecomputationChangeNothing) {
  CheckSchedules("smollm2", 4, 2, 0.1F, runtime::Recompute::kFull);
}

TEST(TrainingEqualityTest, SelectiveRecomputationChangesNothing) {
  CheckSchedules("qwen3", 4, 2, 0.0F, runtime::Recompute::kSelective);
}

// One case against one stage with the same lanes and slices.
void CheckCase(const Comparison& comparison, const TrainCase& test,
               const std::vector<int32_t>& reference_lanes) {
  TrainCase one = test;
  one.lane_starts = reference_lanes;
  const TrainOutcome outcome = comparison.Run(test);
  ExpectSame(comparison.Reference(one), outcome, test.Text());
  ExpectPlannedMemory(outcome, test.Text());
}

TEST(TrainingEqualityTest, ReplicasAddUpInRankOrder) {
  const Comparison comparison("smollm2", 12);
  TrainCase test;
  test.micro_batches = 6;
  test.replicas = 2;
  test.dropout = 0.1F;
  for (const int p : {1, 2, 3}) {
    test.ranks = p;
    test.schedule = "zb-h1";
    CheckCase(comparison, test, {0, 6});
  }
  test.micro_batches = 4;
  test.replicas = 3;
  test.ranks = 2;
  CheckCase(comparison, test, {0, 4, 8});
  test.schedule = "dualpipe";
  CheckCase(comparison, test, {0, 2, 4, 6, 8, 10});
}

TEST(TrainingEqualityTest, LanesOfOneStageAreAddedOneAfterTheOther) {
  const Comparison comparison("llama3", 5);
  TrainCase test;
  test.micro_batches = 5;
  test.schedule = "1f1b";
  test.lane_starts = {0, 1, 4};
  test.ranks = 3;
  CheckCase(comparison, test, {0, 1, 4});
  // Lanes are a choice that shows: one lane gives other bits.
  TrainCase one = test;
  one.lane_starts.clear();
  EXPECT_NE(comparison.Run(test).gradients, comparison.Run(one).gradients);
}

TEST(TrainingEqualityTest, EmptyStagesPassEverythingOn) {
  const Comparison comparison("smollm2", 3);
  for (const char* schedule : {"1f1b", "zb-h2", "gpipe"}) {
    TrainCase test;
    test.schedule = schedule;
    test.ranks = 4;
    test.micro_batches = 3;
    test.cut = {1, 1, 4};
    CheckCase(comparison, test, {});
    test.cut = {2, 2, 2};
    CheckCase(comparison, test, {});
  }
  TrainCase many;
  many.schedule = "zb-v";
  many.ranks = 4;  // 8 stages for 5 units
  many.micro_batches = 3;
  CheckCase(comparison, many, {});
}

TEST(TrainingEqualityTest, SlicesOfSequencesAreOneStageWithTheSameSlices) {
  for (const char* model : {"smollm2", "gemma2"}) {
    const Comparison comparison(model, 3);
    for (const int slices : {2, 3, 5}) {
      for (const auto recompute : {runtime::Recompute::kNone, runtime::Recompute::kFull}) {
        TrainCase test;
        test.schedule = "sliced-1f1b";
        test.slices = slices;
        test.ranks = 2;
        test.micro_batches = 3;
        test.recompute = recompute;
        test.dropout = 0.1F;
        CheckCase(comparison, test, {});
      }
    }
  }
}

TEST(TrainingEqualityTest, ThreadsAndBf16ProductsChangeNothing) {
  const Comparison comparison("qwen3_moe", 3);
  TrainCase test;
  test.schedule = "zb-h1";
  test.micro_batches = 3;
  test.ranks = 2;
  test.products = kernels::ProductType::kBF16;
  for (const int threads : {2, 3}) {
    test.threads = threads;
    CheckCase(comparison, test, {});
  }
}

// W of later micro-batches before those of earlier ones: they wait for their turn, and what they
// need is counted.
TEST(TrainingEqualityTest, WeightGradientsOutOfOrderAreHeldUntilTheirTurn) {
  const Comparison comparison("smollm2", 4);
  TrainCase test;
  test.ranks = 2;
  test.micro_batches = 4;
  auto made = schedule::Generate("zb-h2", {2, 4, 0, 0});
  ASSERT_TRUE(made.ok());
  schedule::Schedule backwards = made.value();
  for (auto& program : backwards.ranks) {
    std::vector<schedule::Action> weights;
    std::erase_if(program, [&](const schedule::Action& a) {
      if (a.kind == schedule::OpKind::kBackwardWeight) {
        weights.push_back(a);
      }
      return a.kind == schedule::OpKind::kBackwardWeight;
    });
    program.insert(program.end(), weights.rbegin(), weights.rend());
  }
  const TrainOutcome outcome = comparison.Run(test, &backwards);
  ExpectSame(comparison.Reference(test), outcome, "W backwards");
  ExpectPlannedMemory(outcome, "W backwards");
}

// Values that many later stages read, and gradients that come back through stages that do not.
TEST(TrainingEqualityTest, LongValuesTravelToTheirReadersAndTheirGradientsBackThroughTheChain) {
  for (const char* model : {"arch-attnres-full", "arch-attnres-block", "arch-skips"}) {
    const Comparison comparison(model, 4);
    for (const char* schedule : {"1f1b", "zb-v", "interleaved-1f1b", "dualpipe", "hanayo"}) {
      for (const auto recompute : {runtime::Recompute::kNone, runtime::Recompute::kFull}) {
        TrainCase test;
        test.schedule = schedule;
        test.ranks = 2;
        test.micro_batches = 4;
        test.recompute = recompute;
        const auto generated = schedule::Generate(schedule, {2, 4, 0, 0});
        ASSERT_TRUE(generated.ok());
        test.lane_starts = LanesOf(generated.value());
        CheckCase(comparison, test, test.lane_starts);
      }
    }
  }
}

// Schedules that come with their messages, as files do: also ones that send values which a rank
// holds already.
TEST(TrainingEqualityTest, LoweredSchedulesRunAsTheyAre) {
  for (const char* model : {"smollm2", "arch-attnres-full"}) {
    const Comparison comparison(model, 4);
    for (const bool naive : {false, true}) {
      for (const char* name : {"1f1b", "zb-v", "interleaved-1f1b"}) {
        TrainCase test;
        test.ranks = 2;
        test.micro_batches = 4;
        auto made = schedule::Generate(name, {2, 4, 0, 0});
        ASSERT_TRUE(made.ok());
        const auto partition = model::CutBalanced(
            model::LayerCountWeights(comparison.model().graph), made.value().num_stages(), true);
        ASSERT_TRUE(partition.ok());
        made.value().edges = runtime::TrainEdges(comparison.model().graph, partition.value());
        auto lowered = schedule::AddCommunication(
            made.value(), {.route = schedule::LongRoute::kDirect, .naive = naive, .credits = 2});
        ASSERT_TRUE(lowered.ok()) << lowered.error().message;
        const TrainOutcome outcome = comparison.Run(test, &lowered.value());
        ExpectSame(comparison.Reference(test), outcome, name);
        ExpectPlannedMemory(outcome, name);
      }
    }
  }
}

TEST(TrainingEqualityTest, SlowFourRanks) {
  for (const char* model : {"smollm2", "llama3", "mixtral", "gemma2"}) {
    CheckSchedules(model, 8, 4, 0.1F, runtime::Recompute::kNone);
  }
}

}  // namespace
}  // namespace penstock::testing
