// Pieces of layers that are counted and not run: `plan` and `inspect` know their tensors, state,
// values and work.

#pragma once

#include <string>

#include "base/json.h"
#include "model/graph.h"

namespace penstock::model {

// y = layer norm(x), with a bias where wanted.
ValueId CountedLayerNorm(GraphBuilder& b, ValueId x, const std::string& tensor, bool bias,
                         std::string name);

// y = dropout(x): one byte of mask per element is kept.
ValueId CountedDropout(GraphBuilder& b, ValueId x, std::string name);

struct CountedExperts {
  int64_t experts = 0;
  int64_t chosen = 0;
  int64_t inner = 0;
  int64_t bias = 0;  // elements of biases per expert
  bool router_bias = false;
};

// Routed experts (gated, three matrices each, stored stacked) over z; the router reads x. Gives
// back a value of z's width.
ValueId CountedMoe(GraphBuilder& b, ValueId x, ValueId z, const CountedExperts& piece,
                   const std::string& router, const std::string& prefix, const std::string& tag);

// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): the state is one latent row and one
// rotated row per token, which every tensor-parallel rank keeps.
struct LatentAttention {
  int64_t heads = 0;
  int64_t query_rank = 0;  // 0: a single q_proj
  int64_t latent = 0;
  int64_t nope = 0;
  int64_t rope = 0;
  int64_t value = 0;
  float epsilon = 1e-6F;
  bool gate = false;  // sigmoid(g_proj x) in front of o_proj
};

Result<LatentAttention> ReadLatentAttention(const JsonReader& config, int64_t heads);

ValueId CountedLatentAttention(GraphBuilder& b, ValueId x, const LatentAttention& piece,
                               const std::string& prefix, const std::string& tag);

// Parameters of one such layer, norms within it counted.
int64_t LatentAttentionParameters(const LatentAttention& piece, int64_t width);

}  // namespace penstock::model
