// Multi-stream residuals: hyper-connections (arXiv 2409.19606). n copies of the residual; a
// sublayer reads a mix of them, and afterwards the streams are mixed with each other and each takes
// a share of the sublayer's output. The shares are learned per sublayer (static), or a learned
// function of the streams is added to them (dynamic). A head reads the sum of the streams.
//
// The n streams of a token are one value of n * hidden columns: that is what crosses a boundary.
// The copies are made in the first decoder layer, so the embedding crosses as it is.
//
// Tensors per sublayer, after model.layers.N.attention_streams or model.layers.N.mlp_streams:
//   .base [n, n + 2]      per stream: share in the input, in each stream, of the output
//   .mix [n + 2, hidden], .norm.weight [hidden], .scale [2]      dynamic only

#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "base/json_reader.h"
#include "base/result.h"
#include "model/decoder.h"
#include "model/graph.h"
#include "model/residual.h"

namespace penstock::model {

struct HyperConnections {
  int64_t streams = 0;
  bool dynamic = false;
  float epsilon = 1e-6F;
};

// The object `hyper_connections`: {"streams", "mode": "static"|"dynamic"}; nothing when it is
// absent. Errors: kInvalidArgument naming the key.
Result<std::optional<HyperConnections>> ReadHyperConnections(const JsonReader& config,
                                                             const DecoderConfig& decoder);

class StreamResidual final : public Residual {
 public:
  StreamResidual(ValueId embedding, const HyperConnections& hyper)
      : hyper_(hyper), embedding_(embedding) {}

  ValueId Read(GraphBuilder& b, const Sublayer& place) override;
  void Write(GraphBuilder& b, const Sublayer& place, ValueId y) override;
  ValueId Output(GraphBuilder& b, const std::string& tag) override;

 private:
  HyperConnections hyper_;
  ValueId embedding_;
  ValueId streams_;  // invalid before the first read
  ValueId weights_;  // of the sublayer between Read and Write
};

}  // namespace penstock::model
