// Multi-head latent attention as a piece of decoder layers (DeepSeek-V2, arXiv 2405.04434), with
// rotary embedding (DeepSeek-V3) or without positions (Kimi Linear, Kimi K3).

#pragma once

#include <string>

#include "base/json_reader.h"
#include "model/graph.h"
#include "model/rope.h"

namespace penstock::model {

struct LatentPiece {
  int64_t heads = 0;
  int64_t query_rank = 0;  // 0: a single q_proj
  int64_t latent = 0;
  int64_t nope = 0;
  int64_t rope = 0;
  int64_t value = 0;
  float scale = 1.0F;
  bool gate = false;               // sigmoid(g_proj x) in front of o_proj
  const Rope* rotation = nullptr;  // of the rope-sized parts; null: none
  bool interleaved = true;         // rotates neighbouring pairs
};

// q_lora_rank, kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim; the scale is that of
// the whole query. Errors name the key.
Result<LatentPiece> ReadLatentPiece(const JsonReader& config, int64_t heads);

// o_proj(gate(attention(...))). The two norms inside have an epsilon of 1e-6 whatever the model's.
ValueId LatentSelfAttention(GraphBuilder& b, ValueId x, const LatentPiece& piece,
                            const std::string& prefix, const std::string& tag);

// Parameters of one such layer, norms within it counted.
int64_t LatentParameters(const LatentPiece& piece, int64_t width);

}  // namespace penstock::model
