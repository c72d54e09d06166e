#include "model/latent.h"

#include "model/decoder.h"

namespace penstock::model {
namespace {

// The default of the published classes, which the configuration does not reach.
constexpr float kInnerEpsilon = 1e-6F;

}  // namespace

Result<LatentPiece> ReadLatentPiece(const JsonReader& config, int64_t heads) {
  LatentPiece piece;
  piece.heads = heads;
  PENSTOCK_TRY_ASSIGN(piece.query_rank, config.IntOr("q_lora_rank", 0, 0, 1 << 16));
  PENSTOCK_TRY_ASSIGN(piece.latent, config.Int("kv_lora_rank", 1, 1 << 16));
  PENSTOCK_TRY_ASSIGN(piece.nope, config.Int("qk_nope_head_dim", 1, 1 << 12));
  PENSTOCK_TRY_ASSIGN(piece.rope, config.Int("qk_rope_head_dim", 1, 1 << 12));
  PENSTOCK_TRY_ASSIGN(piece.value, config.Int("v_head_dim", 1, 1 << 12));
  piece.scale = InverseRoot(static_cast<double>(piece.nope + piece.rope));
  return piece;
}

ValueId LatentSelfAttention(GraphBuilder& b, ValueId x, const LatentPiece& piece,
                            const std::string& prefix, const std::string& tag) {
  const auto linear = [&](ValueId in, const std::string& name, int64_t rows, bool replicated) {
    LinearOp op;
    op.weights.push_back(b.Tensor(prefix + name + ".weight", {rows, b.width(in)},
                                  TensorRole::kMatrix, false, replicated));
    return b.Linear(in, op, {name + "." + tag})[0];
  };
  const auto norm = [&](ValueId in, const std::string& name) {
    return Norm(b, in, {.epsilon = kInnerEpsilon}, prefix + name, name + "." + tag);
  };
  const int64_t head_dim = piece.nope + piece.rope;
  const int64_t q_width = piece.heads * head_dim;
  ValueId q;
  if (piece.query_rank > 0) {
    const ValueId qa = norm(linear(x, "q_a_proj", piece.query_rank, true), "q_a_layernorm");
    q = linear(qa, "q_b_proj", q_width, false);
  } else {
    q = linear(x, "q_proj", q_width, false);
  }
  const ValueId both = linear(x, "kv_a_proj_with_mqa", piece.latent + piece.rope, true);
  const std::vector<ValueId> parts =
      b.Split(both, {.widths = {piece.latent, piece.rope}}, {"latent." + tag, "k_shared." + tag});
  const ValueId latent = norm(parts[0], "kv_a_layernorm");
  ValueId key = parts[1];
  if (piece.rotation != nullptr) {
    RopeOp rope;
    rope.heads = piece.heads;
    rope.head_dim = head_dim;
    rope.rotary_dim = piece.rotation->rotary_dim;
    rope.interleaved = piece.interleaved;
    rope.table = piece.rotation->table;
    rope.offset = piece.nope;
    q = b.Rope(q, rope, "q_rope." + tag);
    rope.heads = 1;
    rope.head_dim = piece.rope;
    rope.offset = 0;
    key = b.Rope(key, rope, "k_rope." + tag);
  }
  LatentAttentionOp core;
  core.expand =
      b.Matrix(prefix + "kv_b_proj.weight", piece.heads * (piece.nope + piece.value), piece.latent);
  core.heads = piece.heads;
  core.nope = piece.nope;
  core.rope = piece.rope;
  core.value_dim = piece.value;
  core.latent = piece.latent;
  core.scale = piece.scale;
  ValueId o = b.LatentAttention(q, latent, key, core, "attention." + tag);
  if (piece.gate) {
    const ValueId g = linear(x, "g_proj", piece.heads * piece.value, false);
    o = b.Gated(g, o, {.activation = Activation::kSigmoid}, "gated_attention." + tag);
  }
  return linear(o, "o_proj", b.width(x), false);
}

int64_t LatentParameters(const LatentPiece& p, int64_t width) {
  const int64_t q = p.heads * (p.nope + p.rope);
  int64_t n = p.query_rank > 0 ? width * p.query_rank + p.query_rank + p.query_rank * q : width * q;
  n += width * (p.latent + p.rope) + p.latent;
  n += p.heads * (p.nope + p.value) * p.latent;
  n += p.heads * p.value * width * (p.gate ? 2 : 1);
  return n;
}

}  // namespace penstock::model
