#include "model/inventory.h"

#include <algorithm>
#include <cmath>
#include <unordered_set>

namespace penstock::model {
namespace {

constexpr double kFloatBytes = 4.0;

// Elements per token that an operation's state takes while its window is not full.
int64_t StateElements(const LayerState& state) {
  return state.key_width + state.value_width;
}

// Share of an operation's routed experts that one token reads; 1 where it has none.
double ChosenShare(const Op& op) {
  if (const auto* moe = std::get_if<MoeOp>(&op.params)) {
    return static_cast<double>(moe->chosen) / static_cast<double>(moe->gate.size());
  }
  if (const auto* counted = std::get_if<CountedOp>(&op.params); counted && counted->experts > 0) {
    return static_cast<double>(counted->chosen) / static_cast<double>(counted->experts);
  }
  return 1.0;
}

double ExpertCount(const Op& op) {
  if (const auto* moe = std::get_if<MoeOp>(&op.params)) {
    return static_cast<double>(moe->gate.size());
  }
  const auto* counted = std::get_if<CountedOp>(&op.params);
  return counted != nullptr ? static_cast<double>(counted->experts) : 0.0;
}

// Multiply-adds with weights, and bytes of weights.
void CountWeights(const Graph& graph, const Op& op, double rows, const TensorBytes& bytes,
                  Work& work) {
  if (const auto* embed = std::get_if<EmbedOp>(&op.params)) {
    const WeightTensor& table = graph.tensor(embed->table);
    work.weights_bytes += rows * static_cast<double>(bytes(embed->table)) /
                          static_cast<double>(std::max<int64_t>(table.shape[0], 1));
    return;
  }
  const double share = ChosenShare(op);
  // E (1 - (1 - k/E)^rows) of E experts are chosen by some row.
  const double touched = 1.0 - std::pow(1.0 - share, rows);
  for (const TensorId id : TensorsOf(op)) {
    const WeightTensor& tensor = graph.tensor(id);
    const bool routed = tensor.routed_expert && ExpertCount(op) > 0;
    if (tensor.role != TensorRole::kVector) {
      work.flops += 2.0 * static_cast<double>(Elements(tensor)) * rows * (routed ? share : 1.0);
    }
    work.weights_bytes += static_cast<double>(bytes(id)) * (routed ? touched : 1.0);
  }
}

struct AttentionShape {
  double heads = 0;
  double score_dim = 0;
  double value_dim = 0;
  int64_t window = 0;
  int32_t state = -1;
};

void CountAttention(const Graph& graph, const AttentionShape& a, const WorkShape& shape,
                    int64_t kv_element_bytes, Work& work) {
  const double seen =
      a.window > 0 ? std::min(shape.keys, static_cast<double>(a.window)) : shape.keys;
  work.flops += 2.0 * a.heads * (a.score_dim + a.value_dim) * seen * shape.rows;
  if (a.state < 0) {
    return;
  }
  const LayerState& state = graph.states[static_cast<size_t>(a.state)];
  const double kept =
      state.window > 0
          ? std::min(shape.state_tokens, static_cast<double>(state.window) * shape.sequences)
          : shape.state_tokens;
  const auto element = static_cast<double>(StateElements(state) * kv_element_bytes);
  work.state_bytes += element * (kept + shape.rows);
  work.state_bytes += 2.0 * static_cast<double>(state.sequence_bytes) * shape.sequences;
}

}  // namespace

int64_t Elements(const WeightTensor& tensor) {
  int64_t elements = 1;
  for (const int64_t size : tensor.shape) {
    elements *= size;
  }
  return elements;
}

TensorBytes BytesAtBits(const Graph& graph, int64_t bits) {
  return [&graph, bits](TensorId id) { return (Elements(graph.tensor(id)) * bits + 7) / 8; };
}

Inventory TakeInventory(const Graph& graph, const TensorBytes& bytes, int64_t kv_element_bytes) {
  Inventory inventory;
  inventory.layers.resize(graph.layers.size());
  double idle = 0.0;
  std::unordered_set<TensorId> multiplied;  // tables that are more than looked up
  std::unordered_set<TensorId> counted;
  for (size_t l = 0; l < graph.layers.size(); ++l) {
    LayerInventory& layer = inventory.layers[l];
    std::unordered_set<TensorId> seen;
    for (int32_t i = graph.layers[l].first_op; i < graph.layers[l].last_op; ++i) {
      const Op& op = graph.ops[static_cast<size_t>(i)];
      const double share = ChosenShare(op);
      for (const TensorId id : TensorsOf(op)) {
        if (!std::holds_alternative<EmbedOp>(op.params)) {
          multiplied.insert(id);
        }
        const int64_t elements = Elements(graph.tensor(id));
        if (seen.insert(id).second) {
          layer.parameters += elements;
          layer.weights_bytes += bytes(id);
        }
        if (counted.insert(id).second && graph.tensor(id).routed_expert) {
          idle += static_cast<double>(elements) * (1.0 - share);
        }
      }
    }
  }
  int64_t looked_up = 0;
  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    const int64_t elements = Elements(graph.tensors[t]);
    inventory.parameters += elements;
    inventory.weights_bytes += bytes(TensorId(static_cast<int32_t>(t)));
    if (graph.tensors[t].role == TensorRole::kEmbedding) {
      inventory.parameters_embedding += elements;
      looked_up += multiplied.contains(TensorId(static_cast<int32_t>(t))) ? 0 : elements;
    }
  }
  inventory.parameters_active = inventory.parameters;
  if (idle > 0.0) {
    inventory.parameters_active -= std::llround(idle) + looked_up;
  }
  for (const LayerState& state : graph.states) {
    LayerInventory& layer = inventory.layers[static_cast<size_t>(state.layer.value())];
    layer.kv_bytes_per_token += StateElements(state) * kv_element_bytes;
    layer.sequence_bytes += state.sequence_bytes;
    inventory.kv_bytes_per_token += StateElements(state) * kv_element_bytes;
    inventory.sequence_bytes += state.sequence_bytes;
  }
  return inventory;
}

int64_t StageWeightsBytes(const StageContent& stage, const TensorBytes& bytes) {
  int64_t sum = 0;
  for (const TensorId id : stage.tensors) {
    sum += bytes(id);
  }
  return sum;
}

int64_t StateBytes(const Graph& graph, int32_t first_layer, int32_t end_layer, int64_t tokens,
                   int64_t kv_element_bytes) {
  int64_t sum = 0;
  for (const LayerState& state : graph.states) {
    if (state.layer.value() >= first_layer && state.layer.value() < end_layer) {
      const int64_t kept = state.window > 0 ? std::min(tokens, state.window) : tokens;
      sum += kept * StateElements(state) * kv_element_bytes + state.sequence_bytes;
    }
  }
  return sum;
}

WorkShape PrefillShape(double tokens, double from) {
  return {.rows = tokens,
          .logit_rows = 1,
          .keys = from + (tokens + 1.0) / 2.0,
          .state_tokens = from + tokens,
          .sequences = 1};
}

WorkShape DecodeShape(double sequences, double context) {
  return {.rows = sequences,
          .logit_rows = sequences,
          .keys = context,
          .state_tokens = sequences * context,
          .sequences = sequences};
}

Work& Work::operator+=(const Work& other) {
  flops += other.flops;
  weights_bytes += other.weights_bytes;
  state_bytes += other.state_bytes;
  activation_bytes += other.activation_bytes;
  return *this;
}

namespace {

// Of one row, for the operations of multi-stream residuals; 0 for others.
double StreamFlops(const Graph& graph, const Op& op) {
  const auto width = static_cast<double>(graph.value(op.inputs[0]).width);
  if (const auto* weights = std::get_if<StreamWeightsOp>(&op.params)) {
    const auto dots = static_cast<double>(weights->mix.valid() ? weights->streams + 3 : 0);
    return 2.0 * dots * width;
  }
  if (std::holds_alternative<StreamReadOp>(op.params)) {
    return 2.0 * width;
  }
  if (const auto* write = std::get_if<StreamWriteOp>(&op.params)) {
    return 2.0 * static_cast<double>(write->streams + 1) * width;
  }
  return 0.0;
}

}  // namespace

Work OpWork(const Graph& graph, const Op& op, const WorkShape& shape, const TensorBytes& bytes,
            int64_t kv_element_bytes) {
  Work work;
  if (std::holds_alternative<SplitOp>(op.params)) {
    return work;  // views
  }
  const bool head = graph.layers[static_cast<size_t>(op.layer.value())].kind == LayerKind::kHead;
  const double rows = head ? shape.logit_rows : shape.rows;
  CountWeights(graph, op, rows, bytes, work);
  for (const std::vector<ValueId>* side : {&op.inputs, &op.outputs}) {
    for (const ValueId id : *side) {
      work.activation_bytes += kFloatBytes * rows * static_cast<double>(graph.value(id).width);
    }
  }
  if (const auto* a = std::get_if<AttentionOp>(&op.params)) {
    CountAttention(graph,
                   {.heads = static_cast<double>(a->heads),
                    .score_dim = static_cast<double>(a->head_dim),
                    .value_dim = static_cast<double>(a->value_dim),
                    .window = a->window,
                    .state = a->state},
                   shape, kv_element_bytes, work);
  } else if (const auto* l = std::get_if<LatentAttentionOp>(&op.params)) {
    CountAttention(graph,
                   {.heads = static_cast<double>(l->heads),
                    .score_dim = static_cast<double>(l->nope + l->rope),
                    .value_dim = static_cast<double>(l->value_dim),
                    .window = 0,
                    .state = l->state},
                   shape, kv_element_bytes, work);
  } else if (const auto* conv = std::get_if<ShortConvOp>(&op.params)) {
    for (const ValueId id : op.inputs) {
      work.flops += 2.0 * static_cast<double>(graph.value(id).width * conv->taps) * rows;
    }
    CountAttention(graph, {.state = conv->state}, shape, kv_element_bytes, work);
  } else if (const auto* delta = std::get_if<DeltaAttentionOp>(&op.params)) {
    // Decay, S^T k, the update and S^T q of one token, each over the state.
    work.flops += 7.0 * static_cast<double>(delta->heads * delta->dim * delta->dim) * rows;
    CountAttention(graph, {.state = delta->state}, shape, kv_element_bytes, work);
  } else if (const auto* c = std::get_if<CountedOp>(&op.params)) {
    CountAttention(graph,
                   {.heads = static_cast<double>(c->heads),
                    .score_dim = static_cast<double>(c->score_dim),
                    .value_dim = static_cast<double>(c->value_dim),
                    .window = c->window,
                    .state = c->state},
                   shape, kv_element_bytes, work);
    work.flops += c->extra_flops_per_row * rows;
  } else if (std::holds_alternative<DepthReadOp>(op.params)) {
    // A sum of squares, a score and a weighted sum per source.
    work.flops += 6.0 * static_cast<double>(op.inputs.size()) * rows *
                  static_cast<double>(graph.value(op.inputs[0]).width);
  } else {
    work.flops += rows * StreamFlops(graph, op);
  }
  return work;
}

std::vector<Work> LayerWork(const Graph& graph, const WorkShape& shape, const TensorBytes& bytes,
                            int64_t kv_element_bytes) {
  std::vector<Work> layers(graph.layers.size());
  for (const Op& op : graph.ops) {
    layers[static_cast<size_t>(op.layer.value())] +=
        OpWork(graph, op, shape, bytes, kv_element_bytes);
  }
  return layers;
}

std::vector<double> BalanceWeights(const Graph& graph, Balance balance, const TensorBytes& bytes,
                                   int64_t kv_element_bytes, int64_t context) {
  if (balance == Balance::kLayers) {
    return LayerCountWeights(graph);
  }
  std::vector<double> weights;
  if (balance == Balance::kTime) {
    const WorkShape shape = DecodeShape(1, static_cast<double>(context));
    for (const Work& work : LayerWork(graph, shape, bytes, kv_element_bytes)) {
      weights.push_back(work.flops);
    }
    return weights;
  }
  const Inventory inventory = TakeInventory(graph, bytes, kv_element_bytes);
  for (int32_t l = 0; l < graph.num_layers(); ++l) {
    weights.push_back(static_cast<double>(inventory.layers[static_cast<size_t>(l)].weights_bytes) +
                      static_cast<double>(StateBytes(graph, l, l + 1, context, kv_element_bytes)));
  }
  return weights;
}

}  // namespace penstock::model
