// PaLM: attention and feed-forward side by side behind one norm, one key-value head, tied head.
// Counted, not run. Source: Chowdhery et al. 2022 (arXiv 2204.02311), section 2.

#include <cmath>
#include <string>

#include "model/counted.h"
#include "model/decoder.h"
#include "model/families/families.h"

namespace penstock::model {

Result<Model> BuildPalm(const JsonReader& config, std::string_view) {
  PENSTOCK_TRY_ASSIGN(const DecoderConfig d, ReadDecoder(config, {.kv_heads = 1, .tied = true}));
  PENSTOCK_TRY_ASSIGN(const Rope rope,
                      ReadRope(config, {.head_dim = d.head_dim, .max_positions = d.max_positions}));
  GraphBuilder b;
  ValueId x = EmbeddingLayer(b, d);
  for (int64_t i = 0; i < d.layers; ++i) {
    const std::string tag = std::to_string(i);
    const std::string prefix = LayerPrefix(i);
    b.BeginLayer(LayerKind::kDecoder, "layer " + tag);
    const ValueId y = CountedLayerNorm(b, x, prefix + "norm", false, "norm." + tag);
    const ValueId a = SelfAttention(b, y,
                                    {.heads = d.heads,
                                     .kv_heads = d.kv_heads,
                                     .head_dim = d.head_dim,
                                     .rope = &rope,
                                     .scale = 1.0F / std::sqrt(static_cast<float>(d.head_dim))},
                                    prefix + "self_attn.", tag);
    const ValueId m = GatedMlp(b, y, {.intermediate = d.intermediate}, prefix + "mlp.", tag);
    x = b.Add(x, b.Add(a, m, "both." + tag), "hidden." + tag);
  }
  PENSTOCK_TRY_ASSIGN(Graph graph, HeadLayer(std::move(b), x, d, {.epsilon = d.epsilon}));
  return Model{MakeModelConfig("palm", d, rope.context, {}), std::move(graph)};
}

}  // namespace penstock::model
