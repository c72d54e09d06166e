// DeepSeek-V3 and R1, Kimi K2: latent attention, routed and shared experts after a few dense
// layers. Counted, not run. Source: the published configuration and modeling files of DeepSeek-V3.

#include <string>

#include "model/counted.h"
#include "model/decoder.h"
#include "model/families/families.h"

namespace penstock::model {

Result<Model> BuildDeepseek(const JsonReader& config, std::string_view) {
  PENSTOCK_TRY_ASSIGN(DecoderConfig d, ReadDecoder(config, {.context = 4096}));
  PENSTOCK_TRY_ASSIGN(LatentAttention attention, ReadLatentAttention(config, d.heads));
  attention.epsilon = d.epsilon;
  PENSTOCK_TRY_ASSIGN(const MoePiece moe, ReadMoe(config, d, "n_routed_experts",
                                                  "num_experts_per_tok", "moe_intermediate_size"));
  PENSTOCK_TRY_ASSIGN(const int64_t shared, config.IntOr("n_shared_experts", 0, 0, 64));
  PENSTOCK_TRY_ASSIGN(const int64_t dense, config.IntOr("first_k_dense_replace", 0, 0, d.layers));
  PENSTOCK_TRY_ASSIGN(const int64_t mtp, config.IntOr("num_nextn_predict_layers", 0, 0, 16));
  const NormStyle norm = {.epsilon = d.epsilon};
  GraphBuilder b;
  ValueId x = EmbeddingLayer(b, d);
  for (int64_t i = 0; i < d.layers; ++i) {
    const std::string tag = std::to_string(i);
    const std::string prefix = LayerPrefix(i);
    b.BeginLayer(LayerKind::kDecoder, "layer " + tag);
    ValueId y = Norm(b, x, norm, prefix + "input_layernorm", "attention_norm." + tag);
    y = CountedLatentAttention(b, y, attention, prefix + "self_attn.", tag);
    x = b.Add(x, y, "middle." + tag);
    y = Norm(b, x, norm, prefix + "post_attention_layernorm", "mlp_norm." + tag);
    if (i < dense) {
      y = GatedMlp(b, y, {.intermediate = d.intermediate}, prefix + "mlp.", tag);
    } else {
      const CountedExperts experts = {.experts = moe.experts,
                                      .chosen = moe.chosen,
                                      .inner = moe.intermediate,
                                      .router_bias = true};
      ValueId sum = CountedMoe(b, y, y, experts, prefix + "mlp.gate", prefix + "mlp.experts.", tag);
      if (shared > 0) {
        const ValueId s = GatedMlp(b, y, {.intermediate = shared * moe.intermediate},
                                   prefix + "mlp.shared_experts.", tag + ".shared");
        sum = b.Add(sum, s, "mlp." + tag);
      }
      y = sum;
    }
    x = b.Add(x, y, "hidden." + tag);
  }
  PENSTOCK_TRY_ASSIGN(Graph graph, HeadLayer(std::move(b), x, d, norm));
  Model model{MakeModelConfig("deepseek_v3", d, d.max_positions, {}), std::move(graph)};
  // One layer of prediction: a decoder layer with experts, its projection of two inputs, norms.
  const int64_t expert = 3 * d.hidden * moe.intermediate;
  model.config.mtp_parameters =
      mtp * (LatentAttentionParameters(attention, d.hidden) + (moe.experts + shared) * expert +
             moe.experts * (d.hidden + 1) + 2 * d.hidden * d.hidden + 5 * d.hidden);
  return model;
}

}  // namespace penstock::model
