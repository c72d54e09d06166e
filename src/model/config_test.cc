#include "model/config.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>

#include "base/file.h"
#include "base/json.h"
#include "model/cut.h"
#include "model/inventory.h"

namespace penstock::model {
namespace {

Json Parse(const char* text) {
  return ParseJson(text, "test").value();
}

struct KnownModel {
  const char* name;
  const char* config;
  int64_t parameters;
  int64_t active;
  int64_t context;
  int64_t windowed_layers;
  int64_t kv_bytes_per_token;  // at 16 bits
};

// Keys that matter of published config.json files; parameter counts as the model cards or the
// safetensors indices give them.
const KnownModel kKnown[] = {
    {"Llama-3.1-8B",
     R"({"model_type":"llama","hidden_size":4096,"intermediate_size":14336,"num_hidden_layers":32,
      "num_attention_heads":32,"num_key_value_heads":8,"vocab_size":128256,
      "max_position_embeddings":131072,"rms_norm_eps":1e-05,"rope_theta":500000.0,
      "rope_scaling":{"factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,
      "original_max_position_embeddings":8192,"rope_type":"llama3"},"tie_word_embeddings":false,
      "hidden_act":"silu","attention_bias":false,"mlp_bias":false,"bos_token_id":128000,
      "eos_token_id":[128001,128008,128009],"torch_dtype":"bfloat16"})",
     8030261248, 8030261248, 131072, 0, 2 * 32 * 8 * 128 * 2},
    {"SmolLM2-135M",
     R"({"model_type":"llama","hidden_size":576,"intermediate_size":1536,"num_hidden_layers":30,
      "num_attention_heads":9,"num_key_value_heads":3,"vocab_size":49152,
      "max_position_embeddings":8192,"rms_norm_eps":1e-05,"rope_theta":100000,"rope_scaling":null,
      "tie_word_embeddings":true,"hidden_act":"silu","bos_token_id":1,"eos_token_id":2})",
     134515008, 134515008, 8192, 0, 2 * 30 * 3 * 64 * 2},
    {"Mistral-7B-v0.1",
     R"({"model_type":"mistral","hidden_size":4096,"intermediate_size":14336,"num_hidden_layers":32,
      "num_attention_heads":32,"num_key_value_heads":8,"vocab_size":32000,
      "max_position_embeddings":32768,"rms_norm_eps":1e-05,"rope_theta":10000.0,
      "sliding_window":4096,"tie_word_embeddings":false,"hidden_act":"silu"})",
     7241732096, 7241732096, 32768, 32, 2 * 32 * 8 * 128 * 2},
    {"Qwen2.5-0.5B",
     R"({"model_type":"qwen2","hidden_size":896,"intermediate_size":4864,"num_hidden_layers":24,
      "num_attention_heads":14,"num_key_value_heads":2,"vocab_size":151936,
      "max_position_embeddings":32768,"max_window_layers":24,"rms_norm_eps":1e-06,
      "rope_theta":1000000.0,"sliding_window":32768,"use_sliding_window":false,
      "tie_word_embeddings":true,"hidden_act":"silu","bos_token_id":151643,
      "eos_token_id":151643})",
     494032768, 494032768, 32768, 0, 2 * 24 * 2 * 64 * 2},
    {"Qwen3-0.6B",
     R"({"model_type":"qwen3","hidden_size":1024,"intermediate_size":3072,"num_hidden_layers":28,
      "num_attention_heads":16,"num_key_value_heads":8,"head_dim":128,"vocab_size":151936,
      "max_position_embeddings":40960,"max_window_layers":28,"rms_norm_eps":1e-06,
      "rope_theta":1000000,"rope_scaling":null,"sliding_window":null,"use_sliding_window":false,
      "tie_word_embeddings":true,"attention_bias":false,"hidden_act":"silu"})",
     596049920, 596049920, 40960, 0, 2 * 28 * 8 * 128 * 2},
    {"Qwen3-30B-A3B",
     R"({"model_type":"qwen3_moe","hidden_size":2048,"intermediate_size":6144,
      "moe_intermediate_size":768,"num_hidden_layers":48,"num_attention_heads":32,
      "num_key_value_heads":4,"head_dim":128,"vocab_size":151936,"num_experts":128,
      "num_experts_per_tok":8,"norm_topk_prob":true,"decoder_sparse_step":1,"mlp_only_layers":[],
      "max_position_embeddings":40960,"rms_norm_eps":1e-06,"rope_theta":1000000.0,
      "use_sliding_window":false,"sliding_window":null,"tie_word_embeddings":false,
      "hidden_act":"silu"})",
     30532122624, 3041867776, 40960, 0, 2 * 48 * 4 * 128 * 2},
    {"Mixtral-8x7B",
     R"({"model_type":"mixtral","hidden_size":4096,"intermediate_size":14336,
      "num_hidden_layers":32,"num_attention_heads":32,"num_key_value_heads":8,"vocab_size":32000,
      "num_local_experts":8,"num_experts_per_tok":2,"max_position_embeddings":32768,
      "rms_norm_eps":1e-05,"rope_theta":1000000.0,"sliding_window":null,
      "tie_word_embeddings":false,"hidden_act":"silu"})",
     46702792704, 12748853248, 32768, 0, 2 * 32 * 8 * 128 * 2},
    {"Phi-3-mini-4k",
     R"({"model_type":"phi3","hidden_size":3072,"intermediate_size":8192,"num_hidden_layers":32,
      "num_attention_heads":32,"num_key_value_heads":32,"vocab_size":32064,
      "max_position_embeddings":4096,"original_max_position_embeddings":4096,"rms_norm_eps":1e-05,
      "rope_theta":10000.0,"rope_scaling":null,"sliding_window":2047,"tie_word_embeddings":false,
      "hidden_act":"silu","attention_bias":false,"bos_token_id":1,"eos_token_id":32000})",
     3821079552, 3821079552, 4096, 32, 2 * 32 * 32 * 96 * 2},
    {"Gemma-2-2B",
     R"({"model_type":"gemma2","hidden_size":2304,"intermediate_size":9216,"num_hidden_layers":26,
      "num_attention_heads":8,"num_key_value_heads":4,"head_dim":256,"vocab_size":256000,
      "max_position_embeddings":8192,"rms_norm_eps":1e-06,"rope_theta":10000.0,
      "sliding_window":4096,"query_pre_attn_scalar":256,"attn_logit_softcapping":50.0,
      "final_logit_softcapping":30.0,"hidden_act":"gelu_pytorch_tanh",
      "hidden_activation":"gelu_pytorch_tanh","bos_token_id":2,"eos_token_id":1})",
     2614341888, 2614341888, 8192, 13, 2 * 26 * 4 * 256 * 2},
    {"Gemma-3-1B",
     R"({"model_type":"gemma3_text","hidden_size":1152,"intermediate_size":6912,
      "num_hidden_layers":26,"num_attention_heads":4,"num_key_value_heads":1,"head_dim":256,
      "vocab_size":262144,"max_position_embeddings":32768,"rms_norm_eps":1e-06,
      "rope_theta":1000000,"rope_local_base_freq":10000,"rope_scaling":null,"sliding_window":512,
      "sliding_window_pattern":6,"query_pre_attn_scalar":256,"attn_logit_softcapping":null,
      "final_logit_softcapping":null,"hidden_activation":"gelu_pytorch_tanh"})",
     999885952, 999885952, 32768, 22, 2 * 26 * 1 * 256 * 2},
};

TEST(Config, ParametersOfPublishedModelsAreCountedExactly) {
  for (const KnownModel& known : kKnown) {
    const auto model = BuildModel(Parse(known.config), known.name);
    ASSERT_TRUE(model.ok()) << model.error().message;
    const Inventory inventory = TakeInventory(model->graph, BytesAtBits(model->graph, 16), 2);
    EXPECT_EQ(inventory.parameters, known.parameters) << known.name;
    EXPECT_EQ(inventory.parameters_active, known.active) << known.name;
    EXPECT_EQ(inventory.weights_bytes, 2 * known.parameters) << known.name;
    EXPECT_EQ(inventory.kv_bytes_per_token, known.kv_bytes_per_token) << known.name;
    EXPECT_EQ(model->config.context, known.context) << known.name;
    EXPECT_EQ(model->config.windowed_layers, known.windowed_layers) << known.name;
    EXPECT_EQ(model->graph.num_layers(), model->config.layers + 2) << known.name;
  }
}

// A plain family needs one value over each boundary, of the width of the residual stream.
TEST(Config, OneValueCrossesEachBoundaryOfEveryFamily) {
  for (const KnownModel& known : kKnown) {
    const auto model = BuildModel(Parse(known.config), known.name);
    ASSERT_TRUE(model.ok()) << model.error().message;
    const CutSets cuts(model->graph);
    for (int32_t b = 1; b < model->graph.num_layers(); ++b) {
      ASSERT_EQ(cuts.Crossing(b).size(), 1U) << known.name << " before layer " << b;
      EXPECT_EQ(model->graph.value(cuts.Crossing(b)[0]).width, model->config.hidden);
    }
  }
}

Json Tiny(const char* model_type = "llama") {
  Json config = Parse(R"({"hidden_size":32,"intermediate_size":64,"num_hidden_layers":4,
    "num_attention_heads":4,"num_key_value_heads":2,"vocab_size":96,"max_position_embeddings":256,
    "rms_norm_eps":1e-05,"rope_theta":10000.0,"tie_word_embeddings":false,"bos_token_id":1,
    "eos_token_id":2})");
  config["model_type"] = model_type;
  return config;
}

Model Build(const Json& config) {
  auto model = BuildModel(config, "config.json");
  EXPECT_TRUE(model.ok()) << model.error().message;
  return std::move(model).value();
}

template <class Params>
std::vector<Params> OpsOf(const Graph& graph) {
  std::vector<Params> found;
  for (const Op& op : graph.ops) {
    if (const auto* params = std::get_if<Params>(&op.params)) {
      found.push_back(*params);
    }
  }
  return found;
}

bool HasTensor(const Graph& graph, std::string_view name) {
  return std::any_of(graph.tensors.begin(), graph.tensors.end(),
                     [&](const WeightTensor& tensor) { return tensor.name == name; });
}

TEST(Config, HeadDimIsHiddenOverHeadsUnlessGiven) {
  for (const Json& head_dim : {Json("absent"), Json(nullptr), Json(8)}) {
    Json config = Tiny();
    if (head_dim != "absent") {
      config["head_dim"] = head_dim;
    }
    EXPECT_EQ(OpsOf<AttentionOp>(Build(config).graph)[0].head_dim, 8);
  }
  Json odd = Tiny();
  odd["hidden_size"] = 36;
  odd["num_attention_heads"] = 5;
  odd["num_key_value_heads"] = 1;
  odd["num_hidden_layers"] = 2;
  const auto refused = BuildModel(odd, "config.json");
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("head_dim"), std::string::npos);
  odd["head_dim"] = 8;
  const Model model = Build(odd);
  const Inventory inventory = TakeInventory(model.graph, BytesAtBits(model.graph, 16), 2);
  EXPECT_EQ(inventory.kv_bytes_per_token, 64);
  // Embedding and head 2 x 96 x 36; norms 5 x 36; per layer q and o 2 x 40 x 36, k and v 2 x 8 x
  // 36, MLP 3 x 64 x 36.
  EXPECT_EQ(inventory.parameters, 6912 + 180 + 2 * (2880 + 576 + 6912));
}

TEST(Config, TheEndOfTextIdsMayBeAListAndTheBeginningMayBeNull) {
  Json config = Tiny();
  config["eos_token_id"] = {2, 5};
  config["bos_token_id"] = nullptr;
  const Model model = Build(config);
  EXPECT_EQ(model.config.eos, (std::vector<int64_t>{2, 5}));
  EXPECT_TRUE(model.config.bos.empty());
}

TEST(Config, TiedHeadsReadTheEmbeddingTable) {
  Json config = Tiny();
  EXPECT_TRUE(HasTensor(Build(config).graph, "lm_head.weight"));
  config["tie_word_embeddings"] = true;
  const Model model = Build(config);
  EXPECT_FALSE(HasTensor(model.graph, "lm_head.weight"));
  EXPECT_TRUE(model.config.tied);
}

TEST(Config, BiasesStandWhereTheFamilyHasThem) {
  Json llama = Tiny();
  llama["attention_bias"] = true;
  llama["mlp_bias"] = true;
  const Graph biased = Build(llama).graph;
  for (const char* part :
       {"self_attn.q_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.down_proj"}) {
    EXPECT_TRUE(HasTensor(biased, fmt::format("model.layers.3.{}.bias", part))) << part;
  }
  const Graph qwen2 = Build(Tiny("qwen2")).graph;
  EXPECT_TRUE(HasTensor(qwen2, "model.layers.0.self_attn.k_proj.bias"));
  EXPECT_FALSE(HasTensor(qwen2, "model.layers.0.self_attn.o_proj.bias"));
  const Graph qwen3 = Build(Tiny("qwen3")).graph;
  EXPECT_TRUE(HasTensor(qwen3, "model.layers.0.self_attn.k_norm.weight"));
  EXPECT_FALSE(HasTensor(qwen3, "model.layers.0.self_attn.k_proj.bias"));
}

std::vector<int64_t> Windows(const Json& config) {
  std::vector<int64_t> windows;
  for (const AttentionOp& op : OpsOf<AttentionOp>(Build(config).graph)) {
    windows.push_back(op.window);
  }
  return windows;
}

TEST(Config, WindowsFollowEachFamilysRule) {
  using List = std::vector<int64_t>;
  Json mistral = Tiny("mistral");
  mistral["sliding_window"] = 7;
  EXPECT_EQ(Windows(mistral), (List{7, 7, 7, 7}));
  mistral["sliding_window"] = nullptr;
  EXPECT_EQ(Windows(mistral), (List{0, 0, 0, 0}));
  Json llama = Tiny();
  llama["sliding_window"] = 7;
  EXPECT_EQ(Windows(llama), (List{0, 0, 0, 0})) << "not a key of that family";
  Json qwen = Tiny("qwen2");
  qwen["sliding_window"] = 7;
  qwen["max_window_layers"] = 2;
  EXPECT_EQ(Windows(qwen), (List{0, 0, 0, 0})) << "use_sliding_window is false";
  qwen["use_sliding_window"] = true;
  EXPECT_EQ(Windows(qwen), (List{0, 0, 7, 7}));
  qwen["layer_types"] = {"sliding_attention", "full_attention", "full_attention",
                         "sliding_attention"};
  EXPECT_EQ(Windows(qwen), (List{7, 0, 0, 7}));
  Json gemma2 = Tiny("gemma2");
  gemma2["sliding_window"] = 7;
  EXPECT_EQ(Windows(gemma2), (List{7, 0, 7, 0}));
  Json gemma3 = Tiny("gemma3_text");
  gemma3["sliding_window"] = 7;
  gemma3["sliding_window_pattern"] = 3;
  EXPECT_EQ(Windows(gemma3), (List{7, 7, 0, 7}));
}

TEST(Config, GemmaScalesCapsAndTurnsAsItsTwoGenerationsDo) {
  Json config = Tiny("gemma2");
  config["head_dim"] = 8;
  config["query_pre_attn_scalar"] = 16;
  config["attn_logit_softcapping"] = 20.0;
  config["final_logit_softcapping"] = nullptr;
  const Graph gemma2 = Build(config).graph;
  EXPECT_FLOAT_EQ(OpsOf<EmbedOp>(gemma2)[0].scale, std::sqrt(32.0F));
  EXPECT_FLOAT_EQ(OpsOf<AttentionOp>(gemma2)[0].scale, 0.25F);
  EXPECT_FLOAT_EQ(OpsOf<AttentionOp>(gemma2)[0].soft_cap, 20.0F);
  EXPECT_TRUE(OpsOf<SoftCapOp>(gemma2).empty());
  EXPECT_TRUE(OpsOf<RmsNormOp>(gemma2)[0].add_one);
  EXPECT_EQ(OpsOf<GatedOp>(gemma2)[0].activation, Activation::kGeluTanh);

  config["model_type"] = "gemma3_text";
  config["sliding_window"] = 7;
  config["sliding_window_pattern"] = 2;
  config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8.0}};
  config["rope_theta"] = 1e6;
  config["rope_local_base_freq"] = 1e4;
  const Model model = Build(config);
  const auto ropes = OpsOf<RopeOp>(model.graph);  // q and k of each layer
  EXPECT_FLOAT_EQ(ropes[0].table.inverse_frequencies[0], 1.0F) << "windowed layers do not scale";
  EXPECT_NEAR(ropes[0].table.inverse_frequencies[1], 0.1, 1e-6);
  EXPECT_FLOAT_EQ(ropes[2].table.inverse_frequencies[0], 0.125F);
  EXPECT_EQ(OpsOf<AttentionOp>(model.graph)[0].soft_cap, 0.0F);
  EXPECT_EQ(model.config.context, 256);

  Json newer = config;
  newer.erase("rope_scaling");
  newer.erase("rope_theta");
  newer.erase("rope_local_base_freq");
  newer["rope_parameters"] = {
      {"full_attention", {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 1e6}}},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 1e4}}}};
  const auto same = OpsOf<RopeOp>(Build(newer).graph);
  for (size_t i = 0; i < ropes.size(); ++i) {
    EXPECT_EQ(same[i].table.inverse_frequencies, ropes[i].table.inverse_frequencies);
  }
}

TEST(Config, AModelWrappedWithOtherModalitiesIsReadFromItsTextConfig) {
  Json config = {{"model_type", "gemma3"}, {"eos_token_id", {1, 50}}};
  config["text_config"] = Tiny("gemma3_text");
  config["text_config"].erase("eos_token_id");
  const Model model = Build(config);
  EXPECT_EQ(model.config.family, "gemma3");
  EXPECT_EQ(model.config.eos, (std::vector<int64_t>{1, 50}));
}

TEST(Config, PhiSplitsItsStoredMatricesAndMayRotateAPart) {
  Json config = Tiny("phi3");
  config["partial_rotary_factor"] = 0.5;
  const Graph graph = Build(config).graph;
  EXPECT_TRUE(HasTensor(graph, "model.layers.0.self_attn.qkv_proj.weight"));
  EXPECT_TRUE(HasTensor(graph, "model.layers.0.mlp.gate_up_proj.weight"));
  EXPECT_EQ(OpsOf<SplitOp>(graph)[0].widths, (std::vector<int64_t>{32, 16, 16}));
  EXPECT_EQ(OpsOf<RopeOp>(graph)[0].rotary_dim, 4);
}

TEST(Config, ExpertsStandInTheLayersThatTheConfigSays) {
  Json config = Tiny("qwen3_moe");
  config["num_hidden_layers"] = 6;
  config["num_experts"] = 8;
  config["num_experts_per_tok"] = 2;
  config["moe_intermediate_size"] = 16;
  config["decoder_sparse_step"] = 2;
  config["mlp_only_layers"] = {3};
  config["norm_topk_prob"] = true;
  const Graph graph = Build(config).graph;
  std::vector<int32_t> layers;
  for (const Op& op : graph.ops) {
    if (std::holds_alternative<MoeOp>(op.params)) {
      layers.push_back(op.layer.value() - 1);
    }
  }
  EXPECT_EQ(layers, (std::vector<int32_t>{1, 5}));
  EXPECT_TRUE(OpsOf<MoeOp>(graph)[0].normalize);
  EXPECT_TRUE(HasTensor(graph, "model.layers.1.mlp.experts.7.down_proj.weight"));
  EXPECT_TRUE(HasTensor(graph, "model.layers.3.mlp.down_proj.weight"));
  config.erase("intermediate_size");
  EXPECT_FALSE(BuildModel(config, "config.json").ok()) << "dense layers need it";

  Json mixtral = Tiny("mixtral");
  mixtral["num_local_experts"] = 4;
  mixtral["num_experts_per_tok"] = 2;
  const Graph experts = Build(mixtral).graph;
  const MoeOp op = OpsOf<MoeOp>(experts)[0];
  EXPECT_EQ(experts.tensor(op.gate[1]).name, "model.layers.0.block_sparse_moe.experts.1.w1.weight");
  EXPECT_EQ(experts.tensor(op.up[1]).name, "model.layers.0.block_sparse_moe.experts.1.w3.weight");
  EXPECT_EQ(experts.tensor(op.down[1]).name, "model.layers.0.block_sparse_moe.experts.1.w2.weight");
  EXPECT_TRUE(op.normalize);
}

TEST(Config, MalformedConfigurationsAreRefusedByKey) {
  const struct {
    const char* change;  // merged into the tiny config
    const char* message;
  } cases[] = {
      {R"({"model_type":null})", "model_type"},
      {R"({"model_type":"lama"})", "got 'lama', supported are"},
      {R"({"model_type":"bert"})", "mixtral"},
      {R"({"hidden_size":0})", "hidden_size: got 0, wanted an integer from 1"},
      {R"({"hidden_size":-32})", "hidden_size: got -32"},
      {R"({"hidden_size":"32"})", "hidden_size"},
      {R"({"hidden_size":1e300})", "hidden_size"},
      {R"({"hidden_size":null})", "hidden_size: got nothing"},
      {R"({"vocab_size":99999999999})", "vocab_size"},
      {R"({"intermediate_size":[64]})", "intermediate_size"},
      {R"({"num_hidden_layers":1000000000})", "num_hidden_layers"},
      {R"({"num_hidden_layers":0})", "num_hidden_layers"},
      {R"({"num_attention_heads":0})", "num_attention_heads"},
      {R"({"num_attention_heads":6})", "head_dim"},
      {R"({"num_key_value_heads":3})", "num_key_value_heads: got 3, wanted a divisor"},
      {R"({"num_key_value_heads":8})", "num_key_value_heads"},
      {R"({"head_dim":7})", "even"},
      {R"({"head_dim":1000000})", "head_dim"},
      {R"({"rms_norm_eps":0})", "rms_norm_eps"},
      {R"({"rope_theta":0})", "rope_theta"},
      {R"({"hidden_act":"tanh"})", "hidden_act: got 'tanh', supported are silu"},
      {R"({"tie_word_embeddings":"yes"})", "tie_word_embeddings"},
      {R"({"eos_token_id":"</s>"})", "eos_token_id"},
      {R"({"quantization_config":{"quant_method":"gptq"}})", "quantization_config"},
      {R"({"rope_scaling":"linear"})", "rope_scaling"},
      {R"({"rope_scaling":{"type":"dynamic","factor":2.0}})", "got 'dynamic', supported are"},
      {R"({"rope_scaling":{"rope_type":"linear"}})", "factor"},
      {R"({"rope_scaling":{"rope_type":"linear","factor":-1}})", "factor"},
      {R"({"rope_scaling":{"rope_type":"llama3","factor":8.0}})", "low_freq_factor"},
      {R"({"rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":4,
           "high_freq_factor":4}})",
       "high_freq_factor"},
      {R"({"rope_scaling":{"rope_type":"longrope","short_factor":[1],"long_factor":[1]}})",
       "short_factor: got 1 number, wanted 4"},
      {R"({"rope_scaling":{"rope_type":"factors","factors":[1,1,0,1]}})", "factors"},
      {R"({"rope_scaling":{"factor":2.0}})", "rope_scaling: factor: rope_type 'default' has no"},
      {R"({"rope_scaling":{"rope_type":"default","factor":2.0}})", "rope_scaling: factor"},
      {R"({"rope_scaling":{"rope_type":"linear","factor":2.0,"beta_fast":32}})",
       "beta_fast: rope_type 'linear' has factor"},
      {R"({"rope_scaling":{"rope_type":"linear","factor":null}})", "factor"},
      {R"({"rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":1,
           "high_freq_factor":4}})",
       "original_max_position_embeddings: missing"},
      {R"({"rope_scaling":{"rope_type":"llama3","low_freq_factor":1,"high_freq_factor":4,
           "original_max_position_embeddings":64}})",
       "factor"},
      {R"({"rope_scaling":{"rope_type":"yarn"}})", "rope_scaling: factor"},
      {R"({"rope_scaling":{"rope_type":"yarn","original_max_position_embeddings":64}})",
       "rope_scaling: factor"},
      {R"({"rope_scaling":{"rope_type":"yarn","factor":null}})",
       "original_max_position_embeddings: missing"},
      {R"({"rope_scaling":{"rope_type":"yarn","factor":4.0,"beta_fast":1,"beta_slow":2}})",
       "beta_fast: got 1, wanted at least beta_slow (2)"},
      {R"({"rope_scaling":{"rope_type":"yarn","factor":"4"}})", "factor"},
      {R"({"rope_scaling":{"rope_type":"yarn","factor":4.0,"attn_factor":1.2}})", "attn_factor"},
      {R"({"rope_scaling":{"rope_type":"longrope","short_factor":[1,1,1,1],
           "long_factor":[2,2,2,2]}})",
       "original_max_position_embeddings: missing"},
      {R"({"rope_scaling":{"rope_type":"longrope","short_factor":[1,1,1,1],
           "original_max_position_embeddings":64}})",
       "long_factor: got 0 numbers"},
      {R"({"rope_scaling":{"rope_type":"longrope","short_factor":[1,1,1,1],
           "long_factor":[2,2,2,2],"original_max_position_embeddings":64,"long_mscale":1.2}})",
       "long_mscale"},
      {R"({"partial_rotary_factor":0.5})", "partial_rotary_factor"},
      {R"({"model_type":"qwen2","layer_types":["full_attention"]})",
       "layer_types: got 1 entry, wanted a list with one per layer (4)"},
      {R"({"model_type":"qwen2","layer_types":"full_attention"})",
       "layer_types: got a string, wanted a list"},
      {R"({"model_type":"qwen2","layer_types":["full_attention","x","x","x"]})", "layer_types"},
      {R"({"model_type":"mistral","sliding_window":0})", "sliding_window"},
      {R"({"model_type":"mixtral"})", "num_local_experts"},
      {R"({"model_type":"mixtral","num_local_experts":2,"num_experts_per_tok":3})",
       "num_experts_per_tok"},
      {R"({"model_type":"mixtral","num_local_experts":1000000000,"num_experts_per_tok":1})",
       "num_local_experts"},
      {R"({"model_type":"gemma2","query_pre_attn_scalar":0})", "query_pre_attn_scalar"},
      {R"({"model_type":"gemma3_text","use_bidirectional_attention":true})",
       "use_bidirectional_attention"},
      {R"({"text_config":{"model_type":"what"}})", "text_config: model_type: got 'what'"},
  };

  for (const auto& bad : cases) {
    Json config = Tiny();
    config.update(Parse(bad.change));
    const auto model = BuildModel(config, "config.json");
    ASSERT_FALSE(model.ok()) << bad.change;
    EXPECT_NE(model.error().message.find(bad.message), std::string::npos)
        << bad.change << ": " << model.error().message;
    EXPECT_NE(model.error().message.find("config.json"), std::string::npos)
        << model.error().message;
    EXPECT_EQ(ExitStatus(model.error().code), 2) << bad.change;
  }
  EXPECT_FALSE(BuildModel(Json::array(), "config.json").ok());
}

// Adds name -> shape of a safetensors file.
void AddShapes(const std::string& path, std::map<std::string, std::vector<int64_t>>& shapes) {
  const auto file = MappedFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.error().message;
  uint64_t length = 0;
  std::memcpy(&length, file->bytes().data(), sizeof(length));
  const std::string_view text(reinterpret_cast<const char*>(file->bytes().data()) + sizeof(length),
                              length);
  const Json header = ParseJson(text, path).value();
  for (const auto& [name, entry] : header.items()) {
    if (name != "__metadata__") {
      shapes[name] = entry["shape"].get<std::vector<int64_t>>();
    }
  }
}

// The folders that transformers wrote for the golden logits.
TEST(Config, TensorsAreThoseOfTheFoldersThatTransformersWrites) {
  for (const char* name :
       {"gemma2", "gemma3", "llama2", "llama3", "llama-linear", "llama-yarn", "mistral", "mixtral",
        "phi3", "phi3-longrope", "qwen2", "qwen2-window", "qwen3", "qwen3_moe", "smollm2"}) {
    const std::string folder = fmt::format("{}/tests/golden/models/{}", PENSTOCK_SOURCE_DIR, name);
    const auto config = ReadJsonFile(folder + "/config.json");
    ASSERT_TRUE(config.ok()) << config.error().message;
    const auto model = BuildModel(config.value(), folder);
    ASSERT_TRUE(model.ok()) << model.error().message;
    std::map<std::string, std::vector<int64_t>> wanted;
    for (const WeightTensor& tensor : model->graph.tensors) {
      wanted[tensor.name] = tensor.shape;
    }
    std::map<std::string, std::vector<int64_t>> stored;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      // Other files that end so are not the model's.
      if (entry.path().extension() == ".safetensors" &&
          entry.path().filename().string().starts_with("model")) {
        AddShapes(entry.path().string(), stored);
      }
    }
    if (model->config.tied) {
      stored.erase("lm_head.weight");  // some folders hold the tied table twice
    }
    EXPECT_EQ(wanted, stored) << name;
  }
}

// Every key of every golden's config, and of its RoPE parameters, replaced by what nobody would
// write: an answer comes each time, a model or an error for the user.
TEST(Config, NoValueOfAnyKeyBreaksTheReader) {
  const std::vector<Json> values = {nullptr,
                                    true,
                                    false,
                                    0,
                                    -1,
                                    1,
                                    3,
                                    int64_t{1} << 20,
                                    INT64_MAX,
                                    INT64_MIN,
                                    1e308,
                                    -0.5,
                                    "",
                                    "x",
                                    Json::array(),
                                    {1, -1},
                                    Json::object(),
                                    {{"full_attention", {{"rope_type", "yarn"}}}}};
  int tried = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(PENSTOCK_SOURCE_DIR "/tests/golden/models")) {
    const auto config = ReadJsonFile(entry.path().string() + "/config.json");
    if (!config.ok()) {
      continue;  // a folder of other files
    }
    const auto try_one = [&](const Json& changed) {
      const auto model = BuildModel(changed, "config.json");
      ++tried;
      if (!model.ok()) {
        EXPECT_EQ(ExitStatus(model.error().code), 2) << model.error().message;
      }
    };
    for (const auto& [key, old] : config.value().items()) {
      for (const Json& value : values) {
        Json changed = config.value();
        changed[key] = value;
        try_one(changed);
      }
      if (!old.is_object()) {
        continue;
      }
      for (const auto& [inner, unused] : old.items()) {
        for (const Json& value : values) {
          Json changed = config.value();
          changed[key][inner] = value;
          try_one(changed);
        }
      }
    }
  }
  EXPECT_GT(tried, 5000);
}

}  // namespace
}  // namespace penstock::model
