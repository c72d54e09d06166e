// Qwen3-MoE: Qwen3's attention; a layer has experts, or is dense as the config says.
// Source: transformers 5.24, modeling_qwen3_moe.py.

#include <algorithm>
#include <string>

#include "model/decoder_graph.h"
#include "model/families/families.h"

namespace penstock::model {
namespace {

// Flags per layer: true where the MLP is dense.
Result<std::vector<bool>> DenseLayers(const JsonReader& config, int64_t layers) {
  PENSTOCK_TRY_ASSIGN(const int64_t step,
                      config.IntOr("decoder_sparse_step", 1, 1, int64_t{1} << 31));
  PENSTOCK_TRY_ASSIGN(const std::vector<int64_t> listed,
                      config.IntsOr("mlp_only_layers", 0, layers - 1));
  std::vector<bool> dense;
  for (int64_t i = 0; i < layers; ++i) {
    const bool is_listed = std::find(listed.begin(), listed.end(), i) != listed.end();
    dense.push_back(is_listed || (i + 1) % step != 0);
  }
  return dense;
}

}  // namespace

Result<Model> BuildQwen3Moe(const JsonReader& config, std::string_view model_type) {
  PENSTOCK_TRY_ASSIGN(
      const DecoderConfig d,
      ReadDecoder(config, {.kv_heads = 4, .context = 32768, .dense = false, .variations = true}));
  PENSTOCK_TRY_ASSIGN(const Rope rope,
                      ReadRope(config, {.head_dim = d.head_dim, .max_positions = d.max_positions}));
  PENSTOCK_TRY_ASSIGN(const bool windowed, config.BoolOr("use_sliding_window", false));
  int64_t window = 0;
  if (windowed) {
    PENSTOCK_TRY_ASSIGN(window, ReadWindow(config, 4096));
  }
  PENSTOCK_TRY_ASSIGN(const bool attention_bias, config.BoolOr("attention_bias", false));
  PENSTOCK_TRY_ASSIGN(const std::vector<bool> dense, DenseLayers(config, d.layers));
  PENSTOCK_TRY_ASSIGN(MoePiece moe, ReadMoe(config, d, "num_experts", "num_experts_per_tok",
                                            "moe_intermediate_size"));
  PENSTOCK_TRY_ASSIGN(moe.normalize, config.BoolOr("norm_topk_prob", false));
  if (d.intermediate == 0 && std::find(dense.begin(), dense.end(), true) != dense.end()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[model.config] {}: intermediate_size: absent, but mlp_only_layers or "
                     "decoder_sparse_step make some layers dense",
                     config.where());
  }
  const NormStyle norm = {.epsilon = d.epsilon};
  const AttentionPiece attention = {.heads = d.heads,
                                    .kv_heads = d.kv_heads,
                                    .head_dim = d.head_dim,
                                    .qkv_bias = attention_bias,
                                    .output_bias = attention_bias,
                                    .qk_norm = norm,
                                    .rope = &rope,
                                    .scale = InverseRoot(static_cast<double>(d.head_dim)),
                                    .window = window};
  const MlpPiece mlp = {.intermediate = d.intermediate, .activation = d.activation};

  const auto feed_forward = [&](GraphBuilder& b, ValueId x, const LayerPlace& place) {
    return dense[static_cast<size_t>(place.owner)]
               ? GatedMlp(b, x, mlp, place.prefix + "mlp.", place.tag)
               : Experts(b, x, moe, place.prefix + "mlp.", place.tag);
  };
  PENSTOCK_TRY_ASSIGN(Graph graph,
                      BuildDecoder(config, {.decoder = d,
                                            .norm = norm,
                                            .attention = PreNormAttention(norm, attention),
                                            .mlp = PreNormMlp(norm, feed_forward)}));
  const std::vector<int64_t> windows(static_cast<size_t>(d.layers), window);
  return Model{MakeModelConfig(model_type, d, rope.context, windows), std::move(graph)};
}

}  // namespace penstock::model
