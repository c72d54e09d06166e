#include "model/auxiliary_heads.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "model/variations.h"

namespace penstock::model {

Result<EarlyExits> ReadEarlyExits(const JsonReader& config, const DecoderConfig& decoder) {
  constexpr std::string_view kKey = "early_exits";
  EarlyExits exits;
  if (!config.Has(kKey)) {
    return exits;
  }
  PENSTOCK_TRY_ASSIGN(const JsonReader object,
                      ReadVariation(config, kKey, {"layers", "loss_weight", "head"}));
  PENSTOCK_TRY_ASSIGN(exits.layers, object.IntsOr("layers", 0, decoder.layers - 1));
  if (exits.layers.empty()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[model.config] {}: layers: missing, wanted decoder layers (0 to {})",
                     object.where(), decoder.layers - 1);
  }
  std::ranges::sort(exits.layers);
  const auto twice = std::ranges::adjacent_find(exits.layers);
  if (twice != exits.layers.end()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[model.config] {}: layers: layer {} stands twice", object.where(), *twice);
  }
  PENSTOCK_TRY_ASSIGN(const double weight, object.NumberOr("loss_weight", 0.3, 0.0, 1e3));
  exits.loss_weight = static_cast<float>(weight);
  PENSTOCK_TRY_ASSIGN(exits.own_heads, ReadChoice(object, "head", "own", "shared", "shared"));
  return exits;
}

void AddEarlyExit(GraphBuilder& b, ValueId x, int64_t layer, const EarlyExits& exits,
                  const DecoderConfig& decoder, NormStyle norm, float soft_cap) {
  const std::string prefix = LayerPrefix(layer);
  const TensorId head =
      exits.own_heads ? b.Matrix(prefix + "exit_head.weight", decoder.vocabulary, decoder.hidden)
                      : HeadTensor(b, decoder);
  const std::string tag = fmt::format("exit.{}", layer);
  const ValueId rows = b.SelectRows(x, "rows." + tag);
  const ValueId logits = HeadLogits(b, rows, head, norm, prefix + "exit_norm", soft_cap, "." + tag);
  b.AddLoss({.name = fmt::format("exit {}", layer), .logits = logits, .weight = exits.loss_weight});
}

Result<TokenPrediction> ReadTokenPrediction(const JsonReader& config) {
  TokenPrediction prediction;
  constexpr int64_t kMaxDepths = 16;
  PENSTOCK_TRY_ASSIGN(prediction.depths,
                      config.IntOr("num_nextn_predict_layers", 0, 0, kMaxDepths));
  PENSTOCK_TRY_ASSIGN(const double weight, config.NumberOr("mtp_loss_weight", 0.3, 0.0, 1e3));
  prediction.loss_weight = static_cast<float>(weight);
  return prediction;
}

ValueId PredictionInput(GraphBuilder& b, ValueId h, int64_t k, const DecoderConfig& decoder,
                        NormStyle norm, float embedding_scale, const std::string& prefix) {
  const std::string tag = fmt::format("next.{}", k);
  const TensorId table = b.Tensor("model.embed_tokens.weight", {decoder.vocabulary, decoder.hidden},
                                  TensorRole::kEmbedding);
  const ValueId e =
      b.Embed(table, embedding_scale, "embedding." + tag, static_cast<int32_t>(k) + 1);
  const ValueId both = b.Concat({Norm(b, e, norm, prefix + "enorm", "enorm." + tag),
                                 Norm(b, h, norm, prefix + "hnorm", "hnorm." + tag)},
                                "joined." + tag);
  const TensorId weight = b.Matrix(prefix + "eh_proj.weight", decoder.hidden, 2 * decoder.hidden);
  return b.Linear(both, {.weights = {weight}, .biases = {}}, {"input." + tag})[0];
}

void AddPredictionHead(GraphBuilder& b, ValueId h, int64_t k, const TokenPrediction& prediction,
                       const DecoderConfig& decoder, NormStyle norm, float soft_cap,
                       const std::string& prefix) {
  const ValueId logits = HeadLogits(b, h, HeadTensor(b, decoder), norm, prefix + "shared_head.norm",
                                    soft_cap, fmt::format(".next.{}", k));
  b.AddLoss({.name = fmt::format("next {}", k + 1),
             .logits = logits,
             .weight = prediction.loss_weight / static_cast<float>(prediction.depths),
             .shift = static_cast<int32_t>(k) + 1});
}

}  // namespace penstock::model
