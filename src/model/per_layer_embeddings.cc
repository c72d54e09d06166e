#include "model/per_layer_embeddings.h"

#include <cmath>
#include <numbers>

#include "model/variations.h"

namespace penstock::model {

Result<PerLayerEmbeddings> ReadPerLayerEmbeddings(const JsonReader& config,
                                                  const DecoderConfig& decoder) {
  constexpr std::string_view kKey = "per_layer_embeddings";
  PerLayerEmbeddings result{.activation = decoder.activation};
  if (config.Has(kKey)) {
    PENSTOCK_TRY_ASSIGN(const JsonReader object, ReadVariation(config, kKey, {"width"}));
    PENSTOCK_TRY_ASSIGN(result.width, object.Int("width", 1, 1 << 16));
  }
  return result;
}

ValueId PerLayerAddition(GraphBuilder& b, ValueId x, ValueId embedding, int64_t vocabulary,
                         const PerLayerEmbeddings& piece, NormStyle norm, const std::string& prefix,
                         const std::string& tag) {
  const auto linear = [&](ValueId in, const std::string& name, int64_t rows) {
    const TensorId weight = b.Matrix(prefix + name + ".weight", rows, b.width(in));
    return b.Linear(in, {.weights = {weight}, .biases = {}}, {name + "." + tag})[0];
  };
  const TensorId table = b.Tensor(prefix + "per_layer_embedding.weight", {vocabulary, piece.width},
                                  TensorRole::kEmbedding);
  const ValueId looked_up =
      b.Embed(table, static_cast<float>(std::sqrt(static_cast<double>(piece.width))),
              "per_layer_row." + tag);
  const ValueId projected = linear(embedding, "per_layer_projection", piece.width);
  const ValueId normed = Norm(b, projected, norm, prefix + "per_layer_projection_norm",
                              "per_layer_projection_norm." + tag);
  const ValueId sum = b.Add(normed, looked_up, "per_layer_sum." + tag);
  const ValueId input =
      b.Scale(sum, static_cast<float>(1.0 / std::numbers::sqrt2), "per_layer_input." + tag);
  const ValueId gate = linear(x, "per_layer_gate", piece.width);
  const ValueId gated =
      b.Gated(gate, input, {.activation = piece.activation}, "per_layer_gated." + tag);
  const ValueId up = linear(gated, "per_layer_up", b.width(x));
  return Norm(b, up, norm, prefix + "per_layer_norm", "per_layer_norm." + tag);
}

}  // namespace penstock::model
