// Heads beside the output's, which training adds to the loss: early exits (logits after a decoder
// layer) and multi-token prediction (layers behind the last one that predict ids further on, in the
// layout of DeepSeek-V3). What runs a model for its logits leaves them out
// (WithoutAuxiliaryHeads).

#pragma once

#include <cstdint>
#include <vector>

#include "base/json_reader.h"
#include "base/result.h"
#include "model/decoder.h"
#include "model/graph.h"

namespace penstock::model {

struct EarlyExits {
  std::vector<int64_t> layers;  // ascending; the exit stands after the decoder layer
  float loss_weight = 0.0F;     // of each
  bool own_heads = false;       // else they share the model's
};

// `early_exits`: {"layers", "loss_weight" (0.3), "head": "shared" (default) | "own"}. Errors:
// kInvalidArgument naming the key.
Result<EarlyExits> ReadEarlyExits(const JsonReader& config, const DecoderConfig& decoder);

// Logits of an exit after `layer`, from what a head reads there, and their term of the loss.
// Tensors: model.layers.N.exit_norm.weight and, with own heads, model.layers.N.exit_head.weight.
void AddEarlyExit(GraphBuilder& b, ValueId x, int64_t layer, const EarlyExits& exits,
                  const DecoderConfig& decoder, NormStyle norm, float soft_cap);

struct TokenPrediction {
  int64_t depths = 0;        // further ids that are predicted
  float loss_weight = 0.0F;  // of the mean over the depths
};

// `num_nextn_predict_layers` and `mtp_loss_weight` (0.3). Errors: kInvalidArgument naming the key.
Result<TokenPrediction> ReadTokenPrediction(const JsonReader& config);

// The input of prediction layer k (from 0): eh_proj [enorm(embedding of the id k + 1 places on);
// hnorm(h)] with tensors after `prefix`.
ValueId PredictionInput(GraphBuilder& b, ValueId h, int64_t k, const DecoderConfig& decoder,
                        NormStyle norm, float embedding_scale, const std::string& prefix);

// In the head layer: logits of prediction layer k from its output, and their term of the loss. The
// head is the model's, the norm `prefix` + "shared_head.norm".
void AddPredictionHead(GraphBuilder& b, ValueId h, int64_t k, const TokenPrediction& prediction,
                       const DecoderConfig& decoder, NormStyle norm, float soft_cap,
                       const std::string& prefix);

}  // namespace penstock::model
