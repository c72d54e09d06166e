#include "model/graph.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <type_traits>
#include <unordered_set>

#include "base/check.h"

namespace penstock::model {
namespace {

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;

// Sums over a graph (parameters, bytes) stay inside 64 bits.
constexpr int64_t kMaxParameters = int64_t{1} << 56;

// Calls f with every tensor id of an operation, in a fixed order; absent ones are invalid.
template <class Params, class F>
void VisitTensors(Params& params, const F& f) {
  const auto each = [&](auto& ids) {
    for (auto& id : ids) {
      f(id);
    }
  };
  const auto visit = [&](auto& p) {
    using P = std::remove_cvref_t<decltype(p)>;
    if constexpr (std::is_same_v<P, EmbedOp>) {
      f(p.table);
    } else if constexpr (std::is_same_v<P, RmsNormOp>) {
      f(p.weight);
    } else if constexpr (std::is_same_v<P, LinearOp>) {
      each(p.weights);
      each(p.biases);
    } else if constexpr (std::is_same_v<P, MoeOp>) {
      f(p.router);
      f(p.router_bias);
      each(p.gate);
      each(p.up);
      each(p.down);
    } else if constexpr (std::is_same_v<P, LatentAttentionOp>) {
      f(p.expand);
    } else if constexpr (std::is_same_v<P, ShortConvOp>) {
      each(p.weights);
    } else if constexpr (std::is_same_v<P, DeltaAttentionOp>) {
      f(p.a_log);
      f(p.dt_bias);
    } else if constexpr (std::is_same_v<P, DepthReadOp>) {
      f(p.query);
      f(p.key_norm);
    } else if constexpr (std::is_same_v<P, StreamWeightsOp>) {
      f(p.base);
      f(p.mix);
      f(p.norm);
      f(p.scale);
    } else if constexpr (std::is_same_v<P, CountedOp>) {
      each(p.weights);
    }
  };
  std::visit(visit, params);
}

bool OverLimit(const std::vector<WeightTensor>& tensors) {
  int64_t total = 0;
  for (const WeightTensor& tensor : tensors) {
    int64_t elements = 1;
    for (const int64_t size : tensor.shape) {
      if (__builtin_mul_overflow(elements, size, &elements)) {
        return true;
      }
    }
    if (__builtin_add_overflow(total, elements, &total) || total > kMaxParameters) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::vector<TensorId> TensorsOf(const Op& op) {
  std::vector<TensorId> ids;
  VisitTensors(op.params, [&](const TensorId& id) {
    if (id.valid()) {
      ids.push_back(id);
    }
  });
  return ids;
}

std::string_view OpName(const Op& op) {
  return std::visit(Overloaded{[](const EmbedOp&) { return "embed"; },
                               [](const RmsNormOp&) { return "rms_norm"; },
                               [](const LinearOp&) { return "linear"; },
                               [](const SplitOp&) { return "split"; },
                               [](const RopeOp&) { return "rope"; },
                               [](const AttentionOp&) { return "attention"; },
                               [](const LatentAttentionOp&) { return "latent_attention"; },
                               [](const ShortConvOp&) { return "short_conv"; },
                               [](const DeltaAttentionOp&) { return "delta_attention"; },
                               [](const GatedOp&) { return "gated"; },
                               [](const ActivationOp&) { return "activation"; },
                               [](const MoeOp&) { return "moe"; },
                               [](const AddOp&) { return "add"; },
                               [](const ScaleOp&) { return "scale"; },
                               [](const SoftCapOp&) { return "soft_cap"; },
                               [](const ConcatOp&) { return "concat"; },
                               [](const DepthReadOp&) { return "depth_read"; },
                               [](const StreamWeightsOp&) { return "stream_weights"; },
                               [](const StreamReadOp&) { return "stream_read"; },
                               [](const StreamWriteOp&) { return "stream_write"; },
                               [](const SelectRowsOp&) { return "select_rows"; },
                               [](const CountedOp&) { return "counted"; }},
                    op.params);
}

namespace {

// Old id -> new id, by the order of first use.
template <class Id>
class Renumbering {
 public:
  explicit Renumbering(size_t count) : ids_(count) {}

  // Keeps the id; true when it was not kept before.
  bool Keep(Id id) {
    Id& to = ids_[static_cast<size_t>(id.value())];
    if (to.valid()) {
      return false;
    }
    to = Id(next_++);
    return true;
  }

  void Apply(Id& id) const {
    if (id.valid()) {
      id = ids_[static_cast<size_t>(id.value())];
    }
  }

  void Apply(std::vector<Id>& ids) const {
    for (Id& id : ids) {
      Apply(id);
    }
  }

 private:
  std::vector<Id> ids_;
  int32_t next_ = 0;
};

// The index of the state of an operation that keeps one per sequence; else null.
int32_t* StateOf(OpParams& params) {
  return std::visit(
      [](auto& op) -> int32_t* {
        if constexpr (requires { op.state; }) {
          return op.state >= 0 ? &op.state : nullptr;
        } else {
          return nullptr;
        }
      },
      params);
}

// Operations that the logits depend on.
std::vector<bool> NeededOps(const Graph& graph) {
  std::vector<bool> value(graph.values.size(), false);
  std::vector<bool> op(graph.ops.size(), false);
  value[static_cast<size_t>(graph.logits.value())] = true;
  for (size_t i = graph.ops.size(); i-- > 0;) {
    for (const ValueId id : graph.ops[i].outputs) {
      op[i] = op[i] || value[static_cast<size_t>(id.value())];
    }
    for (const ValueId id : graph.ops[i].inputs) {
      value[static_cast<size_t>(id.value())] = value[static_cast<size_t>(id.value())] || op[i];
    }
  }
  return op;
}

}  // namespace

Graph WithoutAuxiliaryHeads(const Graph& graph) {
  const std::vector<bool> needed = NeededOps(graph);
  Renumbering<ValueId> values(graph.values.size());
  Renumbering<TensorId> tensors(graph.tensors.size());
  Graph out;
  values.Keep(graph.tokens);
  out.values.push_back(graph.value(graph.tokens));
  for (const Layer& layer : graph.layers) {
    const auto first = static_cast<int32_t>(out.ops.size());
    const LayerId id(static_cast<int32_t>(out.layers.size()));
    for (int32_t i = layer.first_op; i < layer.last_op; ++i) {
      if (!needed[static_cast<size_t>(i)]) {
        continue;
      }
      Op op = graph.ops[static_cast<size_t>(i)];
      for (const TensorId tensor : TensorsOf(op)) {
        if (tensors.Keep(tensor)) {
          out.tensors.push_back(graph.tensor(tensor));
        }
      }
      for (const ValueId value : op.outputs) {
        values.Keep(value);
        out.values.push_back(graph.value(value));
        out.values.back().producer = id;
      }
      op.layer = id;
      values.Apply(op.inputs);
      values.Apply(op.outputs);
      VisitTensors(op.params, [&](TensorId& tensor) { tensors.Apply(tensor); });
      if (int32_t* state = StateOf(op.params)) {
        out.states.push_back(graph.states[static_cast<size_t>(*state)]);
        out.states.back().layer = id;
        *state = static_cast<int32_t>(out.states.size()) - 1;
      }
      out.ops.push_back(std::move(op));
    }
    if (static_cast<int32_t>(out.ops.size()) > first) {
      out.layers.push_back(layer);
      out.layers.back().first_op = first;
      out.layers.back().last_op = static_cast<int32_t>(out.ops.size());
    }
  }
  out.tokens = ValueId(0);
  out.logits = graph.logits;
  values.Apply(out.logits);
  out.losses = {{.name = "main", .logits = out.logits}};
  return out;
}

GraphBuilder::GraphBuilder() {
  graph_.values.push_back({.name = "tokens", .type = ValueType::kTokens, .width = 1});
  graph_.tokens = ValueId(0);
}

void GraphBuilder::Fail(std::string_view op, std::string_view what) {
  if (!first_error_) {
    const std::string_view layer =
        graph_.layers.empty() ? std::string_view("(no layer)") : graph_.layers.back().name;
    first_error_ =
        MakeError(ErrorCode::kInvalidArgument, "[model.graph] {}: {}: {}", layer, op, what);
  }
}

void GraphBuilder::BeginLayer(LayerKind kind, std::string name) {
  const auto op = static_cast<int32_t>(graph_.ops.size());
  graph_.layers.push_back({.name = std::move(name), .kind = kind, .first_op = op, .last_op = op});
  const size_t count = graph_.layers.size();
  if ((kind == LayerKind::kEmbedding) != (count == 1)) {
    Fail("layer", "the embedding is the first layer, and only that");
  } else if (count > 1 && graph_.layers[count - 2].kind == LayerKind::kHead) {
    Fail("layer", "stands after the head, which is the last layer");
  }
}

TensorId GraphBuilder::Tensor(std::string name, std::vector<int64_t> shape, TensorRole role,
                              bool routed_expert, bool replicated) {
  const auto found = tensor_ids_.find(name);
  if (found != tensor_ids_.end()) {
    const WeightTensor& old = graph_.tensor(found->second);
    const size_t layer = tensor_layers_[static_cast<size_t>(found->second.value())];
    const std::string first = layer < graph_.layers.size() ? graph_.layers[layer].name : "no layer";
    if (old.shape != shape) {
      Fail(name, fmt::format("has shape [{}] here and [{}] in {}, which shares it",
                             fmt::join(shape, ", "), fmt::join(old.shape, ", "), first));
    } else if ((old.role == TensorRole::kVector) != (role == TensorRole::kVector)) {
      const bool vector = role == TensorRole::kVector;
      Fail(name, fmt::format("is a {} here and a {} in {}, which shares it: one would decay with "
                             "the optimizer's matrices, the other not",
                             vector ? "vector" : "matrix", vector ? "matrix" : "vector", first));
    }
    return found->second;
  }
  if (shape.empty() || shape.size() > 4 || (role != TensorRole::kVector && shape.size() != 2)) {
    Fail(name, fmt::format("has {} dimensions, wanted 1 to 4 for a vector and 2 for a matrix",
                           shape.size()));
  }
  for (const int64_t size : shape) {
    if (size < 1) {
      Fail(name, fmt::format("has shape [{}], wanted sizes from 1", fmt::join(shape, ", ")));
    }
  }
  const TensorId id(static_cast<int32_t>(graph_.tensors.size()));
  tensor_ids_.emplace(name, id);
  tensor_layers_.push_back(graph_.layers.empty() ? 0 : graph_.layers.size() - 1);
  graph_.tensors.push_back({.name = std::move(name),
                            .shape = std::move(shape),
                            .role = role,
                            .routed_expert = routed_expert,
                            .replicated = replicated});
  return id;
}

ValueId GraphBuilder::NewValue(std::string name, int64_t width) {
  const ValueId id(static_cast<int32_t>(graph_.values.size()));
  graph_.values.push_back({.name = std::move(name),
                           .type = ValueType::kActivation,
                           .width = width,
                           .producer = LayerId(static_cast<int32_t>(graph_.layers.size()) - 1)});
  return id;
}

void GraphBuilder::AddOp(std::vector<ValueId> inputs, std::vector<ValueId> outputs,
                         OpParams params) {
  if (graph_.layers.empty()) {
    Fail("operation", "stands before the first layer; call BeginLayer");
    return;
  }
  graph_.ops.push_back({.layer = LayerId(static_cast<int32_t>(graph_.layers.size()) - 1),
                        .inputs = std::move(inputs),
                        .outputs = std::move(outputs),
                        .params = std::move(params)});
  graph_.layers.back().last_op = static_cast<int32_t>(graph_.ops.size());
}

bool GraphBuilder::CheckRead(std::string_view op, ValueId id) {
  if (!id.valid() || id.value() >= std::ssize(graph_.values)) {
    if (!first_error_ && id.valid() && !graph_.layers.empty()) {
      later_read_ = {id, ValueId(static_cast<int32_t>(graph_.values.size()) - 1),
                     LayerId(static_cast<int32_t>(graph_.layers.size()) - 1), std::string(op)};
    }
    Fail(op,
         fmt::format("reads value {}, which is not written yet; a layer may read earlier values "
                     "only",
                     id.value()));
    return false;
  }
  if (graph_.value(id).type != ValueType::kActivation) {
    Fail(op, fmt::format("reads '{}', which holds token ids, not an activation",
                         graph_.value(id).name));
    return false;
  }
  return true;
}

bool GraphBuilder::CheckTensor(std::string_view op, TensorId id,
                               std::initializer_list<int64_t> shape) {
  if (!id.valid() || id.value() >= std::ssize(graph_.tensors)) {
    Fail(op, "names a weight tensor that does not exist");
    return false;
  }
  const WeightTensor& tensor = graph_.tensor(id);
  if (!std::equal(tensor.shape.begin(), tensor.shape.end(), shape.begin(), shape.end())) {
    Fail(op, fmt::format("'{}' has shape [{}], wanted [{}]", tensor.name,
                         fmt::join(tensor.shape, ", "), fmt::join(shape, ", ")));
    return false;
  }
  return true;
}

ValueId GraphBuilder::Embed(TensorId table, float scale, std::string name, int32_t shift) {
  int64_t width = 0;
  if (!table.valid() || table.value() >= std::ssize(graph_.tensors) ||
      graph_.tensor(table).shape.size() != 2) {
    Fail(name, "an embedding needs a table [vocabulary, width]");
  } else {
    width = graph_.tensor(table).shape[1];
  }
  const ValueId out = NewValue(std::move(name), width);
  AddOp({graph_.tokens}, {out}, EmbedOp{.table = table, .scale = scale, .shift = shift});
  return out;
}

ValueId GraphBuilder::RmsNorm(ValueId x, const RmsNormOp& params, std::string name) {
  if (CheckRead(name, x)) {
    const int64_t group = params.group > 0 ? params.group : width(x);
    if (params.group < 0 || width(x) % group != 0) {
      Fail(name,
           fmt::format("groups of {} columns do not divide the width {}", params.group, width(x)));
    } else {
      CheckTensor(name, params.weight, {group});
    }
    if (!(params.epsilon > 0.0F)) {
      Fail(name, fmt::format("epsilon is {}, wanted a positive number", params.epsilon));
    }
  }
  const ValueId out = NewValue(std::move(name), width(x));
  AddOp({x}, {out}, params);
  return out;
}

std::vector<ValueId> GraphBuilder::Linear(ValueId x, const LinearOp& params,
                                          const std::vector<std::string>& names) {
  const std::string_view first = names.empty() ? std::string_view("linear") : names.front();
  if (params.weights.empty() || names.size() != params.weights.size() ||
      (!params.biases.empty() && params.biases.size() != params.weights.size())) {
    Fail(first, fmt::format("{} names, {} weights and {} biases: wanted as many names as weights, "
                            "and none or as many biases",
                            names.size(), params.weights.size(), params.biases.size()));
    return std::vector<ValueId>(names.size());
  }
  const bool readable = CheckRead(first, x);
  std::vector<ValueId> outputs;
  for (size_t i = 0; i < names.size(); ++i) {
    const TensorId weight = params.weights[i];
    int64_t rows = 0;
    if (weight.valid() && weight.value() < std::ssize(graph_.tensors)) {
      rows = graph_.tensor(weight).shape.front();
    }
    if (readable) {
      CheckTensor(names[i], weight, {rows, width(x)});
    }
    if (!params.biases.empty() && params.biases[i].valid()) {
      CheckTensor(names[i], params.biases[i], {rows});
    }
    outputs.push_back(NewValue(names[i], rows));
  }
  AddOp({x}, outputs, params);
  return outputs;
}

std::vector<ValueId> GraphBuilder::Split(ValueId x, const SplitOp& params,
                                         const std::vector<std::string>& names) {
  const std::string_view first = names.empty() ? std::string_view("split") : names.front();
  if (names.empty() || names.size() != params.widths.size()) {
    Fail(first, fmt::format("{} names for {} parts", names.size(), params.widths.size()));
    return std::vector<ValueId>(names.size());
  }
  int64_t sum = 0;
  std::vector<ValueId> outputs;
  const bool readable = CheckRead(first, x);
  for (size_t i = 0; i < names.size(); ++i) {
    if (params.widths[i] < 1 || __builtin_add_overflow(sum, params.widths[i], &sum)) {
      Fail(names[i], fmt::format("a part of width {}, wanted at least 1", params.widths[i]));
      break;
    }
    outputs.push_back(NewValue(names[i], params.widths[i]));
  }
  outputs.resize(names.size());
  if (readable && sum != width(x)) {
    Fail(first,
         fmt::format("parts of {} columns together split a value of width {}", sum, width(x)));
  }
  AddOp({x}, outputs, params);
  return outputs;
}

ValueId GraphBuilder::Rope(ValueId x, const RopeOp& params, std::string name) {
  if (CheckRead(name, x)) {
    if (params.heads < 1 || params.head_dim < 1 || params.heads * params.head_dim != width(x)) {
      Fail(name, fmt::format("{} heads of {} do not make the width {}", params.heads,
                             params.head_dim, width(x)));
    }
    if (params.rotary_dim < 2 || params.rotary_dim % 2 != 0 || params.offset < 0 ||
        params.rotary_dim > params.head_dim - params.offset) {
      Fail(name, fmt::format("rotates {} of {} columns, wanted an even number from 2 to {}",
                             params.rotary_dim, params.head_dim, params.head_dim));
    }
    const RopeTable& table = params.table;
    const auto pairs = static_cast<size_t>(params.rotary_dim / 2);
    if (table.inverse_frequencies.size() != pairs ||
        (!table.long_inverse_frequencies.empty() &&
         table.long_inverse_frequencies.size() != pairs)) {
      Fail(name, fmt::format("{} (and {}) inverse frequencies, wanted {}",
                             table.inverse_frequencies.size(),
                             table.long_inverse_frequencies.size(), pairs));
    }
  }
  const ValueId out = NewValue(std::move(name), width(x));
  AddOp({x}, {out}, params);
  return out;
}

ValueId GraphBuilder::Attention(ValueId q, ValueId k, ValueId v, AttentionOp params,
                                std::string name) {
  const bool readable = CheckRead(name, q) && CheckRead(name, k) && CheckRead(name, v);
  if (params.heads < 1 || params.kv_heads < 1 || params.heads % params.kv_heads != 0) {
    Fail(name, fmt::format("{} heads over {} key-value heads, wanted a multiple", params.heads,
                           params.kv_heads));
  } else if (readable && (params.heads * params.head_dim != width(q) ||
                          params.kv_heads * params.head_dim != width(k) ||
                          params.kv_heads * params.value_dim != width(v))) {
    Fail(name,
         fmt::format("widths of q, k, v are {}, {}, {}; {} heads of {} over {} key-value "
                     "heads of {} and {} want {}, {}, {}",
                     width(q), width(k), width(v), params.heads, params.head_dim, params.kv_heads,
                     params.head_dim, params.value_dim, params.heads * params.head_dim,
                     params.kv_heads * params.head_dim, params.kv_heads * params.value_dim));
  }
  if (params.window < 0) {
    Fail(name, fmt::format("window {}, wanted 0 (none) or more", params.window));
  }
  params.state = static_cast<int32_t>(graph_.states.size());
  graph_.states.push_back({.kind = LayerState::Kind::kPagedKv,
                           .layer = LayerId(static_cast<int32_t>(graph_.layers.size()) - 1),
                           .key_width = params.kv_heads * params.head_dim,
                           .value_width = params.kv_heads * params.value_dim,
                           .window = params.window,
                           .heads = params.kv_heads});
  const ValueId out = NewValue(std::move(name), params.heads * params.value_dim);
  AddOp({q, k, v}, {out}, params);
  return out;
}

ValueId GraphBuilder::Gated(ValueId gate, ValueId up, const GatedOp& params, std::string name) {
  if (CheckRead(name, gate) && CheckRead(name, up) && width(gate) != width(up)) {
    Fail(name, fmt::format("gate has width {}, up {}", width(gate), width(up)));
  }
  if (params.activation == Activation::kSitu &&
      !(params.beta > 0.0F && params.linear_beta >= 0.0F)) {
    Fail(name, fmt::format("beta {} and linear beta {}, wanted a positive number and 0 or more",
                           params.beta, params.linear_beta));
  }
  const ValueId out = NewValue(std::move(name), width(gate));
  AddOp({gate, up}, {out}, params);
  return out;
}

ValueId GraphBuilder::Act(ValueId x, const ActivationOp& params, std::string name) {
  CheckRead(name, x);
  const ValueId out = NewValue(std::move(name), width(x));
  AddOp({x}, {out}, params);
  return out;
}

ValueId GraphBuilder::Moe(ValueId x, const MoeOp& params, std::string name, ValueId router) {
  const bool apart = router.valid() && router != x;
  const ValueId read = apart ? router : x;
  const auto experts = std::ssize(params.gate);
  if (CheckRead(name, x) && CheckRead(name, read)) {
    const bool grouped = params.groups != 1 || params.chosen_groups != 1;
    if (grouped && (params.groups < 1 || params.chosen_groups < 1 ||
                    params.chosen_groups > params.groups || experts % params.groups != 0 ||
                    params.chosen > experts / params.groups * params.chosen_groups)) {
      Fail(name, fmt::format("chooses {} experts from {} of {} groups of {} experts", params.chosen,
                             params.chosen_groups, params.groups, experts));
    }
    if (experts < 1 || std::ssize(params.up) != experts || std::ssize(params.down) != experts) {
      Fail(name, fmt::format("{} gate, {} up and {} down matrices, wanted one of each per expert",
                             params.gate.size(), params.up.size(), params.down.size()));
    } else if (params.chosen < 1 || params.chosen > experts) {
      Fail(name, fmt::format("chooses {} of {} experts", params.chosen, experts));
    } else if (CheckTensor(name, params.router, {experts, width(read)}) &&
               (!params.router_bias.valid() || CheckTensor(name, params.router_bias, {experts}))) {
      for (size_t e = 0; e < params.gate.size(); ++e) {
        const TensorId gate = params.gate[e];
        const int64_t inner = gate.valid() && gate.value() < std::ssize(graph_.tensors)
                                  ? graph_.tensor(gate).shape.front()
                                  : 0;
        if (!CheckTensor(name, gate, {inner, width(x)}) ||
            !CheckTensor(name, params.up[e], {inner, width(x)}) ||
            !CheckTensor(name, params.down[e], {width(x), inner})) {
          break;
        }
      }
    }
  }
  const ValueId out = NewValue(std::move(name), width(x));
  AddOp(apart ? std::vector<ValueId>{x, router} : std::vector<ValueId>{x}, {out}, params);
  return out;
}

ValueId GraphBuilder::Add(ValueId a, ValueId b, std::string name) {
  if (CheckRead(name, a) && CheckRead(name, b) && width(a) != width(b)) {
    Fail(name, fmt::format("adds values of width {} and {}", width(a), width(b)));
  }
  const ValueId out = NewValue(std::move(name), width(a));
  AddOp({a, b}, {out}, model::AddOp{});
  return out;
}

ValueId GraphBuilder::Scale(ValueId x, float factor, std::string name) {
  CheckRead(name, x);
  const ValueId out = NewValue(std::move(name), width(x));
  AddOp({x}, {out}, ScaleOp{.factor = factor});
  return out;
}

ValueId GraphBuilder::SoftCap(ValueId x, float cap, std::string name) {
  CheckRead(name, x);
  if (!(cap > 0.0F)) {
    Fail(name, fmt::format("soft cap {}, wanted a positive number", cap));
  }
  const ValueId out = NewValue(std::move(name), width(x));
  AddOp({x}, {out}, SoftCapOp{.cap = cap});
  return out;
}

ValueId GraphBuilder::DepthRead(const std::vector<ValueId>& sources, const DepthReadOp& params,
                                std::string name) {
  if (sources.empty()) {
    Fail(name, "reads no source, wanted at least one");
    return NewValue(std::move(name), 0);
  }
  for (const ValueId id : sources) {
    if (CheckRead(name, id) && width(id) != width(sources[0])) {
      Fail(name, fmt::format("sources '{}' and '{}' have widths {} and {}, wanted one width",
                             graph_.value(sources[0]).name, graph_.value(id).name,
                             width(sources[0]), width(id)));
    }
  }
  CheckTensor(name, params.query, {1, width(sources[0])});
  if (params.key_norm.valid()) {
    CheckTensor(name, params.key_norm, {width(sources[0])});
  }
  if (!(params.epsilon > 0.0F)) {
    Fail(name, fmt::format("epsilon is {}, wanted a positive number", params.epsilon));
  }
  const ValueId out = NewValue(std::move(name), width(sources[0]));
  AddOp(sources, {out}, params);
  return out;
}

ValueId GraphBuilder::Concat(const std::vector<ValueId>& parts, std::string name) {
  if (parts.empty()) {
    Fail(name, "joins no value, wanted at least one");
  }
  int64_t sum = 0;
  for (const ValueId id : parts) {
    CheckRead(name, id);
    sum += width(id);
  }
  const ValueId out = NewValue(std::move(name), sum);
  AddOp(parts, {out}, ConcatOp{});
  return out;
}

// Whether `streams` has `count` streams; their width, or 0.
int64_t GraphBuilder::CheckStreams(std::string_view op, ValueId streams, int64_t count) {
  if (!CheckRead(op, streams)) {
    return 0;
  }
  if (count < 1 || count > kMaxStreams || width(streams) % count != 0) {
    Fail(op, fmt::format("{} streams in a value of width {}, wanted 1 to {} that divide it", count,
                         width(streams), kMaxStreams));
    return 0;
  }
  return width(streams) / count;
}

ValueId GraphBuilder::StreamWeights(ValueId streams, const StreamWeightsOp& params,
                                    std::string name) {
  const int64_t n = params.streams;
  const int64_t each = CheckStreams(name, streams, n);
  if (each > 0) {
    CheckTensor(name, params.base, {n, n + 2});
    if (params.mix.valid()) {
      CheckTensor(name, params.mix, {n + 2, each});
      CheckTensor(name, params.norm, {each});
      CheckTensor(name, params.scale, {2});
    }
    if (!(params.epsilon > 0.0F)) {
      Fail(name, fmt::format("epsilon is {}, wanted a positive number", params.epsilon));
    }
  }
  const ValueId out = NewValue(std::move(name), n * (n + 2));
  AddOp({streams}, {out}, params);
  return out;
}

ValueId GraphBuilder::StreamRead(ValueId streams, ValueId weights, int64_t count,
                                 std::string name) {
  const int64_t each = CheckStreams(name, streams, count);
  if (CheckRead(name, weights) && width(weights) != count * (count + 2)) {
    Fail(name, fmt::format("coefficients of width {} for {} streams, wanted {}", width(weights),
                           count, count * (count + 2)));
  }
  const ValueId out = NewValue(std::move(name), each);
  AddOp({streams, weights}, {out}, StreamReadOp{.streams = count});
  return out;
}

ValueId GraphBuilder::StreamWrite(ValueId streams, ValueId weights, ValueId y, int64_t count,
                                  std::string name) {
  const int64_t each = CheckStreams(name, streams, count);
  if (CheckRead(name, weights) && width(weights) != count * (count + 2)) {
    Fail(name, fmt::format("coefficients of width {} for {} streams, wanted {}", width(weights),
                           count, count * (count + 2)));
  }
  if (CheckRead(name, y) && width(y) != each) {
    Fail(name, fmt::format("adds a value of width {} to streams of width {}", width(y), each));
  }
  const ValueId out = NewValue(std::move(name), width(streams));
  AddOp({streams, weights, y}, {out}, StreamWriteOp{.streams = count});
  return out;
}

ValueId GraphBuilder::SelectRows(ValueId x, std::string name) {
  CheckRead(name, x);
  const ValueId out = NewValue(std::move(name), width(x));
  AddOp({x}, {out}, SelectRowsOp{});
  return out;
}

std::vector<ValueId> GraphBuilder::Counted(
    const std::vector<ValueId>& inputs, CountedOp params, std::optional<LayerState> state,
    const std::vector<std::pair<std::string, int64_t>>& out) {
  const std::string name = params.kind.empty() ? "counted" : params.kind;
  for (const ValueId id : inputs) {
    if (id != graph_.tokens) {
      CheckRead(name, id);
    }
  }
  for (const TensorId id : params.weights) {
    if (!id.valid() || id.value() >= std::ssize(graph_.tensors)) {
      Fail(name, "names a weight tensor that does not exist");
    }
  }
  if (params.experts < 0 || params.chosen < 0 || params.chosen > params.experts) {
    Fail(name, fmt::format("chooses {} of {} experts", params.chosen, params.experts));
  }
  params.state = -1;
  if (state) {
    params.state = static_cast<int32_t>(graph_.states.size());
    state->layer = LayerId(static_cast<int32_t>(graph_.layers.size()) - 1);
    graph_.states.push_back(*state);
  }
  std::vector<ValueId> outputs;
  for (const auto& [value, width] : out) {
    if (width < 1) {
      Fail(value, fmt::format("width {}, wanted at least 1", width));
    }
    outputs.push_back(NewValue(value, width));
  }
  AddOp(inputs, outputs, std::move(params));
  return outputs;
}

void GraphBuilder::CheckLosses(ValueId logits) {
  for (const LossTerm& term : losses_) {
    if (CheckRead(term.name, term.logits) && width(term.logits) != width(logits)) {
      Fail(term.name, fmt::format("logits of width {}, wanted the vocabulary ({})",
                                  width(term.logits), width(logits)));
    }
    if (!(term.weight >= 0.0F) || term.shift < 0) {
      Fail(term.name,
           fmt::format("weight {} and shift {}, wanted them from 0", term.weight, term.shift));
    }
  }
}

// A value that was read before it was written has a name and a layer by now.
void GraphBuilder::NameLaterRead() {
  if (!later_read_ || later_read_->value.value() >= std::ssize(graph_.values)) {
    return;
  }
  const auto layer = [&](LayerId id) -> const std::string& {
    return graph_.layers[static_cast<size_t>(id.value())].name;
  };
  const Value& value = graph_.value(later_read_->value);
  first_error_ = MakeError(
      ErrorCode::kInvalidArgument,
      "[model.graph] {}: {}: reads '{}', which {} writes later; a layer may read earlier values "
      "only, the last one here is '{}'",
      layer(later_read_->layer), later_read_->op, value.name, layer(value.producer),
      graph_.value(later_read_->last).name);
}

Result<Graph> GraphBuilder::Build(ValueId logits) && {
  NameLaterRead();
  if (!first_error_) {
    if (graph_.layers.size() < 2 || graph_.layers.back().kind != LayerKind::kHead) {
      Fail("graph", "wanted an embedding first and a head last");
    } else if (CheckRead("logits", logits) &&
               graph_.value(logits).producer.value() != graph_.num_layers() - 1) {
      Fail("logits", "are not written by the head");
    } else if (OverLimit(graph_.tensors)) {
      Fail("graph", fmt::format("more than {} parameters", kMaxParameters));
    }
    std::unordered_set<std::string_view> names;
    for (const Value& value : graph_.values) {
      if (!names.insert(value.name).second) {
        Fail(value.name, "two values have this name");
      }
    }
  }
  CheckLosses(logits);
  if (first_error_) {
    return *std::move(first_error_);
  }
  graph_.logits = logits;
  graph_.losses = {{.name = "main", .logits = logits}};
  graph_.losses.insert(graph_.losses.end(), losses_.begin(), losses_.end());
  return std::move(graph_);
}

}  // namespace penstock::model
