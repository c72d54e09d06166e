// The variations of the decoder: which graphs their keys make, and what is refused.

#include "model/variations.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/json.h"
#include "model/config.h"
#include "model/cut.h"
#include "model/inventory.h"

namespace penstock::model {
namespace {

constexpr const char* kLlama = R"({"model_type":"llama","hidden_size":16,"intermediate_size":24,
  "num_hidden_layers":4,"num_attention_heads":4,"num_key_value_heads":2,"vocab_size":67,
  "max_position_embeddings":256,"rms_norm_eps":1e-5,"tie_word_embeddings":false})";

Json Config(const std::string& keys) {
  Json config = ParseJson(kLlama, "test").value();
  config.update(ParseJson(keys, "test").value());
  return config;
}

Graph Build(const std::string& keys, GraphUse use = GraphUse::kRun) {
  auto model = BuildModel(Config(keys), "config.json", use);
  EXPECT_TRUE(model.ok()) << keys << ": " << (model.ok() ? "" : model.error().message);
  return model.ok() ? std::move(model).value().graph : Graph();
}

// Names of what crosses a boundary, in order.
std::vector<std::string> Crossing(const Graph& graph, int32_t boundary) {
  const CutSets cuts(graph);
  std::vector<std::string> names;
  for (const ValueId id : cuts.Crossing(boundary)) {
    if (graph.value(id).type == ValueType::kActivation) {
      names.push_back(graph.value(id).name);
    }
  }
  return names;
}

// Kinds, tensors and inputs of the operations, without names of values.
std::vector<std::string> Structure(const Graph& graph) {
  std::vector<std::string> lines;
  for (const Op& op : graph.ops) {
    std::string line = fmt::format("{} {}:", op.layer, OpName(op));
    for (const ValueId id : op.inputs) {
      line += fmt::format(" {}", id);
    }
    for (const TensorId id : TensorsOf(op)) {
      line += " " + graph.tensor(id).name;
    }
    lines.push_back(line);
  }
  return lines;
}

TEST(AttentionResiduals, BlocksEndWhereTheySayAlsoBetweenAttentionAndMlp) {
  const Graph graph = Build(R"({"attention_residuals":{"residual":"block","block_size":3}})");
  using Names = std::vector<std::string>;
  EXPECT_EQ(Crossing(graph, 1), Names({"embedding"}));
  EXPECT_EQ(Crossing(graph, 2), Names({"embedding", "partial.mlp.0"}));
  EXPECT_EQ(Crossing(graph, 3), Names({"embedding", "block.1", "down.1"}));
  EXPECT_EQ(Crossing(graph, 4), Names({"embedding", "block.1", "block.2"}));
  EXPECT_EQ(Crossing(graph, 5), Names({"embedding", "block.1", "block.2", "block.3"}))
      << "the last block is shorter";
}

TEST(AttentionResiduals, SizesOfAllBlocksMayBeListed) {
  EXPECT_EQ(Structure(Build(R"({"attention_residuals":{"residual":"block",
      "block_size":[3,3,2]}})")),
            Structure(Build(R"({"attention_residuals":{"residual":"block","block_size":3}})")));
}

TEST(AttentionResiduals, FullIsBlocksOfOneSublayer) {
  const Graph full = Build(R"({"attention_residuals":{"residual":"full"}})");
  EXPECT_EQ(Structure(full),
            Structure(Build(R"({"attention_residuals":{"residual":"block","block_size":1}})")));
  EXPECT_EQ(Crossing(full, 5).size(), 9U) << "the embedding and every sublayer's output";
}

TEST(AttentionResiduals, EveryReadHasAQueryAndOnlyKeyNormsHaveANorm) {
  for (const bool norm : {false, true}) {
    for (const bool attend : {false, true}) {
      const Graph graph = Build(fmt::format(
          R"({{"attention_residuals":{{"residual":"block","block_size":4,"key_norm_weight":{},
              "output":"{}"}}}})",
          norm, attend ? "attend" : "sum"));
      int queries = 0;
      int norms = 0;
      for (const WeightTensor& tensor : graph.tensors) {
        if (tensor.name.ends_with("_res_proj.weight")) {
          EXPECT_EQ(tensor.shape, (std::vector<int64_t>{1, 16}));
          ++queries;
        }
        norms += tensor.name.ends_with("_res_norm.weight") ? 1 : 0;
      }
      EXPECT_EQ(queries, 8 + (attend ? 1 : 0));
      EXPECT_EQ(norms, norm ? queries : 0);
    }
  }
}

TEST(Skips, CrossUntilTheyAreRead) {
  const Graph graph = Build(R"({"skip_connections":[[0,3],[1,2]]})");
  using Names = std::vector<std::string>;
  EXPECT_EQ(Crossing(graph, 2), Names({"hidden.0"}));
  EXPECT_EQ(Crossing(graph, 3), Names({"hidden.0", "hidden.1"}));
  EXPECT_EQ(Crossing(graph, 4), Names({"hidden.0", "hidden.2"}));
  EXPECT_EQ(Crossing(graph, 5), Names({"hidden.3"}));
}

TEST(Streams, CrossAsOneWideValueButTheEmbeddingAsItIs) {
  const Graph graph = Build(R"({"hyper_connections":{"streams":3,"mode":"static"}})");
  const CutSets cuts(graph);
  EXPECT_EQ(Crossing(graph, 1), std::vector<std::string>({"embedding"}));
  for (int32_t boundary = 2; boundary < 6; ++boundary) {
    ASSERT_EQ(cuts.Crossing(boundary).size(), 1U);
    EXPECT_EQ(graph.value(cuts.Crossing(boundary)[0]).width, 48);
  }
}

TEST(SharedLayers, HaveOneSetOfWeightsAndStatesOfTheirOwn) {
  const Graph graph = Build(R"({"shared_layers":[0,1,0,1]})");
  std::set<std::string> layers;
  for (const WeightTensor& tensor : graph.tensors) {
    if (tensor.name.starts_with("model.layers.")) {
      layers.insert(tensor.name.substr(0, 14));
    }
  }
  EXPECT_EQ(layers, (std::set<std::string>{"model.layers.0", "model.layers.1"}));
  EXPECT_EQ(graph.states.size(), 4U);
}

TEST(PerLayerEmbeddings, KeepTheEmbeddingAliveToTheLastLayer) {
  const Graph graph = Build(R"({"per_layer_embeddings":{"width":6}})");
  EXPECT_EQ(Crossing(graph, 4), (std::vector<std::string>{"embedding", "extended.2"}));
  EXPECT_EQ(Crossing(graph, 5), (std::vector<std::string>{"extended.3"}));
}

TEST(AuxiliaryHeads, BelongToTrainingAlone) {
  const std::string keys = R"({"num_nextn_predict_layers":2,"mtp_loss_weight":0.5,
      "early_exits":{"layers":[2,0],"loss_weight":0.25}})";
  const Graph train = Build(keys, GraphUse::kTrain);
  ASSERT_EQ(train.losses.size(), 5U);
  EXPECT_EQ(train.losses[0].name, "main");
  EXPECT_EQ(train.losses[0].logits, train.logits);
  EXPECT_EQ(train.losses[1].name, "exit 0");
  EXPECT_EQ(train.losses[2].weight, 0.25F);
  EXPECT_EQ(train.losses[4].shift, 2);
  EXPECT_EQ(train.losses[4].weight, 0.25F) << "half of 0.5";
  EXPECT_EQ(train.num_layers(), 8) << "embedding, 4 layers, 2 for prediction, head";
  EXPECT_EQ(Structure(Build(keys)), Structure(Build("{}"))) << "a run leaves all of it out";
  EXPECT_EQ(Build(keys).losses.size(), 1U);
}

TEST(AuxiliaryHeads, WhatARunLeavesOutIsCounted) {
  const auto run = BuildModel(Config(R"({"num_nextn_predict_layers":1})"), "config.json");
  const Graph train = Build(R"({"num_nextn_predict_layers":1})", GraphUse::kTrain);
  ASSERT_TRUE(run.ok());
  int64_t all = 0;
  for (const WeightTensor& tensor : train.tensors) {
    all += Elements(tensor);
  }
  const Inventory inventory = TakeInventory(run->graph, BytesAtBits(run->graph, 16), 2);
  EXPECT_EQ(inventory.parameters + run->config.auxiliary_parameters, all);
}

TEST(Variations, DoNotChangeWhatThePlainModelIs) {
  const std::vector<std::string> plain = Structure(Build("{}"));
  for (const char* off : {R"({"attention_residuals":null})", R"({"skip_connections":[]})",
                          R"({"shared_layers":[0,1,2,3]})", R"({"use_parallel_residual":false})",
                          R"({"num_nextn_predict_layers":0})", R"({"early_exits":null})"}) {
    EXPECT_EQ(Structure(Build(off)), plain) << off;
  }
}

struct Refusal {
  const char* keys;
  const char* message;
};

TEST(Variations, WhatIsUnknownOrContradictsIsNamed) {
  const Refusal cases[] = {
      {R"({"attention_residuals":true})", "attention_residuals: wanted an object with the keys"},
      {R"({"attention_residuals":{"block_size":2}})",
       "residual: missing, wanted 'full' or 'block'"},
      {R"({"attention_residuals":{"residual":"block"}})", "block_size: missing"},
      {R"({"attention_residuals":{"residual":"block","block_size":0}})", "block_size"},
      {R"({"attention_residuals":{"residual":"block","block_size":9}})", "block_size"},
      {R"({"attention_residuals":{"residual":"block","block_size":[4,3]}})",
       "2 blocks of 7 sublayers together, wanted 8"},
      {R"({"attention_residuals":{"residual":"full","block_size":2}})",
       "block_size: contradicts residual 'full'"},
      {R"({"attention_residuals":{"residual":"blocks","block_size":2}})", "got 'blocks'"},
      {R"({"attention_residuals":{"residual":"block","block_size":2,"key_norm":true}})",
       "key_norm: unknown key"},
      {R"({"attention_residuals":{"residual":"full"},"hyper_connections":{"streams":2,
          "mode":"static"}})",
       "attention_residuals and hyper_connections contradict each other"},
      {R"({"attention_residuals":{"residual":"full"},"use_parallel_residual":true})",
       "attention_residuals and use_parallel_residual contradict"},
      {R"({"skip_connections":[[0,2]],"hyper_connections":{"streams":2,"mode":"static"}})",
       "hyper_connections and skip_connections contradict"},
      {R"({"attention_residual":{"residual":"full"}})", "Did you mean 'attention_residuals'?"},
      {R"({"skip_connection":[[0,2]]})", "Did you mean 'skip_connections'?"},
      {R"({"skip_connections":[[3,1]]})", "layer 1 would read the output of layer 3"},
      {R"({"skip_connections":[[2,2]]})", "layer 2 would read the output of layer 2"},
      {R"({"skip_connections":[[0,4]]})", "layer 4 would read the output of layer 0"},
      {R"({"skip_connections":[[0,2],[0,2]]})", "the pair [0, 2] stands twice"},
      {R"({"skip_connections":[0,2]})", "entry 0 is not a pair of layers"},
      {R"({"hyper_connections":{"streams":17,"mode":"static"}})", "streams"},
      {R"({"hyper_connections":{"streams":2}})", "mode: missing"},
      {R"({"shared_layers":[0,1,2]})", "got 3 entries, wanted one per decoder layer (4)"},
      {R"({"shared_layers":[1,1,2,3]})",
       "layer 0 would use the weights of layer 1, which comes later"},
      {R"({"shared_layers":[0,0,1,3]})",
       "layer 2 would use the weights of layer 1, which has none"},
      {R"({"early_exits":{"layers":[4]}})", "layers"},
      {R"({"early_exits":{"loss_weight":1}})", "layers: missing"},
      {R"({"early_exits":{"layers":[1,1]}})", "layer 1 stands twice"},
      {R"({"num_nextn_predict_layers":17})", "num_nextn_predict_layers"},
      {R"({"per_layer_embeddings":{}})", "width"},
  };
  for (const Refusal& refusal : cases) {
    const auto model = BuildModel(Config(refusal.keys), "config.json");
    ASSERT_FALSE(model.ok()) << refusal.keys;
    EXPECT_NE(model.error().message.find(refusal.message), std::string::npos)
        << refusal.keys << ": " << model.error().message;
    EXPECT_NE(model.error().message.find("config.json"), std::string::npos);
  }
}

TEST(Variations, AreRefusedByFamiliesThatAreOnlyCounted) {
  Json config = Config(R"({"skip_connections":[[0,2]],"model_type":"nemotron","norm_eps":1e-5})");
  const auto model = BuildModel(config, "config.json");
  ASSERT_FALSE(model.ok());
  EXPECT_NE(model.error().message.find("skip_connections"), std::string::npos)
      << model.error().message;
}

}  // namespace
}  // namespace penstock::model
