// Every variation of the decoder trains the same on any schedule, cut and number of threads, bit
// for bit, takes the memory that was foretold, and has the gradients of the PyTorch reference.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "model/config.h"
#include "model/cut.h"
#include "runtime/train_edges.h"
#include "schedule/passes.h"
#include "schedule/registry.h"
#include "sim/hops.h"
#include "support/process.h"
#include "support/training_runs.h"
#include "weights/safetensors.h"

namespace penstock::testing {
namespace {

const std::string kModels = std::string(PENSTOCK_SOURCE_DIR) + "/tests/golden/models/";

std::vector<std::string> Architectures() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kModels)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("arch-")) {
      names.push_back(name);
    }
  }
  std::ranges::sort(names);
  return names;
}

class Architecture : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    auto opened = OpenTrainModel(kModels + GetParam());
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    model_ = std::move(opened).value();
    batches_ = RandomBatches(4, model_.graph.value(model_.graph.logits).width, 20, 5);
  }

  TrainOutcome Run(const TrainCase& test) {
    auto outcome = RunTrainCase(model_, test, batches_);
    EXPECT_TRUE(outcome.ok()) << test.Text() << ": "
                              << (outcome.ok() ? "" : outcome.error().message);
    return outcome.ok() ? std::move(outcome).value() : TrainOutcome();
  }

  void ExpectSame(const TrainCase& test, const TrainOutcome& wanted) {
    const std::string text = GetParam() + " " + test.Text();
    const TrainOutcome got = Run(test);
    EXPECT_EQ(wanted.loss, got.loss) << text;
    ASSERT_EQ(wanted.gradients.size(), got.gradients.size()) << text;
    for (const auto& [name, numbers] : wanted.gradients) {
      const auto it = got.gradients.find(name);
      ASSERT_NE(it, got.gradients.end()) << text << ": " << name;
      ASSERT_EQ(numbers.size(), it->second.size());
      EXPECT_EQ(std::memcmp(numbers.data(), it->second.data(), numbers.size() * 4), 0)
          << text << ": " << name;
    }
    for (size_t r = 0; r < got.ranks.size(); ++r) {
      for (size_t c = 0; c < kMemoryCategories; ++c) {
        // The message by which ranks tell that they are ready is not the step's.
        const bool messages = static_cast<MemoryCategory>(c) == MemoryCategory::kMessages;
        EXPECT_NEAR(static_cast<double>(got.ranks[r].peak.bytes[c]),
                    static_cast<double>(got.ranks[r].planned.bytes[c]), messages ? 1024.0 : 0.0)
            << text << ", rank " << r << ", " << MemoryCategoryName(static_cast<MemoryCategory>(c));
      }
    }
  }

  TrainOutcome Reference(std::vector<int32_t> lanes = {}, int slices = 0) {
    TrainCase one;
    one.schedule = slices > 1 ? "sliced-1f1b" : "1f1b";
    one.micro_batches = 4;
    one.lane_starts = std::move(lanes);
    one.slices = slices;
    return Run(one);
  }

  static TrainCase Case(const std::string& schedule, int ranks, int chunks = 0) {
    TrainCase test;
    test.schedule = schedule;
    test.ranks = ranks;
    test.chunks = chunks;
    test.micro_batches = 4;
    return test;
  }

  TrainModel model_;
  std::vector<runtime::MicroBatchData> batches_;
};

TEST_P(Architecture, TheGradientsAreThoseOfTheReference) {
  const auto golden = ReadJsonFile(kModels + GetParam() + "/golden.json");
  ASSERT_TRUE(golden.ok()) << golden.error().message;
  batches_.clear();
  for (const Json& prompt : golden.value()["prompts"]) {
    runtime::MicroBatchData batch;
    batch.tokens = prompt["tokens"].get<std::vector<int32_t>>();
    batch.targets.assign(batch.tokens.begin() + 1, batch.tokens.end());
    batch.targets.push_back(-1);
    batch.sequences = {{batch.rows(), 0}};
    batch.key = static_cast<uint32_t>(batches_.size());
    batches_.push_back(std::move(batch));
  }
  TrainCase test;
  test.schedule = "1f1b";
  test.micro_batches = 2;
  const TrainOutcome got = Run(test);
  EXPECT_NEAR(got.loss, golden.value()["loss"].get<double>(), 1e-5);

  const auto bytes = ReadFile(kModels + GetParam() + "/gradients.safetensors");
  ASSERT_TRUE(bytes.ok());
  const auto header = weights::ParseSafetensors(
      std::as_bytes(std::span(bytes.value().data(), bytes.value().size())), "gradients");
  ASSERT_TRUE(header.ok()) << header.error().message;
  EXPECT_EQ(header->tensors.size(), got.gradients.size());
  double difference = 0;
  double norm = 0;
  for (const weights::StoredTensor& tensor : header->tensors) {
    const auto it = got.gradients.find(tensor.name);
    ASSERT_NE(it, got.gradients.end()) << tensor.name;
    std::vector<float> want(it->second.size());
    std::memcpy(want.data(), bytes.value().data() + tensor.offset, want.size() * 4);
    double own = 0;
    double own_norm = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      const double d = static_cast<double>(it->second[i]) - static_cast<double>(want[i]);
      own += d * d;
      own_norm += static_cast<double>(want[i]) * static_cast<double>(want[i]);
    }
    // Small gradients are differences of large numbers.
    EXPECT_LE(std::sqrt(own), 1e-4 * std::sqrt(own_norm) + 1e-9) << tensor.name;
    difference += own;
    norm += own_norm;
  }
  EXPECT_LT(std::sqrt(difference / norm), 1e-5);
}

TEST_P(Architecture, EveryCutGivesTheBitsOfOneStage) {
  const TrainOutcome wanted = Reference();
  const int64_t units = model_.graph.num_layers();
  for (int64_t at = 1; at < units; ++at) {
    TrainCase test = Case("1f1b", 2);
    test.cut = {at};
    ExpectSame(test, wanted);
  }
  TrainCase ends = Case("zb-h1", 4);
  ends.cut = {1, 3, units - 1};
  ExpectSame(ends, wanted);
  ends.cut = {2, 2, units - 2};
  ends.threads = 2;
  ExpectSame(ends, wanted);
}

TEST_P(Architecture, LoopAndVPlacementsGiveTheBitsOfOneStage) {
  const TrainOutcome wanted = Reference();
  for (const auto& [schedule, ranks, chunks] : {std::tuple{"gpipe", 3, 0},
                                                {"interleaved-1f1b", 2, 2},
                                                {"interleaved-1f1b", 2, 3},
                                                {"zb-v", 2, 0},
                                                {"zb-v", 3, 0},
                                                {"interleaved-zb", 2, 2},
                                                {"looped-bfs", 3, 2},
                                                {"v-half", 2, 0},
                                                {"dualpipe-v", 2, 0}}) {
    ExpectSame(Case(schedule, ranks, chunks), wanted);
  }
}

TEST_P(Architecture, RecomputationSlicesAndMirroredStagesGiveTheBitsOfOneStage) {
  TrainCase test = Case("1f1b", 3);
  const TrainOutcome wanted = Reference();
  test.recompute = runtime::Recompute::kFull;
  ExpectSame(test, wanted);
  test.recompute = runtime::Recompute::kSelective;
  ExpectSame(test, wanted);
  const TrainOutcome two_lanes = Reference({0, 2});
  TrainCase mirrored = Case("dualpipe", 2);
  mirrored.lane_starts = {0, 2};
  ExpectSame(mirrored, two_lanes);
  TrainCase sliced = Case("sliced-1f1b", 2);
  sliced.slices = 3;
  ExpectSame(sliced, Reference({}, 3));
}

// Bytes that a traced run sent in one direction.
int64_t SentBytes(const TrainOutcome& outcome, schedule::OpKind kind) {
  int64_t bytes = 0;
  for (const runtime::RankGradients& rank : outcome.ranks) {
    for (const trace::Slice& slice : rank.timeline.slices) {
      bytes += slice.action.kind == kind ? slice.bytes : 0;
    }
  }
  return bytes;
}

int64_t ForwardBytes(const TrainOutcome& outcome) {
  return SentBytes(outcome, schedule::OpKind::kSendForward);
}

// What the simulator counts for one row of this schedule, forward and backward.
std::pair<int64_t, int64_t> SimulatedBytes(const model::Graph& graph,
                                           const model::Partition& partition,
                                           const schedule::Schedule& compute) {
  const schedule::Schedule made =
      runtime::PrepareTrainSchedule(compute, graph, partition, {.optimizer = false, .rows = 1})
          .value();
  const model::CutSets cuts(graph);
  const auto bytes = [&](const std::vector<ValueId>& values) {
    int64_t sum = 0;
    for (const ValueId id : values) {
      sum += 4 * graph.value(id).width;
    }
    return sum;
  };
  cost::CostModel costs;
  for (int32_t s = 0; s < partition.num_stages(); ++s) {
    cost::StageCost& stage = costs.stages.emplace_back();
    stage.output_bytes = bytes(runtime::ChainValues(graph, partition, StageId(s)));
    if (s > 0) {
      // The simulator adds the gradients of the edges itself.
      stage.gradient_bytes = bytes(runtime::GradientsInFront(graph, cuts, partition, StageId(s))) -
                             schedule::LongGradientBytes(made, StageId(s - 1));
    }
  }
  const auto report = sim::MeasureHops(made, costs);
  EXPECT_TRUE(report.ok()) << (report.ok() ? "" : report.error().message);
  return report.ok() ? std::pair(report->forward_bytes, report->backward_bytes)
                     : std::pair<int64_t, int64_t>();
}

TEST_P(Architecture, WhatIsSentForwardIsWhatRanksLackAndNothingMore) {
  const TrainOutcome wanted = Reference();
  int64_t rows = 0;
  for (const runtime::MicroBatchData& batch : batches_) {
    rows += batch.rows();
  }
  for (const auto& [name, ranks, chunks] : {std::tuple{"1f1b", 3, 0},
                                            {"interleaved-1f1b", 2, 2},
                                            {"looped-bfs", 2, 3},
                                            {"zb-v", 2, 0},
                                            {"zb-v", 3, 0},
                                            {"gpipe", 5, 0},
                                            {"interleaved-1f1b", 4, 3}}) {
    TrainCase test = Case(name, ranks, chunks);
    test.keep_trace = true;
    const auto made = schedule::Generate(name, {ranks, test.micro_batches, chunks, 0});
    ASSERT_TRUE(made.ok());
    const auto partition =
        model::CutBalanced(model::LayerCountWeights(model_.graph), made->num_stages(), true);
    ASSERT_TRUE(partition.ok());
    std::vector<RankId> rank_of;
    for (int32_t s = 0; s < made->num_stages(); ++s) {
      rank_of.push_back(made->placement.RankOf(StageId(s), 0));
    }
    const model::CutSets cuts(model_.graph);
    const model::HopPlan plan =
        model::PlanHops(model_.graph, cuts, partition.value(), rank_of, ranks, 4);
    int64_t needed = 0;
    int64_t naive = 0;
    const auto bytes = [&](const std::vector<ValueId>& values) {
      int64_t sum = 0;
      for (const ValueId id : values) {
        // Every rank has the token ids.
        const model::Value& value = model_.graph.value(id);
        sum += value.type == model::ValueType::kActivation ? model::BytesPerToken(value, 4) : 0;
      }
      return sum;
    };
    for (const model::Hop& hop : plan.hops) {
      needed += bytes(hop.values);
      naive += bytes(hop.naive);
    }
    const TrainOutcome got = Run(test);
    EXPECT_EQ(ForwardBytes(got), needed * rows) << GetParam() << " " << test.Text();
    const auto [forward, backward] = SimulatedBytes(model_.graph, partition.value(), made.value());
    EXPECT_EQ(forward, needed) << GetParam() << " " << test.Text();
    EXPECT_EQ(backward, naive) << "gradients travel with the chain";
    EXPECT_EQ(SentBytes(got, schedule::OpKind::kSendBackward), backward * rows)
        << GetParam() << " " << test.Text();
    test.naive = true;
    ExpectSame(test, wanted);
    EXPECT_EQ(ForwardBytes(Run(test)), naive * rows) << GetParam() << " " << test.Text();
  }
}

TEST_P(Architecture, AnyWayOfLongValuesGivesTheBitsOfOneStage) {
  const TrainOutcome wanted = Reference();
  for (const auto& [name, ranks, chunks] :
       {std::tuple{"1f1b", 4, 0}, {"interleaved-1f1b", 3, 2}, {"zb-v", 3, 0}}) {
    TrainCase test = Case(name, ranks, chunks);
    // Neighbours are near: long values go by way of ranks that do not read them.
    test.link_seconds = [](RankId a, RankId b, int64_t) {
      return std::abs(a.value() - b.value()) == 1 ? 1.0 : 10.0;
    };
    ExpectSame(test, wanted);
  }
}

// A schedule that was lowered for a plain model has no place for the others' values.
TEST(ArchitectureEdges, ALoweredScheduleWithoutThemIsRefusedWithTheirList) {
  const auto model = OpenTrainModel(kModels + "arch-attnres-block");
  ASSERT_TRUE(model.ok());
  const auto partition = model::CutAt(model->graph.num_layers(), std::vector<int64_t>{2, 3, 4});
  const auto lowered = schedule::AddCommunication(schedule::Generate("1f1b", {4, 2, 0, 0}).value());
  ASSERT_TRUE(partition.ok() && lowered.ok());
  const auto refused = runtime::PrepareTrainSchedule(lowered.value(), model->graph,
                                                     partition.value(), {.optimizer = false});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidSchedule);
  EXPECT_NE(refused.error().message.find(
                "1f1b is lowered without 'embedding' 0 -> 1 2 3, 'block/1' 1 -> 2 3"),
            std::string::npos)
      << refused.error().message;
}

// Attention residuals whose blocks are the stages' layers, one block per stage.
Json BlocksPerStage(int32_t stages) {
  Json config = ParseJson(R"({"model_type":"llama","hidden_size":16,"intermediate_size":16,
      "num_attention_heads":1,"vocab_size":32,
      "attention_residuals":{"residual":"block","block_size":2}})",
                          "test")
                    .value();
  config["num_hidden_layers"] = stages;
  return config;
}

// Vectors per token by the bound: P ranks, V chunks each, one block per chunk send
// P (P - 1) / 2 + (V - 1) P (P - 1) blocks, and the embedding goes to each other rank once (running
// sums are empty there). The same for loops and for a V.
int64_t TightBound(int64_t ranks, int64_t chunks) {
  return ranks * (ranks - 1) / 2 + (chunks - 1) * ranks * (ranks - 1) + ranks - 1;
}

std::vector<int64_t> OneLayerPerStage(int32_t stages) {
  std::vector<int64_t> cut;
  for (int32_t s = 1; s < stages; ++s) {
    cut.push_back(s + 1);
  }
  return cut;
}

TEST(ArchitectureBytes, AttentionResidualsSendTheTightBound) {
  for (const int32_t ranks : {2, 3, 4, 8}) {
    for (const char* name : {"1f1b", "interleaved-1f1b 2", "interleaved-1f1b 4", "zb-v"}) {
      const std::string text = name;
      const int32_t chunks = text == "1f1b" ? 1 : text.ends_with("4") ? 4 : 2;
      const int32_t stages = ranks * chunks;
      const auto made =
          schedule::Generate(text.substr(0, text.find(' ')), {ranks, ranks, chunks, 0});
      ASSERT_TRUE(made.ok()) << made.error().message;
      const auto built = model::BuildModel(BlocksPerStage(stages), "test");
      ASSERT_TRUE(built.ok()) << built.error().message;
      std::vector<RankId> rank_of;
      for (int32_t s = 0; s < stages; ++s) {
        rank_of.push_back(made->placement.RankOf(StageId(s), 0));
      }
      const auto partition = model::CutAt(stages + 2, OneLayerPerStage(stages));
      ASSERT_TRUE(partition.ok());
      const model::HopPlan plan = model::PlanHops(built->graph, model::CutSets(built->graph),
                                                  partition.value(), rank_of, ranks, 2);
      int64_t bytes = 0;
      for (const model::Hop& hop : plan.hops) {
        for (const ValueId id : hop.values) {
          bytes += model::BytesPerToken(built->graph.value(id), 2);
        }
      }
      EXPECT_EQ(bytes, TightBound(ranks, chunks) * 16 * 2) << ranks << " " << name;
      EXPECT_EQ(SimulatedBytes(built->graph, partition.value(), made.value()).first, 2 * bytes)
          << "float32, in training";
    }
  }
}

// What was sent, counted in the trace of a step.
TEST(ArchitectureBytes, MeasuredBytesAreTheTightBoundForLoopsAndForAV) {
  TemporaryFolder folder;
  for (const auto& [name, ranks, chunks] : {std::tuple{"1f1b", 3, 1},
                                            {"interleaved-1f1b", 2, 2},
                                            {"interleaved-1f1b", 2, 3},
                                            {"interleaved-1f1b", 4, 2},
                                            {"zb-v", 2, 2},
                                            {"zb-v", 4, 2}}) {
    const int32_t stages = ranks * chunks;
    const std::string path = folder.path() + "/" + std::to_string(stages);
    ASSERT_TRUE(WriteRandomModel(path, BlocksPerStage(stages), 5).ok());
    const auto model = OpenTrainModel(path);
    ASSERT_TRUE(model.ok()) << model.error().message;
    TrainCase test;
    test.schedule = name;
    test.ranks = ranks;
    test.chunks = name == std::string("zb-v") ? 0 : chunks;
    test.micro_batches = 4;
    test.cut = OneLayerPerStage(stages);
    test.keep_trace = true;
    const auto batches = RandomBatches(4, 32, 9, 7);
    int64_t rows = 0;
    for (const runtime::MicroBatchData& batch : batches) {
      rows += batch.rows();
    }
    const auto got = RunTrainCase(model.value(), test, batches);
    ASSERT_TRUE(got.ok()) << test.Text() << ": " << got.error().message;
    EXPECT_EQ(ForwardBytes(got.value()), TightBound(ranks, chunks) * 16 * 4 * rows) << test.Text();
  }
}

std::string TestName(const ::testing::TestParamInfo<std::string>& name) {
  std::string text = name.param;
  std::ranges::replace(text, '-', '_');
  return text;
}

INSTANTIATE_TEST_SUITE_P(All, Architecture, ::testing::ValuesIn(Architectures()), TestName);

}  // namespace
}  // namespace penstock::testing
