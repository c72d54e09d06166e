#include "model/inventory.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/json.h"
#include "model/config.h"

namespace penstock::model {
namespace {

Model Build(const char* text) {
  auto model = BuildModel(ParseJson(text, "config.json").value(), "config.json");
  EXPECT_TRUE(model.ok()) << model.error().message;
  return std::move(model).value();
}

Model TinyMistral() {
  return Build(R"({"model_type":"mistral","hidden_size":32,"intermediate_size":64,
    "num_hidden_layers":3,"num_attention_heads":4,"num_key_value_heads":2,"vocab_size":96,
    "max_position_embeddings":256,"sliding_window":10,"tie_word_embeddings":true})");
}

TEST(Inventory, LayersAddUpToTheModelExceptForTiedWeights) {
  const Model model = TinyMistral();
  const TensorBytes bytes = BytesAtBits(model.graph, 16);
  const Inventory inventory = TakeInventory(model.graph, bytes, 2);
  int64_t parameters = 0;
  int64_t kv = 0;
  for (const LayerInventory& layer : inventory.layers) {
    parameters += layer.parameters;
    kv += layer.kv_bytes_per_token;
  }
  EXPECT_EQ(parameters, inventory.parameters + 96 * 32) << "the table counts in both layers";
  EXPECT_EQ(kv, inventory.kv_bytes_per_token);
  EXPECT_EQ(inventory.parameters_embedding, 96 * 32);
  EXPECT_EQ(inventory.weights_bytes, 2 * inventory.parameters);
}

TEST(Inventory, AStagesBytesCountTiedWeightsOnBothStages) {
  const Model model = TinyMistral();
  const TensorBytes bytes = BytesAtBits(model.graph, 16);
  const auto partition = CutAt(model.graph.num_layers(), std::vector<int64_t>{2}).value();
  const auto stages = Contents(model.graph, CutSets(model.graph), partition);
  EXPECT_EQ(StageWeightsBytes(stages[0], bytes) + StageWeightsBytes(stages[1], bytes),
            TakeInventory(model.graph, bytes, 2).weights_bytes + 2 * 96 * 32);
}

TEST(Inventory, WindowedLayersKeepAtMostTheirWindow) {
  const Model model = TinyMistral();
  const int64_t per_token = 3 * 2 * 16 * 2;
  EXPECT_EQ(StateBytes(model.graph, 0, 5, 7, 2), 7 * per_token);
  EXPECT_EQ(StateBytes(model.graph, 0, 5, 100, 2), 10 * per_token);
  EXPECT_EQ(StateBytes(model.graph, 1, 2, 100, 2), 10 * per_token / 3);
  EXPECT_EQ(StateBytes(model.graph, 0, 1, 100, 2), 0);
}

TEST(Inventory, WorkOfATokenIsTwicePerWeightPlusAttention) {
  const Model model = TinyMistral();
  const TensorBytes bytes = BytesAtBits(model.graph, 16);
  const auto work = LayerWork(model.graph, DecodeShape(1, 8), bytes, 2);
  const double weights = 2 * 32 * 32 + 2 * 16 * 32 + 3 * 64 * 32;
  const double attention = 4 * (8 + 8) * 8;
  EXPECT_DOUBLE_EQ(work[1].flops, 2 * (weights + attention));
  EXPECT_DOUBLE_EQ(work[1].weights_bytes, 2 * (weights + 2 * 32));
  EXPECT_DOUBLE_EQ(work[1].state_bytes, (8 + 1) * 2 * 16 * 2);
  EXPECT_DOUBLE_EQ(work[0].flops, 0);
  EXPECT_DOUBLE_EQ(work[0].weights_bytes, 2 * 32) << "one row of the table";
  EXPECT_DOUBLE_EQ(work[4].flops, 2 * 96 * 32);
  // Behind the window a row sees no more, and no more is read.
  const auto later = LayerWork(model.graph, DecodeShape(1, 100), bytes, 2);
  EXPECT_DOUBLE_EQ(later[1].flops, 2 * (weights + 4 * 16 * 10));
  EXPECT_DOUBLE_EQ(later[1].state_bytes, (10 + 1) * 2 * 16 * 2);
}

TEST(Inventory, PrefillReadsWeightsOnceAndTheHeadComputesItsRowsOnly) {
  const Model model = TinyMistral();
  const TensorBytes bytes = BytesAtBits(model.graph, 16);
  const auto one = LayerWork(model.graph, DecodeShape(1, 1), bytes, 2);
  const auto prompt = LayerWork(model.graph, PrefillShape(9), bytes, 2);
  EXPECT_DOUBLE_EQ(prompt[1].weights_bytes, one[1].weights_bytes);
  EXPECT_DOUBLE_EQ(prompt[4].flops, one[4].flops);
  EXPECT_DOUBLE_EQ(PrefillShape(9).keys, 5.0) << "mean of 1 to 9";
  EXPECT_DOUBLE_EQ(PrefillShape(4, 100).keys, 102.5);
}

TEST(Inventory, ExpertsAreReadAsFarAsRowsChooseThem) {
  const Model model = Build(R"({"model_type":"mixtral","hidden_size":32,"intermediate_size":64,
    "num_hidden_layers":1,"num_attention_heads":4,"num_key_value_heads":2,"vocab_size":96,
    "num_local_experts":8,"num_experts_per_tok":2})");
  const TensorBytes bytes = BytesAtBits(model.graph, 16);
  const Inventory inventory = TakeInventory(model.graph, bytes, 2);
  const int64_t expert = 3 * 32 * 64;
  EXPECT_EQ(inventory.parameters - inventory.parameters_active, 6 * expert + 96 * 32)
      << "idle experts, and the table that is only looked up";
  const auto at = [&](double rows) {
    return LayerWork(model.graph, DecodeShape(rows, 1), bytes, 2)[1];
  };
  const double rest = at(1).weights_bytes - 2.0 * 2 * expert;
  EXPECT_NEAR(at(2).weights_bytes, rest + 2.0 * expert * 8 * (1 - 0.75 * 0.75), 1e-6);
  EXPECT_NEAR(at(1000).weights_bytes, rest + 2.0 * expert * 8, 1e-3);
  EXPECT_NEAR(at(2).flops, 2 * at(1).flops, 1e-6);
}

TEST(Inventory, BalanceWeightsFollowWhatIsBalanced) {
  const Model model = TinyMistral();
  const TensorBytes bytes = BytesAtBits(model.graph, 16);
  EXPECT_EQ(BalanceWeights(model.graph, Balance::kLayers, bytes, 2, 64),
            (std::vector<double>{0, 1, 1, 1, 0}));
  const auto time = BalanceWeights(model.graph, Balance::kTime, bytes, 2, 64);
  EXPECT_EQ(time[0], 0);
  EXPECT_EQ(time[1], time[3]);
  EXPECT_GT(time[4], 0);
  const auto memory = BalanceWeights(model.graph, Balance::kMemory, bytes, 2, 64);
  EXPECT_EQ(memory[0], 2 * 96 * 32);
  EXPECT_GT(memory[1], 2 * 10 * 2 * 16 * 2);
}

}  // namespace
}  // namespace penstock::model
