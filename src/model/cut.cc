#include "model/cut.h"

#include <algorithm>
#include <limits>
#include <numeric>
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

Result<Partition> CutAt(int32_t layers, std::span<const int64_t> cut) {
  std::vector<int32_t> starts = {0};
  for (size_t i = 0; i < cut.size(); ++i) {
    if (cut[i] < 1 || cut[i] >= layers) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "[model.cut] cut: entry {} is {}, wanted 1 to {} (layer 0 is the embedding, "
                       "layer {} the head)",
                       i + 1, cut[i], layers - 1, layers - 1);
    }
    if (cut[i] < starts.back()) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "[model.cut] cut: entry {} is {} after {}, wanted {} to {}: entries do not "
                       "decrease (equal ones make an empty stage)",
                       i + 1, cut[i], starts.back(), starts.back(), layers - 1);
    }
    starts.push_back(static_cast<int32_t>(cut[i]));
  }
  return Partition(std::move(starts), layers);
}

namespace {

// Fewest stages with none above `limit`, none empty; prefix sums of the weights.
int64_t StagesNeeded(const std::vector<double>& prefix, double limit) {
  int64_t stages = 1;
  size_t first = 0;
  for (size_t i = 0; i + 1 < prefix.size(); ++i) {
    if (prefix[i + 1] - prefix[first] > limit && i > first) {
      first = i;
      ++stages;
    }
  }
  return stages;
}

// The least possible weight of the heaviest stage, up to rounding.
double Bottleneck(const std::vector<double>& prefix, double heaviest_layer, int64_t stages) {
  double low = heaviest_layer;
  double high = prefix.back();
  for (int i = 0; i < 100 && low < high; ++i) {
    const double middle = low + (high - low) / 2;
    (StagesNeeded(prefix, middle) <= stages ? high : low) = middle;
    if (high - low <= 1e-12 * high) {
      break;
    }
  }
  return high * (1.0 + 1e-9);
}

}  // namespace

Result<Partition> CutBalanced(std::span<const double> weights, int64_t stages, bool allow_empty) {
  const auto layers = static_cast<int64_t>(weights.size());
  constexpr int64_t kMaxStages = 32767;
  const int64_t most = allow_empty ? kMaxStages : layers;
  if (stages < 1 || stages > most) {
    return MakeError(ErrorCode::kInvalidArgument, "[model.cut] stages: got {}, wanted 1 to {}{}",
                     stages, most, allow_empty ? "" : " (decoder layers, embedding and head)");
  }
  if (stages >= layers) {
    std::vector<int32_t> starts;
    for (int64_t s = 0; s < stages; ++s) {
      starts.push_back(static_cast<int32_t>(std::min(s, layers - 1)));
    }
    return Partition(std::move(starts), static_cast<int32_t>(layers));
  }
  std::vector<double> prefix = {0.0};
  for (const double weight : weights) {
    prefix.push_back(prefix.back() + std::max(weight, 0.0));
  }
  const double limit =
      Bottleneck(prefix, *std::max_element(weights.begin(), weights.end()), stages);

  // best[i]: least sum of squares of a cut of layers i.. into the stages that remain.
  const auto n = static_cast<size_t>(layers);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  std::vector<double> best(n + 1, kInfinity);
  best[n] = 0.0;
  std::vector<std::vector<int32_t>> choice;  // choice[k][i]: end of the first of k + 1 stages
  for (int64_t k = 0; k < stages; ++k) {
    std::vector<double> next(n + 1, kInfinity);
    std::vector<int32_t> ends(n + 1, -1);
    for (size_t i = 0; i < n; ++i) {
      for (size_t end = i + 1; end <= n && prefix[end] - prefix[i] <= limit; ++end) {
        const double sum = prefix[end] - prefix[i];
        const double total = sum * sum + best[end];
        // Later ends win ties (within rounding): earlier stages are the heavier.
        if (total <= next[i] * (1.0 + 1e-12)) {
          next[i] = std::min(total, next[i]);
          ends[i] = static_cast<int32_t>(end);
        }
      }
    }
    best = std::move(next);
    choice.push_back(std::move(ends));
  }
  std::vector<int32_t> starts = {0};
  for (int64_t k = stages - 1; k > 0; --k) {
    const int32_t end = choice[static_cast<size_t>(k)][static_cast<size_t>(starts.back())];
    PENSTOCK_CHECK(end > 0, "a cut below the bottleneck exists");
    starts.push_back(end);
  }
  return Partition(std::move(starts), static_cast<int32_t>(layers));
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

HopPlan PlanHops(const Graph& graph, const CutSets& cuts, const Partition& partition,
                 std::span<const RankId> rank_of, int32_t ranks, int64_t element_bytes) {
  const int32_t stages = partition.num_stages();
  PENSTOCK_CHECK(static_cast<int32_t>(rank_of.size()) == stages, "one rank per stage");
  const auto bytes = [&](const std::vector<ValueId>& values) {
    int64_t sum = 0;
    for (const ValueId id : values) {
      sum += BytesPerToken(graph.value(id), element_bytes);
    }
    return sum;
  };
  HopPlan plan;
  plan.held.resize(static_cast<size_t>(ranks));
  // What a rank has seen: dropping a value early never makes it come again, since a value is
  // dropped only when no later stage of the rank has it among what crosses.
  std::vector<std::unordered_set<ValueId>> seen(static_cast<size_t>(ranks));
  for (int32_t s = 0; s < stages; ++s) {
    const RankId rank = rank_of[static_cast<size_t>(s)];
    const auto r = static_cast<size_t>(rank.value());
    const std::vector<ValueId>& in = cuts.Crossing(partition.first_layer(StageId(s)));
    const std::vector<ValueId>& out = cuts.Crossing(partition.end_layer(StageId(s)));
    if (s > 0 && rank_of[static_cast<size_t>(s) - 1] != rank) {
      Hop hop{StageId(s - 1), StageId(s), rank_of[static_cast<size_t>(s) - 1], rank, {}, in};
      std::copy_if(in.begin(), in.end(), std::back_inserter(hop.values),
                   [&](ValueId id) { return !seen[r].contains(id); });
      plan.hops.push_back(std::move(hop));
    }
    seen[r].insert(in.begin(), in.end());
    seen[r].insert(out.begin(), out.end());
    for (const std::vector<ValueId>* values : {&in, &out}) {
      // The model's own input is given, not held.
      const bool given = values == &in && partition.first_layer(StageId(s)) == 0;
      if (!given && bytes(*values) > bytes(plan.held[r])) {
        plan.held[r] = *values;
      }
    }
  }
  return plan;
}

}  // namespace penstock::model
