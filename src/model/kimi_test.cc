// Configurations of Kimi Linear, Kimi K3 and DeepSeek-V3: what is refused, and by which name.

#include <gtest/gtest.h>

#include <set>

#include "base/config_path.h"
#include "base/json.h"
#include "model/config.h"
#include "model/cut.h"

namespace penstock::model {
namespace {

Json Named(const std::string& name) {
  const auto path = FindConfig("models", "json", name);
  EXPECT_TRUE(path.ok());
  auto json = ReadJsonFile(path.value());
  EXPECT_TRUE(json.ok());
  return std::move(json).value();
}

// Few layers, so that a graph is quick to build.
Json SmallK3() {
  Json config = Named("kimi-k3");
  Json& text = config["text_config"];
  text["num_hidden_layers"] = 9;
  text["num_experts"] = 16;
  text["num_experts_per_token"] = 2;
  text["attn_res_block_size"] = 4;
  text["linear_attn_config"]["kda_layers"] = {1, 2, 3, 5, 6, 7};
  text["linear_attn_config"]["full_attn_layers"] = {4, 8, 9};
  return config;
}

std::string Message(const Json& config) {
  const auto model = BuildModel(config, "config.json");
  return model.ok() ? std::string() : model.error().message;
}

void ExpectRefused(const Json& config, const std::vector<std::string>& parts) {
  const std::string message = Message(config);
  for (const std::string& part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' in: " << message;
  }
}

TEST(Kimi, TheSmallModelBuildsWrappedAndFlat) {
  Json config = SmallK3();
  EXPECT_EQ(Message(config), "");
  EXPECT_EQ(Message(config["text_config"]), "");
}

TEST(Kimi, EachLayerStandsInOneOfTheTwoLists) {
  Json config = SmallK3();
  Json& linear = config["text_config"]["linear_attn_config"];
  linear["kda_layers"] = {1, 2, 3, 4, 5, 6, 7};
  ExpectRefused(config, {"kda_layers", "layer 4", "both"});
  linear["kda_layers"] = {1, 2, 3, 5, 6};
  ExpectRefused(config, {"full_attn_layers", "layer 7", "neither"});
  linear["kda_layers"] = {0, 1, 2, 3, 5, 6, 7};
  ExpectRefused(config, {"kda_layers"});
  linear["kda_layers"] = {1, 2, 3, 5, 6, 7, 7};
  ExpectRefused(config, {"kda_layers", "twice"});
}

TEST(Kimi, LayerTypesSayWhatTheListsSay) {
  Json config = SmallK3();
  Json types = Json::array();
  for (int layer = 1; layer <= 9; ++layer) {
    types.push_back(layer % 4 == 0 || layer == 9 ? "full_attention" : "linear_attention");
  }
  config["text_config"]["layer_types"] = types;
  EXPECT_EQ(Message(config), "");
  types[2] = "full_attention";
  config["text_config"]["layer_types"] = types;
  ExpectRefused(config, {"layer_types", "layer 3", "linear_attention"});
  types.erase(0);
  config["text_config"]["layer_types"] = types;
  ExpectRefused(config, {"layer_types", "got 8 entries"});
}

TEST(Kimi, BothNamesOfTheModelAreSupportedAndListed) {
  Json config = SmallK3()["text_config"];
  config["model_type"] = "kimi_k3";
  EXPECT_EQ(Message(config), "");
  config["model_type"] = "kimi_k4";
  ExpectRefused(config, {"kimi_k3", "kimi_linear", "Did you mean 'kimi_k3'?"});
}

TEST(Kimi, KeysThatMayChangeTheMathematicsAreNamed) {
  for (const auto& [key, value] : std::vector<std::pair<std::string, Json>>{
           {"mla_use_nope", false},
           {"hidden_act", "gelu"},
           {"moe_router_activation_func", "softmax"},
           {"topk_method", "greedy"},
           {"attention_sink_size", 4},
           {"rope_scalling", Json::object({{"type", "yarn"}})}}) {
    Json config = SmallK3();
    config["text_config"][key] = value;
    ExpectRefused(config, {key});
  }
  Json config = SmallK3();
  config["text_config"]["linear_attn_config"]["use_beta_bias"] = true;
  ExpectRefused(config, {"linear_attn_config", "use_beta_bias"});
  Json deepseek = Named("deepseek-v3");
  deepseek["scoring_func"] = "softmax";
  ExpectRefused(deepseek, {"scoring_func", "sigmoid"});
}

TEST(Kimi, GroupsOfExpertsHoldEnoughToChooseFrom) {
  Json config = Named("deepseek-v3");
  config["num_hidden_layers"] = 4;
  config["n_group"] = 7;
  ExpectRefused(config, {"n_group", "divisor"});
  config["n_group"] = 128;
  config["topk_group"] = 1;
  ExpectRefused(config, {"topk_group"});
  Json kimi = SmallK3();
  kimi["text_config"]["num_expert_group"] = 4;
  kimi["text_config"]["topk_group"] = 2;
  EXPECT_EQ(Message(kimi), "");
  kimi["text_config"]["use_grouped_topk"] = false;
  ExpectRefused(kimi, {"use_grouped_topk"});
}

TEST(Kimi, AKeyOfNoEffectIsTaken) {
  Json config = SmallK3();
  config["text_config"]["initializer_range"] = 0.02;
  config["text_config"]["attention_sink_size"] = nullptr;
  config["text_config"]["use_something_new"] = false;
  EXPECT_EQ(Message(config), "");
}

TEST(Kimi, TheFirstLayersDepthReadIsStoredAndReadByNothing) {
  const auto model = BuildModel(SmallK3(), "config.json");
  ASSERT_TRUE(model.ok());
  std::set<TensorId> read;
  for (const Op& op : model->graph.ops) {
    for (const TensorId id : TensorsOf(op)) {
      read.insert(id);
    }
  }
  std::vector<std::string> unread;
  for (size_t t = 0; t < model->graph.tensors.size(); ++t) {
    if (!read.contains(TensorId(static_cast<int32_t>(t)))) {
      unread.push_back(model->graph.tensors[t].name);
    }
  }
  EXPECT_EQ(unread, (std::vector<std::string>{"model.layers.0.self_attention_res_proj.weight",
                                              "model.layers.0.self_attention_res_norm.weight"}));
}

}  // namespace
}  // namespace penstock::model
