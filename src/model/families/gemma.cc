// Gemma 2 and 3: norms before and after each branch, whose weights act as 1 + w; embeddings scaled
// by sqrt(hidden); layers with and without a window in turn. Gemma 2 caps scores and logits; Gemma
// 3 norms q and k instead, and turns its windowed layers with a base frequency of their own.
// Source: transformers 5.24, modeling_gemma2.py and modeling_gemma3.py (which does not apply
// attn_logit_softcapping, nor do we).

#include <cmath>
#include <string>

#include "model/decoder_graph.h"
#include "model/families/families.h"

namespace penstock::model {
namespace {

struct GemmaRules {
  DecoderConfig decoder;
  bool gemma3 = false;
  Rope full;      // layers that see everything
  Rope windowed;  // layers with a window
  std::vector<int64_t> windows;
  float scale = 1.0F;
  bool attention_bias = false;
  float score_cap = 0.0F;
  float logit_cap = 0.0F;
};

Result<Rope> ReadGemmaRope(const JsonReader& config, const DecoderConfig& d, bool gemma3,
                           bool windowed) {
  RopeRequest request = {.head_dim = d.head_dim, .max_positions = d.max_positions};
  if (gemma3) {
    request.layer_type = windowed ? "sliding_attention" : "full_attention";
    request.default_theta = windowed ? 1e4 : 1e6;
    request.theta_key = windowed ? "rope_local_base_freq" : "rope_theta";
    request.scaled = !windowed;
  }
  return ReadRope(config, request);
}

// A soft cap that may be absent (then `fallback`) or null (none).
Result<float> ReadCap(const JsonReader& config, std::string_view key, double fallback) {
  PENSTOCK_TRY_ASSIGN(const double cap,
                      config.NumberOr(key, IsAbsent(config, key) ? fallback : 0.0, 1e-6, 1e9));
  return static_cast<float>(cap);
}

Result<GemmaRules> ReadGemma(const JsonReader& config, bool gemma3) {
  GemmaRules rules;
  rules.gemma3 = gemma3;
  PENSTOCK_TRY_ASSIGN(rules.decoder, ReadDecoder(config, {.vocabulary = gemma3 ? 262208 : 256000,
                                                          .heads = 8,
                                                          .kv_heads = 4,
                                                          .head_dim = 256,
                                                          .tied = true,
                                                          .context = gemma3 ? 131072 : 8192,
                                                          .activation_key = "hidden_activation",
                                                          .activation = Activation::kGeluTanh,
                                                          .variations = true}));
  const DecoderConfig& d = rules.decoder;
  PENSTOCK_TRY_ASSIGN(rules.full, ReadGemmaRope(config, d, gemma3, false));
  PENSTOCK_TRY_ASSIGN(rules.windowed, ReadGemmaRope(config, d, gemma3, true));
  PENSTOCK_TRY_ASSIGN(const int64_t window, ReadWindow(config, 4096));
  PENSTOCK_TRY_ASSIGN(const int64_t pattern,
                      config.IntOr("sliding_window_pattern", gemma3 ? 6 : 2, 1, 4096));
  PENSTOCK_TRY_ASSIGN(rules.windows, ReadLayerWindows(config, d.layers, window, [&](int64_t i) {
                        return (i + 1) % (gemma3 ? pattern : 2) != 0;
                      }));
  PENSTOCK_TRY_ASSIGN(const double scalar,
                      config.NumberOr("query_pre_attn_scalar", 256.0, 1e-6, 1e9));
  rules.scale = InverseRoot(scalar);
  PENSTOCK_TRY_ASSIGN(rules.attention_bias, config.BoolOr("attention_bias", false));
  if (!gemma3) {
    PENSTOCK_TRY_ASSIGN(rules.score_cap, ReadCap(config, "attn_logit_softcapping", 50.0));
  }
  PENSTOCK_TRY_ASSIGN(rules.logit_cap,
                      ReadCap(config, "final_logit_softcapping", gemma3 ? 0.0 : 30.0));
  return rules;
}

ValueId GemmaAttention(GraphBuilder& b, ValueId x, const LayerPlace& place,
                       const GemmaRules& rules) {
  const DecoderConfig& d = rules.decoder;
  const int64_t window = rules.windows[static_cast<size_t>(place.depth)];
  const NormStyle norm = {.epsilon = d.epsilon, .add_one = true};
  AttentionPiece attention = {.heads = d.heads,
                              .kv_heads = d.kv_heads,
                              .head_dim = d.head_dim,
                              .qkv_bias = rules.attention_bias,
                              .output_bias = rules.attention_bias,
                              .rope = window > 0 ? &rules.windowed : &rules.full,
                              .scale = rules.scale,
                              .soft_cap = rules.score_cap,
                              .window = window};
  if (rules.gemma3) {
    attention.qk_norm = norm;
  }
  const ValueId y = PreNormAttention(norm, attention)(b, x, place);
  return Norm(b, y, norm, place.prefix + "post_attention_layernorm",
              "attention_post_norm." + place.tag);
}

ValueId GemmaMlp(GraphBuilder& b, ValueId x, const LayerPlace& place, const GemmaRules& rules) {
  const NormStyle norm = {.epsilon = rules.decoder.epsilon, .add_one = true};
  const MlpPiece mlp = {.intermediate = rules.decoder.intermediate,
                        .activation = rules.decoder.activation};
  ValueId y = Norm(b, x, norm, place.prefix + "pre_feedforward_layernorm", "mlp_norm." + place.tag);
  y = GatedMlp(b, y, mlp, place.prefix + "mlp.", place.tag);
  return Norm(b, y, norm, place.prefix + "post_feedforward_layernorm",
              "mlp_post_norm." + place.tag);
}

}  // namespace

Result<Model> BuildGemma(const JsonReader& config, std::string_view model_type) {
  const bool gemma3 = model_type == "gemma3_text";
  PENSTOCK_TRY_ASSIGN(const GemmaRules rules, ReadGemma(config, gemma3));
  const DecoderConfig& d = rules.decoder;
  const NormStyle norm = {.epsilon = d.epsilon, .add_one = true};
  const auto attend = [&](GraphBuilder& b, ValueId x, const LayerPlace& place) {
    return GemmaAttention(b, x, place, rules);
  };
  const auto feed_forward = [&](GraphBuilder& b, ValueId x, const LayerPlace& place) {
    return GemmaMlp(b, x, place, rules);
  };
  PENSTOCK_TRY_ASSIGN(
      Graph graph,
      BuildDecoder(config,
                   {.decoder = d,
                    .norm = norm,
                    .embedding_scale = static_cast<float>(std::sqrt(static_cast<double>(d.hidden))),
                    .logit_cap = rules.logit_cap,
                    .attention = attend,
                    .mlp = feed_forward}));
  // Scaling of Gemma 3's positions does not lengthen max_position_embeddings: it holds the result.
  return Model{MakeModelConfig(gemma3 ? "gemma3" : "gemma2", d, d.max_positions, rules.windows),
               std::move(graph)};
}

}  // namespace penstock::model
