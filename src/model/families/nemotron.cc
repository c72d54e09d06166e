// Nemotron-4: layer norms with bias, squared ReLU without a gate, rotation of half of each head.
// Counted, not run. Source: transformers 5.24, modeling_nemotron.py.

#include <cmath>
#include <string>

#include "model/counted.h"
#include "model/decoder.h"
#include "model/families/families.h"

namespace penstock::model {

Result<Model> BuildNemotron(const JsonReader& config, std::string_view) {
  PENSTOCK_TRY_ASSIGN(
      const DecoderConfig d,
      ReadDecoder(config, {.context = 4096, .activation = Activation::kReluSquared}));
  GraphBuilder b;
  ValueId x = EmbeddingLayer(b, d);
  const auto linear = [&](ValueId in, const std::string& tensor, int64_t rows, std::string name) {
    LinearOp op;
    op.weights.push_back(b.Matrix(tensor + ".weight", rows, b.width(in)));
    return b.Linear(in, op, {std::move(name)})[0];
  };
  for (int64_t i = 0; i < d.layers; ++i) {
    const std::string tag = std::to_string(i);
    const std::string prefix = LayerPrefix(i);
    b.BeginLayer(LayerKind::kDecoder, "layer " + tag);
    ValueId y = CountedLayerNorm(b, x, prefix + "input_layernorm", true, "attention_norm." + tag);
    y = SelfAttention(b, y,
                      {.heads = d.heads,
                       .kv_heads = d.kv_heads,
                       .head_dim = d.head_dim,
                       .scale = 1.0F / std::sqrt(static_cast<float>(d.head_dim))},
                      prefix + "self_attn.", tag);
    x = b.Add(x, y, "middle." + tag);
    y = CountedLayerNorm(b, x, prefix + "post_attention_layernorm", true, "mlp_norm." + tag);
    y = linear(y, prefix + "mlp.up_proj", d.intermediate, "up." + tag);
    y = b.Act(y, {.activation = d.activation}, "relu2." + tag);
    y = linear(y, prefix + "mlp.down_proj", d.hidden, "down." + tag);
    x = b.Add(x, y, "hidden." + tag);
  }
  b.BeginLayer(LayerKind::kHead, "head");
  const ValueId rows = b.SelectRows(x, "rows");
  const ValueId normed = CountedLayerNorm(b, rows, "model.norm", true, "norm");
  const ValueId logits = linear(normed, "lm_head", d.vocabulary, "logits");
  PENSTOCK_TRY_ASSIGN(Graph graph, std::move(b).Build(logits));
  return Model{MakeModelConfig("nemotron", d, d.max_positions, {}), std::move(graph)};
}

}  // namespace penstock::model
