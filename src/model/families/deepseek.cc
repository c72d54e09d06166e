// DeepSeek-V3 and R1, Kimi K2: latent attention with rotary embedding, routed and shared experts
// after a few dense layers. Layers of multi-token prediction are not part of the graph. Source: the
// published configuration and modeling files of DeepSeek-V3, and transformers 5.24.

#include <array>
#include <cmath>
#include <string>

#include "base/json.h"
#include "model/decoder.h"
#include "model/families/families.h"
#include "model/known_keys.h"
#include "model/latent.h"

namespace penstock::model {
namespace {

constexpr std::array<std::string_view, 38> kKeys = {"attention_bias",
                                                    "first_k_dense_replace",
                                                    "head_dim",
                                                    "hidden_act",
                                                    "hidden_size",
                                                    "intermediate_size",
                                                    "kv_lora_rank",
                                                    "max_position_embeddings",
                                                    "mlp_bias",
                                                    "moe_intermediate_size",
                                                    "moe_layer_freq",
                                                    "n_group",
                                                    "n_routed_experts",
                                                    "n_shared_experts",
                                                    "norm_topk_prob",
                                                    "num_attention_heads",
                                                    "num_experts_per_tok",
                                                    "num_hidden_layers",
                                                    "num_key_value_heads",
                                                    "num_local_experts",
                                                    "num_mtp_layers",
                                                    "num_nextn_predict_layers",
                                                    "q_lora_rank",
                                                    "qk_head_dim",
                                                    "qk_nope_head_dim",
                                                    "qk_rope_head_dim",
                                                    "rms_norm_eps",
                                                    "rope_interleave",
                                                    "rope_parameters",
                                                    "rope_scaling",
                                                    "rope_theta",
                                                    "routed_scaling_factor",
                                                    "scoring_func",
                                                    "tie_word_embeddings",
                                                    "topk_group",
                                                    "topk_method",
                                                    "v_head_dim",
                                                    "vocab_size"};

Result<> RefuseOthers(const JsonReader& config) {
  PENSTOCK_TRY(RefuseUnknownKeys(config, kKeys));
  for (const std::string_view key : {"attention_bias", "mlp_bias"}) {
    PENSTOCK_TRY_ASSIGN(const bool bias, config.BoolOr(key, false));
    if (bias) {
      return UnsupportedValue(config, key, true, "false");
    }
  }
  PENSTOCK_TRY_ASSIGN(const std::string scoring, config.StringOr("scoring_func", "sigmoid"));
  if (scoring != "sigmoid") {
    return UnsupportedValue(config, "scoring_func", scoring, "sigmoid");
  }
  PENSTOCK_TRY_ASSIGN(const std::string method, config.StringOr("topk_method", "noaux_tc"));
  if (method != "noaux_tc") {
    return UnsupportedValue(config, "topk_method", method, "noaux_tc");
  }
  return {};
}

// Scores get YaRN's magnitude squared, where the configuration has mscale_all_dim.
Result<double> ScoreMagnitude(const JsonReader& config) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const Json* object = config.Find(key);
    if (object == nullptr || !object->is_object()) {
      continue;
    }
    const JsonReader scaling(*object, fmt::format("{}: {}", config.where(), key));
    PENSTOCK_TRY_ASSIGN(const std::string old_type, scaling.StringOr("type", "default"));
    PENSTOCK_TRY_ASSIGN(const std::string type, scaling.StringOr("rope_type", old_type));
    PENSTOCK_TRY_ASSIGN(const double all_dim, scaling.NumberOr("mscale_all_dim", 0, 0, 1e6));
    if (type != "default" && all_dim > 0) {
      PENSTOCK_TRY_ASSIGN(const double factor, scaling.Number("factor", 1e-6, 1e6));
      const double m = factor <= 1 ? 1.0 : 0.1 * all_dim * std::log(factor) + 1.0;
      return m * m;
    }
  }
  return 1.0;
}

struct Deepseek {
  DecoderConfig d;
  LatentPiece attention;
  MoePiece moe;
  int64_t shared = 0;
  int64_t dense = 0;
  int64_t frequency = 1;
};

Result<Deepseek> ReadDeepseek(const JsonReader& config) {
  Deepseek m;
  PENSTOCK_TRY(RefuseOthers(config));
  PENSTOCK_TRY_ASSIGN(m.d, ReadDecoder(config, {.context = 4096}));
  PENSTOCK_TRY_ASSIGN(m.attention, ReadLatentPiece(config, m.d.heads));
  PENSTOCK_TRY_ASSIGN(m.attention.interleaved, config.BoolOr("rope_interleave", true));
  PENSTOCK_TRY_ASSIGN(m.moe, ReadMoe(config, m.d, "n_routed_experts", "num_experts_per_tok",
                                     "moe_intermediate_size"));
  m.moe.sigmoid = true;
  m.moe.router_bias = "gate.e_score_correction_bias";
  PENSTOCK_TRY_ASSIGN(m.moe.normalize, config.BoolOr("norm_topk_prob", true));
  PENSTOCK_TRY_ASSIGN(const double scale, config.NumberOr("routed_scaling_factor", 2.5, 0, 1e6));
  m.moe.weight_scale = static_cast<float>(scale);
  PENSTOCK_TRY(ReadGroups(config, "n_group", m.moe));
  PENSTOCK_TRY_ASSIGN(m.shared, config.IntOr("n_shared_experts", 0, 0, 64));
  PENSTOCK_TRY_ASSIGN(m.dense, config.IntOr("first_k_dense_replace", 0, 0, m.d.layers));
  PENSTOCK_TRY_ASSIGN(m.frequency, config.IntOr("moe_layer_freq", 1, 1, m.d.layers));
  return m;
}

ValueId FeedForward(GraphBuilder& b, ValueId x, const Deepseek& m, int64_t layer,
                    const std::string& prefix, const std::string& tag) {
  if (layer < m.dense || layer % m.frequency != 0) {
    return GatedMlp(b, x, {.intermediate = m.d.intermediate, .activation = m.d.activation},
                    prefix + "mlp.", tag);
  }
  const ValueId y = Experts(b, x, m.moe, prefix + "mlp.", tag);
  if (m.shared == 0) {
    return y;
  }
  const ValueId s =
      GatedMlp(b, x, {.intermediate = m.shared * m.moe.intermediate, .activation = m.d.activation},
               prefix + "mlp.shared_experts.", tag + ".shared");
  return b.Add(y, s, "mlp." + tag);
}

}  // namespace

Result<Model> BuildDeepseek(const JsonReader& config, std::string_view) {
  PENSTOCK_TRY_ASSIGN(Deepseek m, ReadDeepseek(config));
  RopeRequest request;
  request.head_dim = m.attention.rope;
  request.max_positions = m.d.max_positions;
  PENSTOCK_TRY_ASSIGN(const Rope rope, ReadRope(config, request));
  PENSTOCK_TRY_ASSIGN(const double magnitude, ScoreMagnitude(config));
  m.attention.rotation = &rope;
  m.attention.scale = static_cast<float>(
      magnitude / std::sqrt(static_cast<double>(m.attention.nope + m.attention.rope)));
  PENSTOCK_TRY_ASSIGN(const int64_t mtp, config.IntOr("num_nextn_predict_layers", 0, 0, 16));
  const NormStyle norm = {.epsilon = m.d.epsilon};
  GraphBuilder b;
  ValueId x = EmbeddingLayer(b, m.d);
  for (int64_t i = 0; i < m.d.layers; ++i) {
    const std::string tag = std::to_string(i);
    const std::string prefix = LayerPrefix(i);
    b.BeginLayer(LayerKind::kDecoder, "layer " + tag);
    ValueId y = Norm(b, x, norm, prefix + "input_layernorm", "attention_norm." + tag);
    y = LatentSelfAttention(b, y, m.attention, prefix + "self_attn.", tag);
    x = b.Add(x, y, "middle." + tag);
    y = Norm(b, x, norm, prefix + "post_attention_layernorm", "mlp_norm." + tag);
    x = b.Add(x, FeedForward(b, y, m, i, prefix, tag), "hidden." + tag);
  }
  PENSTOCK_TRY_ASSIGN(Graph graph, HeadLayer(std::move(b), x, m.d, norm));
  Model model{MakeModelConfig("deepseek_v3", m.d, rope.context, {}), std::move(graph)};
  // One layer of prediction: a decoder layer with experts, its projection of two inputs, norms.
  const int64_t expert = 3 * m.d.hidden * m.moe.intermediate;
  model.config.mtp_parameters =
      mtp * (LatentParameters(m.attention, m.d.hidden) + (m.moe.experts + m.shared) * expert +
             m.moe.experts * (m.d.hidden + 1) + 2 * m.d.hidden * m.d.hidden + 5 * m.d.hidden);
  return model;
}

}  // namespace penstock::model
