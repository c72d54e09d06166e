// Embeddings that are read at every depth (after the idea of Gemma 3n): beside the model's, each
// decoder layer has a small table; its row, with a projection of the model's embedding, gates an
// addition to the residual at the end of the layer.
//
//   e_i  = (norm(project_i(embedding)) + table_i[token] * sqrt(width)) / sqrt(2)
//   x   += norm(up_i(act(gate_i(x)) * e_i))
//
// So the model's embedding and the token ids cross every boundary up to the last decoder layer.

#pragma once

#include <cstdint>
#include <string>

#include "base/json_reader.h"
#include "base/result.h"
#include "model/decoder.h"
#include "model/graph.h"

namespace penstock::model {

struct PerLayerEmbeddings {
  int64_t width = 0;  // 0: the model has none
  Activation activation = Activation::kSilu;
};

// `per_layer_embeddings`: {"width"}. Errors: kInvalidArgument naming the key.
Result<PerLayerEmbeddings> ReadPerLayerEmbeddings(const JsonReader& config,
                                                  const DecoderConfig& decoder);

// What is added to x, the output of the layer whose tensors start with `prefix`. `vocabulary` rows
// in the table. Tensors: per_layer_embedding, per_layer_projection, per_layer_projection_norm,
// per_layer_gate, per_layer_up, per_layer_norm, each ".weight".
ValueId PerLayerAddition(GraphBuilder& b, ValueId x, ValueId embedding, int64_t vocabulary,
                         const PerLayerEmbeddings& piece, NormStyle norm, const std::string& prefix,
                         const std::string& tag);

}  // namespace penstock::model
