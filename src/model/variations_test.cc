// The variations of the decoder: which graphs their keys make, and what is refused.

#include "model/variations.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
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

// All 256 sets of variations, on five kinds of decoders: each is built with all that it asks for,
// or two that exclude each other are named.
TEST(Variations, EverySetIsBuiltWholeOrRefusedByTwoNames) {
  const std::vector<std::pair<std::string, std::string>> variations = {
      {"attention_residuals", R"({"residual":"block","block_size":3})"},
      {"hyper_connections", R"({"streams":2,"mode":"dynamic"})"},
      {"skip_connections", "[[0,3],[1,2]]"},
      {"shared_layers", "[0,1,0,1]"},
      {"use_parallel_residual", "true"},
      {"per_layer_embeddings", R"({"width":6})"},
      {"early_exits", R"({"layers":[1]})"},
      {"num_nextn_predict_layers", "2"}};
  const auto excludes = [](size_t a, size_t b) {
    return (a < 3 && b < 3) || (a < 2 && (b == 4 || b == 5));
  };
  const char* bases[] = {"{}", R"({"tie_word_embeddings":true})",
                         R"({"model_type":"mixtral","num_local_experts":4,"num_experts_per_tok":2,
          "sliding_window":8})",
                         R"({"model_type":"qwen3","use_sliding_window":true,"sliding_window":8,
          "max_window_layers":2})",
                         R"({"model_type":"gemma2","sliding_window":8})"};
  for (const char* base : bases) {
    std::map<size_t, std::vector<std::string>> built;
    for (size_t set = 0; set < 256; ++set) {
      Json config = Config(base);
      size_t first = 0;
      size_t second = 0;
      for (size_t a = 0; a < 8; ++a) {
        if ((set >> a & 1) == 0) {
          continue;
        }
        config[variations[a].first] = ParseJson(variations[a].second, "test").value();
        for (size_t b = a + 1; b < 8; ++b) {
          if (second == 0 && (set >> b & 1) != 0 && excludes(a, b)) {
            first = a;
            second = b;
          }
        }
      }
      const auto model = BuildModel(config, "config.json", GraphUse::kTrain);
      if (second == 0) {
        ASSERT_TRUE(model.ok()) << DumpJson(config) << model.error().message;
        built[set] = Structure(model->graph);
        continue;
      }
      ASSERT_FALSE(model.ok()) << DumpJson(config);
      EXPECT_EQ(model.error().code, ErrorCode::kUnsupported);
      EXPECT_NE(model.error().message.find("contradict each other"), std::string::npos);
      int named = 0;
      for (size_t a = 0; a < 8; ++a) {
        if (model.error().message.find(variations[a].first) != std::string::npos) {
          EXPECT_NE(set >> a & 1, 0U) << model.error().message;
          ++named;
        }
      }
      EXPECT_EQ(named, 2) << model.error().message << " for " << variations[first].first;
    }
    // None is passed over because of another one.
    for (const auto& [set, structure] : built) {
      for (size_t a = 0; a < 8; ++a) {
        const auto without = built.find(set & ~(size_t{1} << a));
        if ((set >> a & 1) != 0 && without != built.end()) {
          EXPECT_NE(structure, without->second)
              << base << " " << set << " without " << variations[a].first;
        }
      }
    }
  }
}

// Every key of docs/formats.md, in other spellings.
TEST(Variations, AKeyThatIsNearlyOneIsRefusedAndTheRightOneNamed) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> keys = {
      {"attention_residuals",
       {"attentionResiduals", "AttentionResiduals", "attention-residuals", "attention_residual",
        "ATTENTION_RESIDUALS", "attention_residuls"}},
      {"hyper_connections", {"hyperConnections", "hyper_connection", "hyperconnections"}},
      {"skip_connections", {"skipConnections", "skip_connection", "skip-connections"}},
      {"shared_layers", {"sharedLayers", "share_layers", "shared_layer"}},
      {"use_parallel_residual", {"useParallelResidual", "use_parallel_residuals"}},
      {"per_layer_embeddings", {"perLayerEmbeddings", "per_layer_embedding"}},
      {"early_exits", {"earlyExits", "early_exit", "EARLY_EXITS"}},
      {"num_nextn_predict_layers", {"numNextnPredictLayers", "num_next_predict_layers"}},
      {"mtp_loss_weight", {"mtpLossWeight", "mtp_loss_weights"}},
  };
  for (const auto& [key, spellings] : keys) {
    for (const std::string& spelling : spellings) {
      for (const char* value : {"1", "true", "[[0, 2]]", R"({"width": 4})"}) {
        const auto model =
            BuildModel(Config(fmt::format(R"({{"{}": {}}})", spelling, value)), "config.json");
        ASSERT_FALSE(model.ok()) << spelling;
        EXPECT_EQ(model.error().code, ErrorCode::kInvalidArgument) << spelling;
        EXPECT_NE(model.error().message.find(
                      fmt::format("config.json: {}: unknown key, which would be passed over in "
                                  "silence\nDid you mean '{}'?",
                                  spelling, key)),
                  std::string::npos)
            << model.error().message;
      }
      for (const char* nothing : {"null", "false", "0", "[]"}) {
        EXPECT_TRUE(
            BuildModel(Config(fmt::format(R"({{"{}": {}}})", spelling, nothing)), "config.json")
                .ok())
            << spelling << " says nothing";
      }
    }
  }
}

TEST(Variations, OtherKeysThatModelsCarryAreNotTakenForOnes) {
  for (const char* other :
       {"use_cache", "early_stopping", "num_kv_shared_layers", "parallel_attn", "layer_types",
        "hidden_size_per_layer_input", "vocab_size_per_layer_input", "attention_dropout",
        "residual_multiplier", "residual_dropout", "embedding_multiplier", "max_window_layers",
        "mlp_only_layers", "n_shared_experts", "first_k_dense_replace", "pretraining_tp"}) {
    const auto model = BuildModel(Config(fmt::format(R"({{"{}": 1}})", other)), "config.json");
    EXPECT_TRUE(model.ok() || model.error().message.find("Did you mean") == std::string::npos)
        << other;
  }
}

// What multimodal models wrap is read inside alone.
TEST(Variations, BesideATextConfigTheyAreRefused) {
  const Json inside = {{"model_type", "wrapper"}, {"text_config", Config("{}")}};
  ASSERT_TRUE(BuildModel(inside, "config.json").ok());
  for (const auto& [key, message] :
       {std::pair<const char*, const char*>{"skip_connections",
                                            "stands beside text_config, where nothing reads it"},
        {"skipConnections", "Did you mean 'skip_connections'?"}}) {
    Json outside = inside;
    outside[key] = Json::array({Json::array({0, 2})});
    const auto model = BuildModel(outside, "config.json");
    ASSERT_FALSE(model.ok()) << key;
    EXPECT_NE(model.error().message.find(message), std::string::npos) << model.error().message;
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
