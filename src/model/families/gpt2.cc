// GPT-2's shape, as GPT-3 and Megatron's dense models have it: learned positions, layer norms with
// bias, GELU, dropout in training, tied head. Counted, not run.
// Source: transformers 5.24, modeling_gpt2.py; dropout as Korthikanti et al. 2022 count it.

#include <cmath>
#include <string>

#include "model/counted.h"
#include "model/decoder.h"
#include "model/families/families.h"

namespace penstock::model {
namespace {

ValueId Biased(GraphBuilder& b, ValueId x, const std::string& tensor, int64_t rows,
               std::string name) {
  LinearOp op;
  op.weights.push_back(b.Matrix(tensor + ".weight", rows, b.width(x)));
  op.biases.push_back(b.Vector(tensor + ".bias", rows));
  return b.Linear(x, op, {std::move(name)})[0];
}

}  // namespace

Result<Model> BuildGpt2(const JsonReader& config, std::string_view) {
  DecoderConfig d;
  PENSTOCK_TRY_ASSIGN(d.hidden, config.Int("n_embd", 1, 1 << 18));
  PENSTOCK_TRY_ASSIGN(d.layers, config.Int("n_layer", 1, 4096));
  PENSTOCK_TRY_ASSIGN(d.heads, config.Int("n_head", 1, 1 << 14));
  PENSTOCK_TRY_ASSIGN(d.vocabulary, config.Int("vocab_size", 1, 1 << 24));
  PENSTOCK_TRY_ASSIGN(d.max_positions, config.Int("n_positions", 1, 1 << 24));
  PENSTOCK_TRY_ASSIGN(d.intermediate, config.IntOr("n_inner", 4 * d.hidden, 1, 1 << 22));
  PENSTOCK_TRY_ASSIGN(d.tied, config.BoolOr("tie_word_embeddings", true));
  d.kv_heads = d.heads;
  if (d.hidden % d.heads != 0) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[model.config] {}: n_head: got {}, wanted a divisor of n_embd ({})",
                     config.where(), d.heads, d.hidden);
  }
  d.head_dim = d.hidden / d.heads;
  GraphBuilder b;
  ValueId x = EmbeddingLayer(b, d);
  CountedOp positions;
  positions.kind = "positions";
  positions.weights.push_back(
      b.Tensor("transformer.wpe.weight", {d.max_positions, d.hidden}, TensorRole::kEmbedding));
  x = b.Counted({x}, positions, std::nullopt, {{"positions", d.hidden}})[0];
  x = CountedDropout(b, x, "embedding_dropout");
  for (int64_t i = 0; i < d.layers; ++i) {
    const std::string tag = std::to_string(i);
    const std::string prefix = "transformer.h." + tag + ".";
    b.BeginLayer(LayerKind::kDecoder, "layer " + tag);
    ValueId y = CountedLayerNorm(b, x, prefix + "ln_1", true, "attention_norm." + tag);
    const ValueId all = Biased(b, y, prefix + "attn.c_attn", 3 * d.hidden, "qkv." + tag);
    const auto qkv = b.Split(all, {.widths = {d.hidden, d.hidden, d.hidden}},
                             {"q." + tag, "k." + tag, "v." + tag});
    y = b.Attention(qkv[0], qkv[1], qkv[2],
                    {.heads = d.heads,
                     .kv_heads = d.heads,
                     .head_dim = d.head_dim,
                     .value_dim = d.head_dim,
                     .scale = 1.0F / std::sqrt(static_cast<float>(d.head_dim))},
                    "attention." + tag);
    y = Biased(b, y, prefix + "attn.c_proj", d.hidden, "o." + tag);
    x = b.Add(x, CountedDropout(b, y, "attention_dropout." + tag), "middle." + tag);
    y = CountedLayerNorm(b, x, prefix + "ln_2", true, "mlp_norm." + tag);
    y = Biased(b, y, prefix + "mlp.c_fc", d.intermediate, "up." + tag);
    y = b.Act(y, {.activation = Activation::kGeluTanh}, "gelu." + tag);
    y = Biased(b, y, prefix + "mlp.c_proj", d.hidden, "down." + tag);
    x = b.Add(x, CountedDropout(b, y, "mlp_dropout." + tag), "hidden." + tag);
  }
  b.BeginLayer(LayerKind::kHead, "head");
  const ValueId rows = b.SelectRows(x, "rows");
  const ValueId normed = CountedLayerNorm(b, rows, "transformer.ln_f", true, "norm");
  const TensorId head = d.tied ? b.Tensor("model.embed_tokens.weight", {d.vocabulary, d.hidden},
                                          TensorRole::kEmbedding)
                               : b.Matrix("lm_head.weight", d.vocabulary, d.hidden);
  const ValueId logits = b.Linear(normed, {.weights = {head}, .biases = {}}, {"logits"})[0];
  PENSTOCK_TRY_ASSIGN(Graph graph, std::move(b).Build(logits));
  return Model{MakeModelConfig("gpt2", d, d.max_positions, {}), std::move(graph)};
}

}  // namespace penstock::model
