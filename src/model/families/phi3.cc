// Phi-3 and 3.5: q, k, v in one stored matrix, gate and up in another; LongRoPE; in later sizes
// only a part of each head is rotated. Source: transformers 5.24, modeling_phi3.py.

#include <string>

#include "model/decoder_graph.h"
#include "model/families/families.h"

namespace penstock::model {

Result<Model> BuildPhi3(const JsonReader& config, std::string_view model_type) {
  PENSTOCK_TRY_ASSIGN(const DecoderConfig d,
                      ReadDecoder(config, {.epsilon = 1e-5, .context = 4096, .variations = true}));
  PENSTOCK_TRY_ASSIGN(const Rope rope, ReadRope(config, {.head_dim = d.head_dim,
                                                         .max_positions = d.max_positions,
                                                         .partial = true,
                                                         .yarn_is_longrope = true,
                                                         .default_original = 4096}));
  PENSTOCK_TRY_ASSIGN(const int64_t window, ReadWindow(config, 0));
  const NormStyle norm = {.epsilon = d.epsilon};
  const AttentionPiece attention = {.heads = d.heads,
                                    .kv_heads = d.kv_heads,
                                    .head_dim = d.head_dim,
                                    .fused = true,
                                    .rope = &rope,
                                    .scale = InverseRoot(static_cast<double>(d.head_dim)),
                                    .window = window};
  const MlpPiece mlp = {.intermediate = d.intermediate, .activation = d.activation, .fused = true};

  PENSTOCK_TRY_ASSIGN(Graph graph,
                      BuildDecoder(config, {.decoder = d,
                                            .norm = norm,
                                            .attention = PreNormAttention(norm, attention),
                                            .mlp = PreNormGatedMlp(norm, mlp)}));
  const std::vector<int64_t> windows(static_cast<size_t>(d.layers), window);
  return Model{MakeModelConfig(model_type, d, rope.context, windows), std::move(graph)};
}

}  // namespace penstock::model
