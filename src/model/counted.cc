#include "model/counted.h"

#include <fmt/format.h>

namespace penstock::model {

ValueId CountedLayerNorm(GraphBuilder& b, ValueId x, const std::string& tensor, bool bias,
                         std::string name) {
  CountedOp op;
  op.kind = "layer norm";
  op.weights.push_back(b.Vector(tensor + ".weight", b.width(x)));
  if (bias) {
    op.weights.push_back(b.Vector(tensor + ".bias", b.width(x)));
  }
  op.saved_bytes_per_row = 2 * static_cast<double>(b.width(x));
  return b.Counted({x}, op, std::nullopt, {{std::move(name), b.width(x)}})[0];
}

ValueId CountedDropout(GraphBuilder& b, ValueId x, std::string name) {
  CountedOp op;
  op.kind = "dropout";
  op.saved_bytes_per_row = static_cast<double>(b.width(x));
  return b.Counted({x}, op, std::nullopt, {{std::move(name), b.width(x)}})[0];
}

ValueId CountedMoe(GraphBuilder& b, ValueId x, ValueId z, const CountedExperts& piece,
                   const std::string& router, const std::string& prefix, const std::string& tag) {
  CountedOp op;
  op.kind = "experts";
  op.experts = piece.experts;
  op.chosen = piece.chosen;
  const int64_t width = b.width(z);
  op.weights.push_back(
      b.Tensor(router + ".weight", {piece.experts, b.width(x)}, TensorRole::kMatrix));
  if (piece.router_bias) {
    op.weights.push_back(b.Vector(router + ".bias", piece.experts));
  }
  op.weights.push_back(b.Tensor(prefix + "gate_up", {piece.experts * 2 * piece.inner, width},
                                TensorRole::kMatrix, true));
  op.weights.push_back(
      b.Tensor(prefix + "down", {piece.experts * width, piece.inner}, TensorRole::kMatrix, true));
  if (piece.bias > 0) {
    op.weights.push_back(
        b.Tensor(prefix + "bias", {piece.experts * piece.bias}, TensorRole::kVector, true));
  }
  std::vector<ValueId> inputs = {z};
  if (x != z) {
    inputs.push_back(x);
  }
  return b.Counted(inputs, op, std::nullopt, {{"experts." + tag, width}})[0];
}

Result<LatentAttention> ReadLatentAttention(const JsonReader& config, int64_t heads) {
  LatentAttention piece;
  piece.heads = heads;
  PENSTOCK_TRY_ASSIGN(piece.query_rank, config.IntOr("q_lora_rank", 0, 0, 1 << 16));
  PENSTOCK_TRY_ASSIGN(piece.latent, config.Int("kv_lora_rank", 1, 1 << 16));
  PENSTOCK_TRY_ASSIGN(piece.nope, config.Int("qk_nope_head_dim", 1, 1 << 12));
  PENSTOCK_TRY_ASSIGN(piece.rope, config.Int("qk_rope_head_dim", 1, 1 << 12));
  PENSTOCK_TRY_ASSIGN(piece.value, config.Int("v_head_dim", 1, 1 << 12));
  PENSTOCK_TRY_ASSIGN(piece.gate, config.BoolOr("mla_use_output_gate", false));
  return piece;
}

ValueId CountedLatentAttention(GraphBuilder& b, ValueId x, const LatentAttention& piece,
                               const std::string& prefix, const std::string& tag) {
  const auto linear = [&](ValueId in, const std::string& name, int64_t rows, bool replicated) {
    LinearOp op;
    op.weights.push_back(b.Tensor(prefix + name + ".weight", {rows, b.width(in)},
                                  TensorRole::kMatrix, false, replicated));
    return b.Linear(in, op, {name + "." + tag})[0];
  };
  const auto norm = [&](ValueId in, const std::string& name) {
    RmsNormOp op;
    op.weight = b.Vector(prefix + name + ".weight", b.width(in));
    op.epsilon = piece.epsilon;
    return b.RmsNorm(in, op, name + "." + tag);
  };
  const int64_t q_width = piece.heads * (piece.nope + piece.rope);
  ValueId q;
  if (piece.query_rank > 0) {
    const ValueId qa = norm(linear(x, "q_a_proj", piece.query_rank, true), "q_a_layernorm");
    q = linear(qa, "q_b_proj", q_width, false);
  } else {
    q = linear(x, "q_proj", q_width, false);
  }
  const ValueId both = linear(x, "kv_a_proj_with_mqa", piece.latent + piece.rope, true);
  const std::vector<ValueId> parts =
      b.Split(both, {.widths = {piece.latent, piece.rope}}, {"latent." + tag, "k_rope." + tag});
  const ValueId latent = norm(parts[0], "kv_a_layernorm");
  CountedOp core;
  core.kind = "latent attention";
  core.weights.push_back(b.Matrix(prefix + "kv_b_proj.weight",
                                  piece.heads * (piece.nope + piece.value), piece.latent));
  core.heads = piece.heads;
  core.score_dim = piece.nope + piece.rope;
  core.value_dim = piece.value;
  core.decode_score_dim = piece.latent + piece.rope;
  core.decode_value_dim = piece.latent;
  // q, and k and v as expanded for the backward pass.
  core.saved_bytes_per_row =
      2.0 * static_cast<double>(q_width + piece.heads * (piece.nope + piece.rope + piece.value));
  LayerState state;
  state.kind = LayerState::Kind::kLatent;
  state.key_width = piece.latent + piece.rope;
  ValueId o = b.Counted({q, latent, parts[1]}, core, state,
                        {{"attention." + tag, piece.heads * piece.value}})[0];
  if (piece.gate) {
    const ValueId g = linear(x, "g_proj", piece.heads * piece.value, false);
    o = b.Gated(g, o, {.activation = Activation::kSilu}, "gated_attention." + tag);
  }
  return linear(o, "o_proj", b.width(x), false);
}

int64_t LatentAttentionParameters(const LatentAttention& p, int64_t width) {
  const int64_t q = p.heads * (p.nope + p.rope);
  int64_t n = p.query_rank > 0 ? width * p.query_rank + p.query_rank + p.query_rank * q : width * q;
  n += width * (p.latent + p.rope) + p.latent;
  n += p.heads * (p.nope + p.value) * p.latent;
  n += p.heads * p.value * width * (p.gate ? 2 : 1);
  return n;
}

}  // namespace penstock::model
