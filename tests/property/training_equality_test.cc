// The same bits of loss and gradients whatever the schedule, the cut and the number of threads, as
// long as micro-batches, slices and lanes are the same; and the memory that was foretold.

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

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

TEST(TrainingEqualityTest, SlowFourRanks) {
  for (const char* model : {"smollm2", "llama3", "mixtral", "gemma2"}) {
    CheckSchedules(model, 8, 4, 0.1F, runtime::Recompute::kNone);
  }
}

}  // namespace
}  // namespace penstock::testing
