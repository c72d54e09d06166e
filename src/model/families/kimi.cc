// Kimi Linear and Kimi K3: delta attention (KDA) in most layers, latent attention without positions
// in the others, routed and shared experts, and in K3 experts over a latent, the SiTU activation,
// and attention residuals over blocks of layers. Source: the published configuration and modeling
// code of Kimi Linear and Kimi K3.

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <string>

#include "base/json.h"
#include "base/units.h"
#include "model/decoder.h"
#include "model/families/families.h"
#include "model/known_keys.h"
#include "model/latent.h"

namespace penstock::model {
namespace {

constexpr std::array<std::string_view, 46> kKeys = {"activation_situ_beta",
                                                    "activation_situ_linear_beta",
                                                    "attn_res_block_size",
                                                    "attn_res_fused",
                                                    "first_k_dense_replace",
                                                    "head_dim",
                                                    "hidden_act",
                                                    "hidden_size",
                                                    "intermediate_size",
                                                    "kv_lora_rank",
                                                    "latent_moe_use_norm",
                                                    "linear_attn_config",
                                                    "max_position_embeddings",
                                                    "mla_use_nope",
                                                    "mla_use_output_gate",
                                                    "model_max_length",
                                                    "moe_intermediate_size",
                                                    "moe_layer_freq",
                                                    "moe_renormalize",
                                                    "moe_router_activation_func",
                                                    "num_attention_heads",
                                                    "num_expert_group",
                                                    "num_experts",
                                                    "num_experts_per_token",
                                                    "num_hidden_layers",
                                                    "num_key_value_heads",
                                                    "num_nextn_predict_layers",
                                                    "num_shared_experts",
                                                    "q_lora_rank",
                                                    "qk_head_dim",
                                                    "qk_nope_head_dim",
                                                    "qk_rope_head_dim",
                                                    "quantization_config",
                                                    "rms_norm_eps",
                                                    "rope_parameters",
                                                    "rope_scaling",
                                                    "rope_theta",
                                                    "routed_expert_hidden_size",
                                                    "routed_scaling_factor",
                                                    "tie_word_embeddings",
                                                    "topk_group",
                                                    "topk_method",
                                                    "use_grouped_topk",
                                                    "v_head_dim",
                                                    "vocab_size",
                                                    "layer_types"};
constexpr std::array<std::string_view, 7> kLinearKeys = {
    "full_attn_layers", "gate_lower_bound",       "head_dim",          "kda_layers",
    "num_heads",        "short_conv_kernel_size", "use_full_rank_gate"};

struct Kimi {
  DecoderConfig d;
  LatentPiece latent;
  std::set<int64_t> kda_layers;  // from 1, as the file has them
  int64_t kda_heads = 0;
  int64_t kda_dim = 0;
  int64_t conv = 4;
  bool full_gate = false;
  bool bounded = false;
  float lower_bound = -5.0F;
  int64_t block = 0;         // decoder layers of a block of attention residuals; 0: plain
  bool fused_reads = false;  // a depth read's query has its key norm multiplied in (GGUF)
  MlpPiece act;              // of all feed-forward parts
  MoePiece moe;
  int64_t shared = 0, dense = 0, frequency = 1;
  int64_t routed_width = 0;  // 0: experts run at the width of the model
  bool routed_norm = false;
};

Result<> ReadSizes(const JsonReader& config, Kimi& k) {
  PENSTOCK_TRY_ASSIGN(k.d.hidden, config.Int("hidden_size", 1, 1 << 18));
  PENSTOCK_TRY_ASSIGN(k.d.layers, config.Int("num_hidden_layers", 1, 4096));
  PENSTOCK_TRY_ASSIGN(k.d.heads, config.Int("num_attention_heads", 1, 1 << 14));
  PENSTOCK_TRY_ASSIGN(k.d.vocabulary, config.Int("vocab_size", 1, 1 << 24));
  PENSTOCK_TRY_ASSIGN(k.d.intermediate, config.Int("intermediate_size", 1, 1 << 22));
  PENSTOCK_TRY_ASSIGN(const double epsilon, config.NumberOr("rms_norm_eps", 1e-5, 1e-30, 1));
  k.d.epsilon = static_cast<float>(epsilon);
  PENSTOCK_TRY_ASSIGN(k.d.tied, config.BoolOr("tie_word_embeddings", false));
  PENSTOCK_TRY_ASSIGN(const int64_t context,
                      config.IntOr("model_max_length", 1 << 20, 1, int64_t{1} << 31));
  PENSTOCK_TRY_ASSIGN(k.d.max_positions,
                      config.IntOr("max_position_embeddings", context, 1, int64_t{1} << 31));
  PENSTOCK_TRY_ASSIGN(k.d.bos, ReadTokenIds(config, "bos_token_id", k.d.vocabulary));
  PENSTOCK_TRY_ASSIGN(k.d.eos, ReadTokenIds(config, "eos_token_id", k.d.vocabulary));
  PENSTOCK_TRY_ASSIGN(k.block, config.IntOr("attn_res_block_size", 0, 1, 4096));
  PENSTOCK_TRY_ASSIGN(k.fused_reads, config.BoolOr("attn_res_fused", false));
  return {};
}

// Which layers have which attention. Numbers count from 1.
Result<> ReadLayers(const JsonReader& linear, Kimi& k) {
  PENSTOCK_TRY_ASSIGN(const auto delta, linear.IntsOr("kda_layers", 1, k.d.layers));
  PENSTOCK_TRY_ASSIGN(const auto full, linear.IntsOr("full_attn_layers", 1, k.d.layers));
  k.kda_layers.insert(delta.begin(), delta.end());
  const std::set<int64_t> latent_layers(full.begin(), full.end());
  if (k.kda_layers.size() != delta.size() || latent_layers.size() != full.size()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[model.config] {}: {}: names a layer twice, wanted each once", linear.where(),
                     k.kda_layers.size() != delta.size() ? "kda_layers" : "full_attn_layers");
  }
  if (!linear.Has("full_attn_layers")) {
    return {};
  }
  for (int64_t layer = 1; layer <= k.d.layers; ++layer) {
    const bool is_delta = k.kda_layers.contains(layer);
    if (is_delta == latent_layers.contains(layer)) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "[model.config] {}: kda_layers, full_attn_layers: layer {} stands in {}, "
                       "wanted each of the layers 1 to {} in one of the two lists (they count from "
                       "1)",
                       linear.where(), layer, is_delta ? "both" : "neither", k.d.layers);
    }
  }
  return {};
}

// Where a file says the kinds of layers once more, it says the same.
Result<> CheckLayerTypes(const JsonReader& config, const Kimi& k) {
  const Json* types = config.Find("layer_types");
  if (types == nullptr) {
    return {};
  }
  const bool fits = types->is_array() && static_cast<int64_t>(types->size()) == k.d.layers;
  if (!fits) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        "[model.config] {}: layer_types: got {}, wanted a list with one per layer ({})",
        config.where(), EntriesText(*types), k.d.layers);
  }
  for (int64_t layer = 1; layer <= k.d.layers; ++layer) {
    const Json& got = (*types)[static_cast<size_t>(layer - 1)];
    const std::string_view wanted =
        k.kda_layers.contains(layer) ? "linear_attention" : "full_attention";
    if (got != wanted) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "[model.config] {}: layer_types: got {} for layer {}, wanted \"{}\" as "
                       "linear_attn_config has it",
                       config.where(), DumpJson(got).substr(0, 60), layer, wanted);
    }
  }
  return {};
}

Result<> ReadDelta(const JsonReader& config, Kimi& k) {
  const Json* linear = config.Find("linear_attn_config");
  if (linear == nullptr || !linear->is_object()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[model.config] {}: linear_attn_config: missing, wanted an object with "
                     "kda_layers, num_heads, head_dim",
                     config.where());
  }
  const JsonReader kda(*linear, config.where() + ": linear_attn_config");
  PENSTOCK_TRY(RefuseUnknownKeys(kda, kLinearKeys));
  PENSTOCK_TRY(ReadLayers(kda, k));
  PENSTOCK_TRY_ASSIGN(k.kda_heads, kda.Int("num_heads", 1, 1 << 14));
  PENSTOCK_TRY_ASSIGN(k.kda_dim, kda.Int("head_dim", 1, 1 << 12));
  PENSTOCK_TRY_ASSIGN(k.conv, kda.IntOr("short_conv_kernel_size", 4, 1, 64));
  PENSTOCK_TRY_ASSIGN(k.full_gate, kda.BoolOr("use_full_rank_gate", false));
  k.bounded = kda.Has("gate_lower_bound");
  if (k.bounded) {
    PENSTOCK_TRY_ASSIGN(const double bound, kda.Number("gate_lower_bound", -1e6, -1e-6));
    k.lower_bound = static_cast<float>(bound);
  }
  return {};
}

Result<> ReadActivation(const JsonReader& config, Kimi& k) {
  PENSTOCK_TRY_ASSIGN(const std::string act, config.StringOr("hidden_act", "silu"));
  if (act == "situ") {
    k.act.activation = Activation::kSitu;
    PENSTOCK_TRY_ASSIGN(const double beta, config.Number("activation_situ_beta", 1e-6, 1e6));
    PENSTOCK_TRY_ASSIGN(const double linear,
                        config.NumberOr("activation_situ_linear_beta", 0, 0, 1e6));
    k.act.beta = static_cast<float>(beta);
    k.act.linear_beta = static_cast<float>(linear);
  } else if (act != "silu") {
    return UnsupportedValue(config, "hidden_act", act, "silu and situ");
  }
  return {};
}

Result<> ReadExperts(const JsonReader& config, Kimi& k) {
  PENSTOCK_TRY_ASSIGN(
      k.moe, ReadMoe(config, k.d, "num_experts", "num_experts_per_token", "moe_intermediate_size"));
  k.moe.activation = k.act.activation;
  k.moe.beta = k.act.beta;
  k.moe.linear_beta = k.act.linear_beta;
  k.moe.gate = "w1";
  k.moe.up = "w3";
  k.moe.down = "w2";
  k.moe.router_bias = "gate.e_score_correction_bias";
  PENSTOCK_TRY_ASSIGN(const std::string scoring,
                      config.StringOr("moe_router_activation_func", "sigmoid"));
  if (scoring != "sigmoid") {
    return UnsupportedValue(config, "moe_router_activation_func", scoring, "sigmoid");
  }
  k.moe.sigmoid = true;
  PENSTOCK_TRY_ASSIGN(const bool normalize, config.BoolOr("moe_renormalize", true));
  k.moe.normalize = normalize && k.moe.chosen > 1;
  PENSTOCK_TRY_ASSIGN(const double scale, config.NumberOr("routed_scaling_factor", 1.0, 0, 1e6));
  k.moe.weight_scale = static_cast<float>(scale);
  PENSTOCK_TRY_ASSIGN(const std::string method, config.StringOr("topk_method", "noaux_tc"));
  if (method != "noaux_tc") {
    return UnsupportedValue(config, "topk_method", method, "noaux_tc");
  }
  PENSTOCK_TRY(ReadGroups(config, "num_expert_group", k.moe));
  PENSTOCK_TRY_ASSIGN(const bool grouped, config.BoolOr("use_grouped_topk", true));
  if (!grouped && k.moe.groups > 1) {
    return UnsupportedValue(config, "use_grouped_topk", false, "true with num_expert_group");
  }
  PENSTOCK_TRY_ASSIGN(k.shared, config.IntOr("num_shared_experts", 0, 0, 64));
  PENSTOCK_TRY_ASSIGN(k.dense, config.IntOr("first_k_dense_replace", 0, 0, k.d.layers));
  PENSTOCK_TRY_ASSIGN(k.frequency, config.IntOr("moe_layer_freq", 1, 1, k.d.layers));
  PENSTOCK_TRY_ASSIGN(k.routed_width, config.IntOr("routed_expert_hidden_size", 0, 1, 1 << 18));
  PENSTOCK_TRY_ASSIGN(k.routed_norm, config.BoolOr("latent_moe_use_norm", false));
  if (k.routed_norm && k.routed_width == 0) {
    return UnsupportedValue(config, "latent_moe_use_norm", true,
                            "false without routed_expert_hidden_size");
  }
  return {};
}

Result<Kimi> ReadKimi(const JsonReader& config) {
  Kimi k;
  PENSTOCK_TRY(RefuseUnknownKeys(config, kKeys));
  PENSTOCK_TRY_ASSIGN(const bool nope, config.BoolOr("mla_use_nope", true));
  if (!nope) {
    return UnsupportedValue(config, "mla_use_nope", false, "true");
  }
  PENSTOCK_TRY(ReadSizes(config, k));
  PENSTOCK_TRY_ASSIGN(k.latent, ReadLatentPiece(config, k.d.heads));
  PENSTOCK_TRY_ASSIGN(k.latent.gate, config.BoolOr("mla_use_output_gate", false));
  PENSTOCK_TRY(ReadDelta(config, k));
  PENSTOCK_TRY(CheckLayerTypes(config, k));
  PENSTOCK_TRY(ReadActivation(config, k));
  PENSTOCK_TRY(ReadExperts(config, k));
  return k;
}

ValueId Project(GraphBuilder& b, ValueId x, const std::string& prefix, const std::string& name,
                int64_t rows, bool replicated, const std::string& tag) {
  LinearOp op;
  op.weights.push_back(b.Tensor(prefix + name + ".weight", {rows, b.width(x)}, TensorRole::kMatrix,
                                false, replicated));
  return b.Linear(x, op, {name + "." + tag})[0];
}

ValueId DeltaAttention(GraphBuilder& b, ValueId x, const Kimi& k, const std::string& prefix,
                       const std::string& tag) {
  const int64_t width = k.kda_heads * k.kda_dim;
  LinearOp qkv;
  ShortConvOp conv;
  conv.taps = k.conv;
  for (const std::string part : {"q", "k", "v"}) {
    qkv.weights.push_back(b.Matrix(prefix + part + "_proj.weight", width, b.width(x)));
    conv.weights.push_back(
        b.Tensor(prefix + part + "_conv1d.weight", {width, 1, k.conv}, TensorRole::kVector));
  }
  std::vector<ValueId> core = b.Linear(x, qkv, {"q_proj." + tag, "k_proj." + tag, "v_proj." + tag});
  core = b.ShortConv(core, conv, {"q." + tag, "k." + tag, "v." + tag});
  const ValueId low = Project(b, x, prefix, "f_a_proj", k.kda_dim, true, tag);
  core.push_back(Project(b, low, prefix, "f_b_proj", width, false, tag));
  core.push_back(Project(b, x, prefix, "b_proj", k.kda_heads, false, tag));
  const ValueId gate = k.full_gate
                           ? Project(b, x, prefix, "g_proj", width, false, tag)
                           : Project(b, Project(b, x, prefix, "g_a_proj", k.kda_dim, true, tag),
                                     prefix, "g_b_proj", width, false, tag);
  DeltaAttentionOp delta;
  delta.a_log = b.Vector(prefix + "A_log", k.kda_heads);
  delta.dt_bias = b.Vector(prefix + "dt_bias", width);
  delta.heads = k.kda_heads;
  delta.dim = k.kda_dim;
  delta.bounded = k.bounded;
  delta.lower_bound = k.lower_bound;
  const ValueId o = b.DeltaAttention(core, delta, "delta." + tag);
  RmsNormOp norm;
  norm.weight = b.Vector(prefix + "o_norm.weight", k.kda_dim);
  norm.epsilon = k.d.epsilon;
  norm.group = k.kda_dim;
  const ValueId normed = b.RmsNorm(o, norm, "delta_norm." + tag);
  const ValueId gated =
      b.Gated(gate, normed, {.activation = Activation::kSigmoid}, "gated_delta." + tag);
  return Project(b, gated, prefix, "o_proj", k.d.hidden, false, tag);
}

// The tensors of one depth read: what its query and its key norm are called.
DepthReadOp ReadTensors(GraphBuilder& b, const Kimi& k, const std::string& tensor) {
  DepthReadOp op;
  op.query = b.Tensor(tensor + "_proj.weight", {1, k.d.hidden}, TensorRole::kVector);
  if (!k.fused_reads) {
    op.key_norm = b.Vector(tensor + "_norm.weight", k.d.hidden);
  }
  op.epsilon = k.d.epsilon;
  return op;
}

// The softmax-weighted sum of the bank and the running sum.
ValueId DepthRead(GraphBuilder& b, const Kimi& k, const std::vector<ValueId>& bank, ValueId p,
                  const std::string& tensor, std::string name) {
  std::vector<ValueId> sources = bank;
  sources.push_back(p);
  return b.DepthRead(sources, ReadTensors(b, k, tensor), std::move(name));
}

ValueId FeedForward(GraphBuilder& b, ValueId x, const Kimi& k, int64_t layer,
                    const std::string& prefix, const std::string& tag) {
  MlpPiece mlp = k.act;
  if (layer < k.dense || layer % k.frequency != 0) {
    mlp.intermediate = k.d.intermediate;
    return GatedMlp(b, x, mlp, prefix + "mlp.", tag);
  }
  const std::string moe = prefix + "block_sparse_moe.";
  const bool latent = k.routed_width > 0;
  const ValueId z =
      latent ? Project(b, x, moe, "routed_expert_down_proj", k.routed_width, true, tag) : x;
  ValueId y = Experts(b, z, k.moe, moe, tag, x);
  if (k.routed_norm) {
    y = Norm(b, y, {.epsilon = k.d.epsilon}, moe + "routed_expert_norm", "routed_norm." + tag);
  }
  if (latent) {
    y = Project(b, y, moe, "routed_expert_up_proj", k.d.hidden, true, tag);
  }
  if (k.shared > 0) {
    mlp.intermediate = k.shared * k.moe.intermediate;
    y = b.Add(y, GatedMlp(b, x, mlp, moe + "shared_experts.", tag + ".shared"), "mlp." + tag);
  }
  return y;
}

}  // namespace

Result<Model> BuildKimi(const JsonReader& config, std::string_view) {
  PENSTOCK_TRY_ASSIGN(const Kimi k, ReadKimi(config));
  const NormStyle norm = {.epsilon = k.d.epsilon};
  const std::string_view family = k.block > 0 ? "kimi_k3" : "kimi_linear";
  GraphBuilder b;
  ValueId p = EmbeddingLayer(b, k.d);  // the running sum
  std::vector<ValueId> bank;           // sums of finished blocks, the embedding first
  for (int64_t i = 0; i < k.d.layers; ++i) {
    const std::string tag = std::to_string(i);
    const std::string prefix = LayerPrefix(i);
    b.BeginLayer(LayerKind::kDecoder, "layer " + tag);
    ValueId h = p;
    if (!bank.empty()) {
      h = DepthRead(b, k, bank, p, prefix + "self_attention_res", "attention_read." + tag);
    } else if (k.block > 0 && !k.fused_reads) {
      ReadTensors(b, k, prefix + "self_attention_res");  // stored, and read by nothing
    }
    const bool opens = k.block > 0 && i % k.block == 0;
    if (opens) {
      bank.push_back(p);
    }
    ValueId y = Norm(b, h, norm, prefix + "input_layernorm", "attention_norm." + tag);
    y = k.kda_layers.contains(i + 1)
            ? DeltaAttention(b, y, k, prefix + "self_attn.", tag)
            : LatentSelfAttention(b, y, k.latent, prefix + "self_attn.", tag);
    p = opens ? y : b.Add(p, y, "middle." + tag);
    h = k.block > 0 ? DepthRead(b, k, bank, p, prefix + "mlp_res", "mlp_read." + tag) : p;
    y = Norm(b, h, norm, prefix + "post_attention_layernorm", "mlp_norm." + tag);
    p = b.Add(p, FeedForward(b, y, k, i, prefix, tag), "hidden." + tag);
  }
  b.BeginLayer(LayerKind::kHead, "head");
  const ValueId read =
      bank.empty() ? p : DepthRead(b, k, bank, p, "model.output_attn_res", "output_read");
  const ValueId rows = b.SelectRows(read, "rows");
  const TensorId head = HeadTensor(b, k.d);
  const ValueId logits = HeadLogits(b, rows, head, norm, "model.norm", 0.0F, "");
  PENSTOCK_TRY_ASSIGN(Graph graph, std::move(b).Build(logits));
  return Model{MakeModelConfig(family, k.d, k.d.max_positions, {}), std::move(graph)};
}

}  // namespace penstock::model
