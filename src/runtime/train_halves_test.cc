// I and W are separate work: I leaves every accumulator of weights as it finds it, W leaves every
// gradient of a value; together they give the bits of B.

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "model/config.h"
#include "runtime/train_edges.h"
#include "runtime/train_parameters.h"
#include "runtime/train_program.h"
#include "runtime/train_stage_runner.h"
#include "schedule/registry.h"
#include "weights/model_files.h"

namespace penstock::runtime {
namespace {

constexpr int64_t kRows = 11;
constexpr uint32_t kPoison = 0x7fedbeef;  // a NaN that no arithmetic makes

// A whole model as one stage, whose halves are called one by one.
class Stage {
 public:
  explicit Stage(const std::string& name) {
    const std::string path = std::string(PENSTOCK_SOURCE_DIR) + "/tests/golden/models/" + name;
    files_ = weights::OpenModel(path).value();
    graph_ = model::BuildModel(files_->config(), path, model::GraphUse::kTrain).value().graph;
    partition_ = model::CutAt(graph_.num_layers(), {}).value();
    schedule_ = PrepareTrainSchedule(schedule::Generate("zb-h1", {1, 1, 1, 0}).value(), graph_,
                                     partition_, {.optimizer = false})
                    .value();
    cuts_ = std::make_unique<model::CutSets>(graph_);
    spec_.graph = &graph_;
    spec_.partition = &partition_;
    spec_.schedule = &schedule_;
    spec_.dropout = 0.1F;
    spec_.largest = {kRows, kRows};
    for (const model::LossTerm& term : graph_.losses) {
      losses_.push_back({.layer = graph_.value(term.logits).producer,
                         .inputs = {term.logits},
                         .outputs = {},
                         .params = model::SelectRowsOp{}});
    }
    plans_.emplace(0, TrainStagePlan::Create(spec_, *cuts_, StageId(0), losses_).value());
    device_ = kernels::CreateCpuDevice({}).value();
    training_ = kernels::CreateCpuTraining(*device_);
    const std::vector<TrainParameters::HeldStage> held = {{&plans_.at(0), {0}}};
    EXPECT_TRUE(parameters_.Build(spec_, held, *training_, training_.get(), account_).ok());
    EXPECT_TRUE(parameters_.Load(*files_).ok());
    program_ = TrainProgram::Create(graph_, schedule_, 0, plans_).value();
    program_->SetSends(std::vector<std::vector<ValueId>>(1));
    OpShape shape{kRows, kRows, kRows, 1};
    workspace_.resize(static_cast<size_t>(TrainStageRunner::WorkspaceBytes(
                          plans_.at(0), shape, kRows, program_->direction(0), *training_)) +
                      64);
    runner_ = std::make_unique<TrainStageRunner>(TrainStageRunner::Context{
        training_.get(), training_.get(), &parameters_, &pool_,
        Tensor(workspace_.data() + 64 - reinterpret_cast<uintptr_t>(workspace_.data()) % 64,
               DType::kU8, 1, std::ssize(workspace_) - 64),
        1});
  }

  // Puts every accumulator of every use to this word.
  void Fill(uint32_t word) {
    for (Tensor& x : Accumulators()) {
      for (float& number : x.All<float>()) {
        number = std::bit_cast<float>(word);
      }
    }
  }

  std::vector<std::vector<float>> WeightGradients() {
    std::vector<std::vector<float>> all;
    for (const Tensor& x : Accumulators()) {
      const auto numbers = x.All<float>();
      all.emplace_back(numbers.begin(), numbers.end());
    }
    return all;
  }

  // F of a new micro-batch of these ids.
  void Forward() {
    unit_ = program_->MakeUnit(0, {kRows, kRows, kRows}, std::make_shared<MicroBatchExtras>());
    for (int64_t row = 0; row < kRows; ++row) {
      tokens_[static_cast<size_t>(row)] = static_cast<int32_t>((row * 37 + 5) % 60);
    }
    UnitRows& rows = unit_->rows;
    rows.tokens = tokens_;
    rows.micro_tokens = tokens_;
    rows.micro_rows = kRows;
    rows.segments = {{0, kRows, 0, 0, 0}};
    rows.lengths = {kRows};
    rows.factor = 1.0F / kRows;
    rows.dropout = spec_.dropout;
    for (int32_t row = 0; row < kRows; ++row) {
      rows.selected.push_back(row);
      rows.targets.push_back((row * 11 + 1) % 60);
    }
    for (size_t term = 1; term < graph_.losses.size(); ++term) {
      rows.term_targets.push_back(rows.targets);
      rows.term_factors.push_back(0.3F / kRows);
    }
    std::vector<double> losses(graph_.losses.size(), 0.0);
    EXPECT_TRUE(runner_->Forward(*unit_, 0, false, losses).ok());
    EXPECT_GT(losses[0], 0);
  }

  // What is not touched keeps what it holds, until Finish makes zeros of it.
  void Backward(bool input, bool weight) {
    parameters_.BeginGradients();
    EXPECT_TRUE(runner_->Backward(*unit_, 0, input, weight, 0).ok());
  }

  void Finish() { parameters_.FinishGradients({}); }

  // Gradients of values that are held now. The pool keeps their memory when they are released.
  std::vector<Tensor> ValueGradients() {
    std::vector<Tensor> all;
    for (int32_t id = 0; id < static_cast<int32_t>(graph_.values.size()); ++id) {
      if (unit_->HasGradient(ValueId(id))) {
        all.push_back(unit_->Gradient(ValueId(id)));
      }
    }
    return all;
  }

  bool Ended() const { return unit_->Empty(); }

 private:
  std::vector<Tensor> Accumulators() {
    std::vector<Tensor> all;
    std::set<const void*> seen;
    for (const PlannedOp& op : plans_.at(0).ops) {
      for (const auto& lane : parameters_.bound(op.index).gradients) {
        for (const Tensor& x : lane) {
          if (seen.insert(x.All<float>().data()).second) {
            all.push_back(x);
          }
        }
      }
    }
    return all;
  }

  std::unique_ptr<weights::ModelFiles> files_;
  model::Graph graph_;
  model::Partition partition_{{0, 0}, 0};
  schedule::Schedule schedule_;
  std::unique_ptr<model::CutSets> cuts_;
  TrainSpec spec_;
  std::vector<model::Op> losses_;
  std::map<int32_t, TrainStagePlan> plans_;
  std::unique_ptr<kernels::Device> device_;
  std::unique_ptr<kernels::TrainingDevice> training_;
  MemoryAccount account_;
  TrainParameters parameters_;
  std::unique_ptr<TrainProgram> program_;
  std::vector<std::byte> workspace_;
  BlockPool pool_{account_, false};
  std::unique_ptr<TrainStageRunner> runner_;
  std::vector<int32_t> tokens_ = std::vector<int32_t>(kRows);
  std::unique_ptr<TrainUnit> unit_;
};

std::vector<std::vector<float>> Copies(const std::vector<Tensor>& tensors) {
  std::vector<std::vector<float>> all;
  for (const Tensor& x : tensors) {
    std::vector<float>& copy = all.emplace_back();
    for (int64_t row = 0; row < x.rows(); ++row) {
      const auto numbers = x.Row<float>(row);
      copy.insert(copy.end(), numbers.begin(), numbers.end());
    }
  }
  return all;
}

bool SameBits(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * 4) == 0;
  });
}

class TrainHalvesTest : public ::testing::TestWithParam<const char*> {};

TEST_P(TrainHalvesTest, InputGradientsTouchNoWeightGradientAndTheReverse) {
  Stage stage(GetParam());
  stage.Forward();
  stage.Backward(true, true);
  EXPECT_TRUE(stage.Ended());
  stage.Finish();
  const auto whole = stage.WeightGradients();
  ASSERT_FALSE(whole.empty());

  stage.Forward();
  stage.Fill(kPoison);
  stage.Backward(true, false);
  for (const std::vector<float>& accumulator : stage.WeightGradients()) {
    for (const float number : accumulator) {
      ASSERT_EQ(std::bit_cast<uint32_t>(number), kPoison);
    }
  }

  const std::vector<Tensor> gradients = stage.ValueGradients();
  ASSERT_FALSE(gradients.empty());  // W reads them
  const auto before = Copies(gradients);
  stage.Backward(false, true);
  stage.Finish();
  EXPECT_TRUE(SameBits(Copies(gradients), before));
  EXPECT_TRUE(SameBits(stage.WeightGradients(), whole));
  EXPECT_TRUE(stage.Ended());
}

INSTANTIATE_TEST_SUITE_P(Families, TrainHalvesTest,
                         ::testing::Values("smollm2", "qwen3", "gemma2", "qwen3_moe", "mixtral",
                                           "phi3", "deepseek_v3", "kimi_linear", "kimi_k3",
                                           "arch-attnres-full", "arch-streams-dynamic",
                                           "arch-next-tokens", "arch-exits", "arch-shared"),
                         [](const auto& family) {
                           std::string name = family.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace penstock::runtime
