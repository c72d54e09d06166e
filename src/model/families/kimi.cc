// Kimi Linear and Kimi K3: delta attention (KDA) in most layers, latent attention in the others,
// routed experts over a latent, attention residuals over blocks of layers. Counted, not run.
// Source: the published configuration and modeling code of Kimi Linear and Kimi K3.

#include <set>
#include <string>

#include "model/counted.h"
#include "model/decoder.h"
#include "model/families/families.h"

namespace penstock::model {
namespace {

struct Kimi {
  DecoderConfig d;
  LatentAttention latent;
  std::set<int64_t> kda_layers;  // from 1, as the file has them
  int64_t kda_heads = 0;
  int64_t kda_dim = 0;
  int64_t conv = 4;
  bool full_gate = false;
  bool bounded_decay = false;  // stored padded to the head size
  int64_t block = 0;           // decoder layers of a block of attention residuals; 0: plain
  int64_t experts = 0, chosen = 0, inner = 0, shared = 0, dense = 0, routed_width = 0;
  bool routed_norm = false;
};

Result<Kimi> ReadKimi(const JsonReader& config) {
  Kimi k;
  PENSTOCK_TRY_ASSIGN(k.d.hidden, config.Int("hidden_size", 1, 1 << 18));
  PENSTOCK_TRY_ASSIGN(k.d.layers, config.Int("num_hidden_layers", 1, 4096));
  PENSTOCK_TRY_ASSIGN(k.d.heads, config.Int("num_attention_heads", 1, 1 << 14));
  PENSTOCK_TRY_ASSIGN(k.d.vocabulary, config.Int("vocab_size", 1, 1 << 24));
  PENSTOCK_TRY_ASSIGN(k.d.intermediate, config.Int("intermediate_size", 1, 1 << 22));
  PENSTOCK_TRY_ASSIGN(const double epsilon, config.NumberOr("rms_norm_eps", 1e-5, 0, 1));
  k.d.epsilon = static_cast<float>(epsilon);
  PENSTOCK_TRY_ASSIGN(k.d.tied, config.BoolOr("tie_word_embeddings", false));
  PENSTOCK_TRY_ASSIGN(const int64_t context,
                      config.IntOr("model_max_length", 1 << 20, 1, int64_t{1} << 31));
  PENSTOCK_TRY_ASSIGN(k.d.max_positions,
                      config.IntOr("max_position_embeddings", context, 1, int64_t{1} << 31));
  PENSTOCK_TRY_ASSIGN(k.latent, ReadLatentAttention(config, k.d.heads));
  PENSTOCK_TRY_ASSIGN(k.block, config.IntOr("attn_res_block_size", 0, 0, 4096));
  PENSTOCK_TRY_ASSIGN(k.experts, config.Int("num_experts", 1, 1 << 14));
  PENSTOCK_TRY_ASSIGN(k.chosen, config.Int("num_experts_per_token", 1, k.experts));
  PENSTOCK_TRY_ASSIGN(k.inner, config.Int("moe_intermediate_size", 1, 1 << 22));
  PENSTOCK_TRY_ASSIGN(k.shared, config.IntOr("num_shared_experts", 0, 0, 64));
  PENSTOCK_TRY_ASSIGN(k.dense, config.IntOr("first_k_dense_replace", 0, 0, k.d.layers));
  PENSTOCK_TRY_ASSIGN(k.routed_width,
                      config.IntOr("routed_expert_hidden_size", k.d.hidden, 1, 1 << 18));
  PENSTOCK_TRY_ASSIGN(k.routed_norm, config.BoolOr("latent_moe_use_norm", false));
  const Json* linear = config.Find("linear_attn_config");
  if (linear == nullptr || !linear->is_object()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[model.config] {}: linear_attn_config: missing, wanted an object with "
                     "kda_layers, num_heads, head_dim",
                     config.where());
  }
  const JsonReader kda(*linear, config.where() + ": linear_attn_config");
  PENSTOCK_TRY_ASSIGN(const auto layers, kda.IntsOr("kda_layers", 1, k.d.layers));
  k.kda_layers.insert(layers.begin(), layers.end());
  PENSTOCK_TRY_ASSIGN(k.kda_heads, kda.Int("num_heads", 1, 1 << 14));
  PENSTOCK_TRY_ASSIGN(k.kda_dim, kda.Int("head_dim", 1, 1 << 12));
  PENSTOCK_TRY_ASSIGN(k.conv, kda.IntOr("short_conv_kernel_size", 4, 1, 64));
  PENSTOCK_TRY_ASSIGN(k.full_gate, kda.BoolOr("use_full_rank_gate", false));
  k.bounded_decay = kda.Has("gate_lower_bound");
  return k;
}

// The recurrence of one token and head: decay, S^T k, the update, S^T q, each over the state.
ValueId DeltaAttention(GraphBuilder& b, ValueId x, const Kimi& k, const std::string& prefix,
                       const std::string& tag) {
  const int64_t width = k.kda_heads * k.kda_dim;
  const auto linear = [&](ValueId in, const std::string& name, int64_t rows, bool replicated) {
    LinearOp op;
    op.weights.push_back(b.Tensor(prefix + name + ".weight", {rows, b.width(in)},
                                  TensorRole::kMatrix, false, replicated));
    return b.Linear(in, op, {name + "." + tag})[0];
  };
  const ValueId q = linear(x, "q_proj", width, false);
  const ValueId key = linear(x, "k_proj", width, false);
  const ValueId v = linear(x, "v_proj", width, false);
  const ValueId f = linear(linear(x, "f_a_proj", k.kda_dim, true), "f_b_proj", width, false);
  const ValueId beta = linear(x, "b_proj", k.kda_heads, false);
  const ValueId gate =
      k.full_gate ? linear(x, "g_proj", width, false)
                  : linear(linear(x, "g_a_proj", k.kda_dim, true), "g_b_proj", width, false);
  CountedOp core;
  core.kind = "delta attention";
  for (const char* name : {"q_conv1d", "k_conv1d", "v_conv1d"}) {
    core.weights.push_back(b.Vector(prefix + name + ".weight", width * k.conv));
  }
  core.weights.push_back(b.Vector(prefix + "A_log", k.bounded_decay ? k.kda_dim : k.kda_heads));
  core.weights.push_back(b.Vector(prefix + "dt_bias", width));
  core.weights.push_back(b.Vector(prefix + "o_norm.weight", k.kda_dim));
  core.heads = k.kda_heads;
  const auto state_elements = static_cast<double>(k.kda_heads * k.kda_dim * k.kda_dim);
  core.extra_flops_per_row = 7 * state_elements + 2.0 * 3 * static_cast<double>(width * k.conv);
  core.saved_bytes_per_row = 2.0 * 6 * static_cast<double>(width);
  LayerState state;
  state.kind = LayerState::Kind::kRecurrent;
  state.heads = k.kda_heads;
  state.sequence_bytes = k.kda_heads * k.kda_dim * k.kda_dim * 4 + (k.conv - 1) * 3 * width * 2;
  const ValueId o =
      b.Counted({q, key, v, f, beta, gate}, core, state, {{"delta." + tag, width}})[0];
  return linear(o, "o_proj", k.d.hidden, false);
}

// The softmax-weighted sum of the bank and the running sum.
ValueId DepthRead(GraphBuilder& b, const Kimi& k, const std::vector<ValueId>& bank, ValueId p,
                  const std::string& tensor, std::string name) {
  CountedOp op;
  op.kind = "depth read";
  op.weights = {b.Vector(tensor + "_norm.weight", k.d.hidden),
                b.Vector(tensor + "_proj.weight", k.d.hidden)};
  const auto width = static_cast<double>(k.d.hidden);
  op.extra_flops_per_row = 6 * width * static_cast<double>(bank.size() + 1);
  std::vector<ValueId> inputs = bank;
  inputs.push_back(p);
  return b.Counted(inputs, op, std::nullopt, {{std::move(name), k.d.hidden}})[0];
}

ValueId FeedForward(GraphBuilder& b, ValueId x, const Kimi& k, int64_t layer,
                    const std::string& prefix, const std::string& tag) {
  if (layer < k.dense) {
    return GatedMlp(b, x, {.intermediate = k.d.intermediate}, prefix + "mlp.", tag);
  }
  const std::string moe = prefix + "block_sparse_moe.";
  const auto linear = [&](ValueId in, const std::string& name, int64_t rows) {
    LinearOp op;
    op.weights.push_back(
        b.Tensor(moe + name + ".weight", {rows, b.width(in)}, TensorRole::kMatrix, false, true));
    return b.Linear(in, op, {name + "." + tag})[0];
  };
  const bool latent = k.routed_width != k.d.hidden;
  const ValueId z = latent ? linear(x, "routed_expert_down_proj", k.routed_width) : x;
  ValueId y = CountedMoe(
      b, x, z, {.experts = k.experts, .chosen = k.chosen, .inner = k.inner, .router_bias = true},
      moe + "gate", moe + "experts.", tag);
  if (k.routed_norm) {
    y = Norm(b, y, {.epsilon = k.d.epsilon}, moe + "routed_expert_norm", "routed_norm." + tag);
  }
  if (latent) {
    y = linear(y, "routed_expert_up_proj", k.d.hidden);
  }
  if (k.shared > 0) {
    const ValueId s = GatedMlp(b, x, {.intermediate = k.shared * k.inner}, moe + "shared_experts.",
                               tag + ".shared");
    y = b.Add(y, s, "mlp." + tag);
  }
  return y;
}

}  // namespace

Result<Model> BuildKimi(const JsonReader& config, std::string_view) {
  PENSTOCK_TRY_ASSIGN(const Kimi k, ReadKimi(config));
  const NormStyle norm = {.epsilon = k.d.epsilon};
  GraphBuilder b;
  ValueId p = EmbeddingLayer(b, k.d);
  std::vector<ValueId> bank;
  for (int64_t i = 0; i < k.d.layers; ++i) {
    const std::string tag = std::to_string(i);
    const std::string prefix = LayerPrefix(i);
    b.BeginLayer(LayerKind::kDecoder, "layer " + tag);
    ValueId h = p;
    if (!bank.empty()) {
      h = DepthRead(b, k, bank, p, prefix + "self_attention_res", "attention_read." + tag);
    } else if (k.block > 0) {
      // Stored in layer 0 and read by nothing.
      CountedOp unread;
      unread.kind = "depth read";
      unread.weights = {b.Vector(prefix + "self_attention_res_norm.weight", k.d.hidden),
                        b.Vector(prefix + "self_attention_res_proj.weight", k.d.hidden)};
      h = b.Counted({p}, unread, std::nullopt, {{"attention_read." + tag, k.d.hidden}})[0];
    }
    const bool opens = k.block > 0 && i % k.block == 0;
    if (opens) {
      bank.push_back(p);
    }
    ValueId y = Norm(b, h, norm, prefix + "input_layernorm", "attention_norm." + tag);
    y = k.kda_layers.contains(i + 1)
            ? DeltaAttention(b, y, k, prefix + "self_attn.", tag)
            : CountedLatentAttention(b, y, k.latent, prefix + "self_attn.", tag);
    p = opens ? y : b.Add(p, y, "middle." + tag);
    h = k.block > 0 ? DepthRead(b, k, bank, p, prefix + "mlp_res", "mlp_read." + tag) : p;
    y = Norm(b, h, norm, prefix + "post_attention_layernorm", "mlp_norm." + tag);
    p = b.Add(p, FeedForward(b, y, k, i, prefix, tag), "hidden." + tag);
  }
  if (bank.empty()) {
    PENSTOCK_TRY_ASSIGN(Graph graph, HeadLayer(std::move(b), p, k.d, norm));
    return Model{MakeModelConfig("kimi_linear", k.d, k.d.max_positions, {}), std::move(graph)};
  }
  b.BeginLayer(LayerKind::kHead, "head");
  const ValueId read = DepthRead(b, k, bank, p, "model.output_attn_res", "output_read");
  const ValueId rows = b.SelectRows(read, "rows");
  const ValueId normed = Norm(b, rows, norm, "model.norm", "norm");
  const TensorId head = b.Matrix("lm_head.weight", k.d.vocabulary, k.d.hidden);
  const ValueId logits = b.Linear(normed, {.weights = {head}, .biases = {}}, {"logits"})[0];
  PENSTOCK_TRY_ASSIGN(Graph graph, std::move(b).Build(logits));
  return Model{MakeModelConfig("kimi_k3", k.d, k.d.max_positions, {}), std::move(graph)};
}

}  // namespace penstock::model
