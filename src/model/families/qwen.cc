// Qwen2 and 2.5 (biases on q, k, v) and Qwen3 (norms on q and k, head size of its own).
// Source: transformers 5.24, modeling_qwen2.py and modeling_qwen3.py.

#include <string>

#include "model/decoder_graph.h"
#include "model/families/families.h"

namespace penstock::model {
namespace {

// `sliding_window` counts only where `use_sliding_window` says so, and then only in the layers from
// `max_window_layers` on.
Result<std::vector<int64_t>> QwenWindows(const JsonReader& config, int64_t layers) {
  PENSTOCK_TRY_ASSIGN(const bool used, config.BoolOr("use_sliding_window", false));
  int64_t window = 0;
  if (used) {
    PENSTOCK_TRY_ASSIGN(window, ReadWindow(config, 4096));
  }
  PENSTOCK_TRY_ASSIGN(const int64_t first,
                      config.IntOr("max_window_layers", 28, 0, int64_t{1} << 31));
  return ReadLayerWindows(config, layers, window, [&](int64_t i) { return i >= first; });
}

}  // namespace

Result<Model> BuildQwen(const JsonReader& config, std::string_view model_type) {
  const bool qwen3 = model_type == "qwen3";
  PENSTOCK_TRY_ASSIGN(const DecoderConfig d, ReadDecoder(config, {.kv_heads = 32,
                                                                  .head_dim = qwen3 ? 128 : 0,
                                                                  .context = 32768,
                                                                  .variations = true}));
  PENSTOCK_TRY_ASSIGN(const Rope rope,
                      ReadRope(config, {.head_dim = d.head_dim, .max_positions = d.max_positions}));
  PENSTOCK_TRY_ASSIGN(const std::vector<int64_t> windows, QwenWindows(config, d.layers));
  bool attention_bias = false;
  if (qwen3) {
    PENSTOCK_TRY_ASSIGN(attention_bias, config.BoolOr("attention_bias", false));
  }
  const NormStyle norm = {.epsilon = d.epsilon};
  AttentionPiece attention = {.heads = d.heads,
                              .kv_heads = d.kv_heads,
                              .head_dim = d.head_dim,
                              .qkv_bias = qwen3 ? attention_bias : true,
                              .output_bias = attention_bias,
                              .rope = &rope,
                              .scale = InverseRoot(static_cast<double>(d.head_dim))};
  if (qwen3) {
    attention.qk_norm = norm;
  }
  const MlpPiece mlp = {.intermediate = d.intermediate, .activation = d.activation};

  const auto attend = [&](GraphBuilder& b, ValueId x, const LayerPlace& place) {
    AttentionPiece piece = attention;
    piece.window = windows[static_cast<size_t>(place.depth)];
    return PreNormAttention(norm, piece)(b, x, place);
  };
  PENSTOCK_TRY_ASSIGN(Graph graph, BuildDecoder(config, {.decoder = d,
                                                         .norm = norm,
                                                         .attention = attend,
                                                         .mlp = PreNormGatedMlp(norm, mlp)}));
  return Model{MakeModelConfig(model_type, d, rope.context, windows), std::move(graph)};
}

}  // namespace penstock::model
