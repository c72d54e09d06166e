// Mixtral: Mistral's attention, and experts w1 (gate), w3 (up), w2 (down) whose chosen weights sum
// to one. Source: transformers 5.24, modeling_mixtral.py.

#include <string>

#include "model/decoder_graph.h"
#include "model/families/families.h"

namespace penstock::model {

Result<Model> BuildMixtral(const JsonReader& config, std::string_view model_type) {
  PENSTOCK_TRY_ASSIGN(
      const DecoderConfig d,
      ReadDecoder(config, {.kv_heads = 8, .epsilon = 1e-5, .context = 131072, .variations = true}));
  PENSTOCK_TRY_ASSIGN(const Rope rope, ReadRope(config, {.head_dim = d.head_dim,
                                                         .max_positions = d.max_positions,
                                                         .default_theta = 1e6}));
  PENSTOCK_TRY_ASSIGN(const int64_t window, ReadWindow(config, 0));
  PENSTOCK_TRY_ASSIGN(MoePiece moe, ReadMoe(config, d, "num_local_experts", "num_experts_per_tok",
                                            "intermediate_size"));
  moe.normalize = true;
  moe.gate = "w1";
  moe.up = "w3";
  moe.down = "w2";
  const NormStyle norm = {.epsilon = d.epsilon};
  const AttentionPiece attention = {.heads = d.heads,
                                    .kv_heads = d.kv_heads,
                                    .head_dim = d.head_dim,
                                    .rope = &rope,
                                    .scale = InverseRoot(static_cast<double>(d.head_dim)),
                                    .window = window};

  const auto feed_forward = [&](GraphBuilder& b, ValueId x, const LayerPlace& place) {
    return Experts(b, x, moe, place.prefix + "block_sparse_moe.", place.tag);
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
