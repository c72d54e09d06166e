#include "model/cut.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <unordered_set>

#include "base/check.h"

namespace penstock::model {

Partition::Partition(std::vector<int32_t> starts, int32_t layers) : starts_(std::move(starts)) {
  PENSTOCK_CHECK(!starts_.empty() && starts_[0] == 0, "a partition starts at layer 0");
  starts_.push_back(layers);
  PENSTOCK_CHECK(std::is_sorted(starts_.begin(), starts_.end()), "stages are in layer order");
}

StageId Partition::StageOf(LayerId layer) const {
  // The last stage that starts at or before the layer is the one that is not empty.
  const auto next = std::upper_bound(starts_.begin(), starts_.end() - 1, layer.value());
  return StageId(static_cast<int32_t>(next - starts_.begin()) - 1);
}

std::vector<int64_t> NearestCut(int32_t layers, std::span<const int64_t> cut, int64_t stages) {
  const int64_t last = layers - 1;
  std::vector<int64_t> starts = {0};
  for (const int64_t entry : cut) {
    starts.push_back(std::clamp<int64_t>(entry, 1, last));
  }
  std::sort(starts.begin(), starts.end());
  starts.push_back(layers);
  const auto length = [&](size_t s) { return starts[s + 1] - starts[s]; };
  while (stages > 0 && std::ssize(starts) - 1 < stages) {
    size_t longest = 0;
    for (size_t s = 1; s + 1 < starts.size(); ++s) {
      longest = length(s) > length(longest) ? s : longest;
    }
    const int64_t middle =
        std::clamp<int64_t>((starts[longest] + starts[longest + 1] + 1) / 2, 1, last);
    starts.insert(starts.begin() + static_cast<std::ptrdiff_t>(longest) + 1, middle);
  }
  while (stages > 0 && std::ssize(starts) - 1 > stages) {
    size_t shortest = 1;  // the start that goes
    for (size_t s = 2; s + 1 < starts.size(); ++s) {
      shortest = length(s - 1) + length(s) < length(shortest - 1) + length(shortest) ? s : shortest;
    }
    starts.erase(starts.begin() + static_cast<std::ptrdiff_t>(shortest));
  }
  return {starts.begin() + 1, starts.end() - 1};
}

std::string NearestCutText(int32_t layers, std::span<const int64_t> cut, int64_t stages) {
  constexpr int64_t kReadable = 64;
  if (layers < 2 || std::max(stages, std::ssize(cut)) > kReadable) {
    return "";
  }
  const std::vector<int64_t> nearest = NearestCut(layers, cut, stages);
  return nearest.empty() ? "; one stage needs no cut"
                         : fmt::format("; the nearest legal cut is {}", fmt::join(nearest, ","));
}

Result<Partition> CutAt(int32_t layers, std::span<const int64_t> cut) {
  std::vector<int32_t> starts = {0};
  for (size_t i = 0; i < cut.size(); ++i) {
    if (cut[i] < 1 || cut[i] >= layers) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "[model.cut] cut: entry {} is {}, wanted 1 to {} (layer 0 is the embedding, "
                       "layer {} the head){}",
                       i + 1, cut[i], layers - 1, layers - 1, NearestCutText(layers, cut));
    }
    if (cut[i] < starts.back()) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "[model.cut] cut: entry {} is {} after {}, wanted {} to {}: entries do not "
                       "decrease (equal ones make an empty stage){}",
                       i + 1, cut[i], starts.back(), starts.back(), layers - 1,
                       NearestCutText(layers, cut));
    }
    starts.push_back(static_cast<int32_t>(cut[i]));
  }
  return Partition(std::move(starts), layers);
}

std::vector<double> LayerCountWeights(const Graph& graph) {
  std::vector<double> weights;
  for (const Layer& layer : graph.layers) {
    weights.push_back(layer.kind == LayerKind::kDecoder ? 1.0 : 0.0);
  }
  return weights;
}

Result<Balance> ParseBalance(std::string_view text) {
  if (text == "time") {
    return Balance::kTime;
  }
  if (text == "memory") {
    return Balance::kMemory;
  }
  if (text == "layers") {
    return Balance::kLayers;
  }
  return MakeError(ErrorCode::kInvalidArgument,
                   "[model.cut] balance: got '{}', wanted time, memory or layers", text);
}

int64_t BytesPerToken(const Value& value, int64_t element_bytes) {
  return value.type == ValueType::kTokens ? 4 : value.width * element_bytes;
}

CutSets::CutSets(const Graph& graph)
    : crossing_(graph.layers.size() + 1), last_reader_(graph.values.size(), -1) {
  for (const Op& op : graph.ops) {
    for (const ValueId id : op.inputs) {
      int32_t& last = last_reader_[static_cast<size_t>(id.value())];
      last = std::max(last, op.layer.value());
    }
  }
  for (size_t v = 0; v < graph.values.size(); ++v) {
    // The model's input is there before layer 0.
    const int32_t producer = graph.values[v].producer.value();
    for (int32_t boundary = producer + 1; boundary <= last_reader_[v]; ++boundary) {
      crossing_[static_cast<size_t>(boundary)].push_back(ValueId(static_cast<int32_t>(v)));
    }
  }
}

std::vector<StageContent> Contents(const Graph& graph, const CutSets& cuts,
                                   const Partition& partition) {
  std::vector<StageContent> contents;
  for (int32_t s = 0; s < partition.num_stages(); ++s) {
    StageContent stage;
    stage.first_layer = partition.first_layer(StageId(s));
    stage.end_layer = partition.end_layer(StageId(s));
    stage.receives = cuts.Crossing(stage.first_layer);
    stage.sends = cuts.Crossing(stage.end_layer);
    if (!partition.empty(StageId(s))) {
      stage.first_op = graph.layers[static_cast<size_t>(stage.first_layer)].first_op;
      stage.end_op = graph.layers[static_cast<size_t>(stage.end_layer) - 1].last_op;
    }
    std::unordered_set<TensorId> seen;
    std::unordered_set<ValueId> read;
    for (int32_t i = stage.first_op; i < stage.end_op; ++i) {
      const Op& op = graph.ops[static_cast<size_t>(i)];
      read.insert(op.inputs.begin(), op.inputs.end());
      for (const TensorId id : TensorsOf(op)) {
        if (seen.insert(id).second) {
          stage.tensors.push_back(id);
        }
      }
    }
    std::copy_if(stage.receives.begin(), stage.receives.end(), std::back_inserter(stage.reads),
                 [&](ValueId id) { return read.contains(id); });
    for (size_t i = 0; i < graph.states.size(); ++i) {
      const int32_t layer = graph.states[i].layer.value();
      if (layer >= stage.first_layer && layer < stage.end_layer) {
        stage.states.push_back(static_cast<int32_t>(i));
      }
    }
    contents.push_back(std::move(stage));
  }
  return contents;
}

}  // namespace penstock::model
