// gpt-oss: alternating sliding windows, attention sinks, biases, routed experts with fused gate and
// up. Counted, not run. Source: the published configuration; transformers 5.24,
// modeling_gpt_oss.py.

#include <cmath>
#include <string>

#include "model/counted.h"
#include "model/decoder.h"
#include "model/families/families.h"

namespace penstock::model {

Result<Model> BuildGptOss(const JsonReader& config, std::string_view) {
  PENSTOCK_TRY_ASSIGN(const DecoderConfig d, ReadDecoder(config, {.head_dim = 64}));
  PENSTOCK_TRY_ASSIGN(const Rope rope,
                      ReadRope(config, {.head_dim = d.head_dim, .max_positions = d.max_positions}));
  PENSTOCK_TRY_ASSIGN(const int64_t window, ReadWindow(config, 128));
  PENSTOCK_TRY_ASSIGN(const auto windows, ReadLayerWindows(config, d.layers, window,
                                                           [](int64_t i) { return i % 2 == 0; }));
  PENSTOCK_TRY_ASSIGN(const MoePiece moe, ReadMoe(config, d, "num_local_experts",
                                                  "num_experts_per_tok", "intermediate_size"));
  const NormStyle norm = {.epsilon = d.epsilon};
  GraphBuilder b;
  ValueId x = EmbeddingLayer(b, d);
  for (int64_t i = 0; i < d.layers; ++i) {
    const std::string tag = std::to_string(i);
    const std::string prefix = LayerPrefix(i);
    b.BeginLayer(LayerKind::kDecoder, "layer " + tag);
    ValueId y = Norm(b, x, norm, prefix + "input_layernorm", "attention_norm." + tag);
    CountedOp sinks;
    sinks.kind = "attention sinks";
    sinks.weights.push_back(b.Vector(prefix + "self_attn.sinks", d.heads));
    y = b.Counted({y}, sinks, std::nullopt, {{"sinks." + tag, d.hidden}})[0];
    y = SelfAttention(b, y,
                      {.heads = d.heads,
                       .kv_heads = d.kv_heads,
                       .head_dim = d.head_dim,
                       .qkv_bias = true,
                       .output_bias = true,
                       .rope = &rope,
                       .scale = 1.0F / std::sqrt(static_cast<float>(d.head_dim)),
                       .window = windows[static_cast<size_t>(i)]},
                      prefix + "self_attn.", tag);
    x = b.Add(x, y, "middle." + tag);
    y = Norm(b, x, norm, prefix + "post_attention_layernorm", "mlp_norm." + tag);
    const CountedExperts experts = {.experts = moe.experts,
                                    .chosen = moe.chosen,
                                    .inner = moe.intermediate,
                                    .bias = 2 * moe.intermediate + d.hidden,
                                    .router_bias = true};
    y = CountedMoe(b, y, y, experts, prefix + "mlp.router", prefix + "mlp.experts.", tag);
    x = b.Add(x, y, "hidden." + tag);
  }
  PENSTOCK_TRY_ASSIGN(Graph graph, HeadLayer(std::move(b), x, d, norm));
  return Model{MakeModelConfig("gpt_oss", d, rope.context, windows), std::move(graph)};
}

}  // namespace penstock::model
