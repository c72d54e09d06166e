// Grok-1: four norms per layer, eight wide experts. Counted, not run.
// Source: the released model code of Grok-1 (model.py).

#include <cmath>
#include <string>

#include "model/counted.h"
#include "model/decoder.h"
#include "model/families/families.h"

namespace penstock::model {

Result<Model> BuildGrok(const JsonReader& config, std::string_view) {
  PENSTOCK_TRY_ASSIGN(const DecoderConfig d,
                      ReadDecoder(config, {.tied = true, .activation = Activation::kGelu}));
  PENSTOCK_TRY_ASSIGN(const Rope rope,
                      ReadRope(config, {.head_dim = d.head_dim, .max_positions = d.max_positions}));
  PENSTOCK_TRY_ASSIGN(const MoePiece moe, ReadMoe(config, d, "num_experts", "num_experts_per_tok",
                                                  "intermediate_size"));
  const NormStyle norm = {.epsilon = d.epsilon};
  GraphBuilder b;
  ValueId x = EmbeddingLayer(b, d);
  for (int64_t i = 0; i < d.layers; ++i) {
    const std::string tag = std::to_string(i);
    const std::string prefix = LayerPrefix(i);
    b.BeginLayer(LayerKind::kDecoder, "layer " + tag);
    ValueId y = Norm(b, x, norm, prefix + "pre_attn_norm", "attention_norm." + tag);
    y = SelfAttention(b, y,
                      {.heads = d.heads,
                       .kv_heads = d.kv_heads,
                       .head_dim = d.head_dim,
                       .rope = &rope,
                       .scale = 1.0F / std::sqrt(static_cast<float>(d.head_dim)),
                       .soft_cap = 30.0F},
                      prefix + "attn.", tag);
    y = Norm(b, y, norm, prefix + "post_attn_norm", "post_attention_norm." + tag);
    x = b.Add(x, y, "middle." + tag);
    y = Norm(b, x, norm, prefix + "pre_moe_norm", "mlp_norm." + tag);
    const CountedExperts experts = {
        .experts = moe.experts, .chosen = moe.chosen, .inner = moe.intermediate};
    y = CountedMoe(b, y, y, experts, prefix + "moe_block.gate", prefix + "moe_block.experts.", tag);
    y = Norm(b, y, norm, prefix + "post_moe_norm", "post_mlp_norm." + tag);
    x = b.Add(x, y, "hidden." + tag);
  }
  PENSTOCK_TRY_ASSIGN(Graph graph, HeadLayer(std::move(b), x, d, norm));
  return Model{MakeModelConfig("grok", d, rope.context, {}), std::move(graph)};
}

}  // namespace penstock::model
