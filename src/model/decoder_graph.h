// The graph of a decoder from the parts that a family gives: its two sublayers, its norms and
// factors. What joins the layers (the residual, and the other variations of config.json that any
// Llama-like family takes) is added here, so that a family knows of none of them.

#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/json_reader.h"
#include "base/result.h"
#include "model/decoder.h"
#include "model/graph.h"

namespace penstock::model {

// Where a sublayer stands.
struct LayerPlace {
  int64_t depth = 0;   // decoder layer whose attributes it has (window, position in a pattern)
  int64_t owner = 0;   // decoder layer whose weights it uses: decides between kinds of layers
  std::string prefix;  // of its tensors: "model.layers.3."
  std::string tag;     // ends its values' names: "3"
};

// A sublayer with its norms: what is written to the residual for the input x that was read of it.
using SublayerPiece = std::function<ValueId(GraphBuilder& b, ValueId x, const LayerPlace& place)>;

struct DecoderSpec {
  DecoderConfig decoder;
  NormStyle norm;  // of the head
  float embedding_scale = 1.0F;
  float logit_cap = 0.0F;  // 0: none
  SublayerPiece attention;
  SublayerPiece mlp;
};

// attention(norm(x)) with the tensors of the common form: input_layernorm, self_attn.
SublayerPiece PreNormAttention(NormStyle norm, const AttentionPiece& attention);

// mlp(norm(x)); the norm is post_attention_layernorm.
SublayerPiece PreNormMlp(NormStyle norm, SublayerPiece mlp);
// With down_proj(act(gate_proj x) * up_proj x) under "mlp.".
SublayerPiece PreNormGatedMlp(NormStyle norm, const MlpPiece& mlp);

// Reads the variations of `config` and builds the graph. Errors: those of the variations' readers
// (unknown or contradicting keys) and of GraphBuilder::Build.
Result<Graph> BuildDecoder(const JsonReader& config, const DecoderSpec& spec);

}  // namespace penstock::model
