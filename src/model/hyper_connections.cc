#include "model/hyper_connections.h"

#include <fmt/format.h>

#include "model/variations.h"

namespace penstock::model {

Result<std::optional<HyperConnections>> ReadHyperConnections(const JsonReader& config,
                                                             const DecoderConfig& decoder) {
  constexpr std::string_view kKey = "hyper_connections";
  if (!config.Has(kKey)) {
    return std::optional<HyperConnections>();
  }
  PENSTOCK_TRY_ASSIGN(const JsonReader object, ReadVariation(config, kKey, {"streams", "mode"}));
  HyperConnections hyper;
  PENSTOCK_TRY_ASSIGN(hyper.streams, object.Int("streams", 1, kMaxStreams));
  PENSTOCK_TRY_ASSIGN(hyper.dynamic, ReadChoice(object, "mode", "dynamic", "static", ""));
  hyper.epsilon = decoder.epsilon;
  return std::optional<HyperConnections>(hyper);
}

ValueId StreamResidual::Read(GraphBuilder& b, const Sublayer& place) {
  const int64_t n = hyper_.streams;
  if (!streams_.valid()) {
    streams_ = b.Concat(std::vector<ValueId>(static_cast<size_t>(n), embedding_), "streams");
  }
  const int64_t width = b.width(embedding_);
  const std::string tag = SublayerTag(place);
  const std::string tensor =
      fmt::format("{}{}_streams", LayerPrefix(place.layer), SublayerName(place.kind));
  StreamWeightsOp op;
  op.streams = n;
  op.base = b.Tensor(tensor + ".base", {n, n + 2}, TensorRole::kVector);
  if (hyper_.dynamic) {
    op.mix = b.Tensor(tensor + ".mix", {n + 2, width}, TensorRole::kVector);
    op.norm = b.Vector(tensor + ".norm.weight", width);
    op.scale = b.Vector(tensor + ".scale", 2);
  }
  op.epsilon = hyper_.epsilon;
  weights_ = b.StreamWeights(streams_, op, "stream_weights." + tag);
  return b.StreamRead(streams_, weights_, n, "stream_read." + tag);
}

void StreamResidual::Write(GraphBuilder& b, const Sublayer& place, ValueId y) {
  streams_ = b.StreamWrite(streams_, weights_, y, hyper_.streams, "streams." + SublayerTag(place));
}

ValueId StreamResidual::Output(GraphBuilder& b, const std::string& tag) {
  if (!streams_.valid()) {
    return embedding_;
  }
  const auto n = static_cast<size_t>(hyper_.streams);
  std::vector<std::string> names;
  for (size_t k = 0; k < n; ++k) {
    names.push_back(fmt::format("stream.{}.{}", tag, k));
  }
  const std::vector<ValueId> parts =
      b.Split(streams_, {.widths = std::vector<int64_t>(n, b.width(embedding_))}, names);
  ValueId sum = parts[0];
  for (size_t k = 1; k < n; ++k) {
    sum = b.Add(sum, parts[k], fmt::format("stream_sum.{}.{}", tag, k));
  }
  return sum;
}

}  // namespace penstock::model
