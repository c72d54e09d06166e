// Llama 1 to 3 and what is built alike: SmolLM2, and Mistral with its sliding window.
// Source: transformers 5.24, modeling_llama.py and modeling_mistral.py.

#include <string>

#include "model/decoder_graph.h"
#include "model/families/families.h"

namespace penstock::model {

Result<Model> BuildLlama(const JsonReader& config, std::string_view model_type) {
  const bool mistral = model_type == "mistral";
  PENSTOCK_TRY_ASSIGN(const DecoderConfig d,
                      ReadDecoder(config, {.kv_heads = mistral ? 8 : 0,
                                           .context = mistral ? 131072 : 2048,
                                           .variations = true}));
  PENSTOCK_TRY_ASSIGN(const Rope rope,
                      ReadRope(config, {.head_dim = d.head_dim, .max_positions = d.max_positions}));
  int64_t window = 0;
  bool attention_bias = false;
  bool mlp_bias = false;
  if (mistral) {
    PENSTOCK_TRY_ASSIGN(window, ReadWindow(config, 4096));
  } else {
    PENSTOCK_TRY_ASSIGN(attention_bias, config.BoolOr("attention_bias", false));
    PENSTOCK_TRY_ASSIGN(mlp_bias, config.BoolOr("mlp_bias", false));
  }
  const NormStyle norm = {.epsilon = d.epsilon};
  const AttentionPiece attention = {.heads = d.heads,
                                    .kv_heads = d.kv_heads,
                                    .head_dim = d.head_dim,
                                    .qkv_bias = attention_bias,
                                    .output_bias = attention_bias,
                                    .rope = &rope,
                                    .scale = InverseRoot(static_cast<double>(d.head_dim)),
                                    .window = window};
  const MlpPiece mlp = {
      .intermediate = d.intermediate, .activation = d.activation, .bias = mlp_bias};

  PENSTOCK_TRY_ASSIGN(Graph graph,
                      BuildDecoder(config, {.decoder = d,
                                            .norm = norm,
                                            .attention = PreNormAttention(norm, attention),
                                            .mlp = PreNormGatedMlp(norm, mlp)}));
  const std::vector<int64_t> windows(static_cast<size_t>(d.layers), window);
  return Model{MakeModelConfig("llama", d, rope.context, windows), std::move(graph)};
}

}  // namespace penstock::model
