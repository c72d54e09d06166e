// Pieces of layers that are counted and not run: `plan` and `inspect` know their tensors, state,
// values and work.

#pragma once

#include <string>

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

}  // namespace penstock::model
