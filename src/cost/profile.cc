#include "cost/profile.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <unordered_map>

namespace penstock::cost {
namespace {

using model::Graph;
using model::Op;
using model::TensorRole;
using model::WeightTensor;

double Elements(const WeightTensor& tensor) {
  double n = 1;
  for (const int64_t size : tensor.shape) {
    n *= static_cast<double>(size);
  }
  return n;
}

// Which operation wrote a value, and which values feed keys and values of attention.
struct Flow {
  std::vector<int32_t> writer;     // by value; -1: the input
  std::vector<int64_t> key_heads;  // by value: kv heads of the attention that it feeds; 0: none
  std::vector<bool> behind_tp;     // by value: divided over tensor-parallel ranks
};

// Marks the values behind keys and values, back to the product that made them.
void MarkKeys(const Graph& graph, Flow& flow, ValueId value, int64_t heads) {
  while (value.valid() && value != graph.tokens) {
    flow.key_heads[static_cast<size_t>(value.value())] = heads;
    const int32_t w = flow.writer[static_cast<size_t>(value.value())];
    if (w < 0) {
      return;
    }
    const Op& op = graph.ops[static_cast<size_t>(w)];
    if (!std::holds_alternative<model::RmsNormOp>(op.params) &&
        !std::holds_alternative<model::RopeOp>(op.params) &&
        !std::holds_alternative<model::ScaleOp>(op.params)) {
      return;
    }
    value = op.inputs[0];
  }
}

Flow FindFlow(const Graph& graph) {
  Flow flow;
  flow.writer.assign(graph.values.size(), -1);
  flow.key_heads.assign(graph.values.size(), 0);
  flow.behind_tp.assign(graph.values.size(), false);
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    for (const ValueId out : graph.ops[i].outputs) {
      flow.writer[static_cast<size_t>(out.value())] = static_cast<int32_t>(i);
    }
  }
  for (const Op& op : graph.ops) {
    if (const auto* attention = std::get_if<model::AttentionOp>(&op.params)) {
      MarkKeys(graph, flow, op.inputs[1], attention->kv_heads);
      MarkKeys(graph, flow, op.inputs[2], attention->kv_heads);
    }
  }
  // A product's output is divided if its input was not (column then row); what follows keeps it.
  for (const Op& op : graph.ops) {
    bool divided = false;
    if (const auto* linear = std::get_if<model::LinearOp>(&op.params)) {
      const bool input = flow.behind_tp[static_cast<size_t>(op.inputs[0].value())];
      divided = !input && !linear->weights.empty() && !graph.tensor(linear->weights[0]).replicated;
    } else if (std::holds_alternative<model::AddOp>(op.params) ||
               std::holds_alternative<model::MoeOp>(op.params) ||
               std::holds_alternative<model::EmbedOp>(op.params)) {
      divided = false;
    } else {
      for (const ValueId in : op.inputs) {
        divided = divided || flow.behind_tp[static_cast<size_t>(in.value())];
      }
      if (std::holds_alternative<model::LatentAttentionOp>(op.params) ||
          std::holds_alternative<model::DeltaAttentionOp>(op.params)) {
        divided = true;
      } else if (const auto* counted = std::get_if<model::CountedOp>(&op.params)) {
        divided = counted->heads > 0 || (divided && counted->experts == 0);
      }
    }
    for (const ValueId out : op.outputs) {
      flow.behind_tp[static_cast<size_t>(out.value())] = divided;
    }
  }
  return flow;
}

class Builder {
 public:
  Builder(const Graph& graph, const Flow& flow, double hidden, const HeldTensors& held)
      : graph_(graph), flow_(flow), hidden_(hidden), held_(held) {}

  LayerProfile Build(const model::Layer& layer) {
    out_ = LayerProfile{};
    out_.kind = layer.kind;
    out_.width = hidden_;
    saved_inputs_.clear();
    seen_tensors_.clear();
    bool attends = false;
    bool feeds_forward = false;
    for (int32_t i = layer.first_op; i < layer.last_op; ++i) {
      const Op& op = graph_.ops[static_cast<size_t>(i)];
      op_ = i - layer.first_op;
      Take(op, attends, feeds_forward);
    }
    out_.collectives = (attends ? 1 : 0) + (feeds_forward ? 1 : 0);
    if (layer.kind == model::LayerKind::kEmbedding) {
      out_.collectives = 1;
    }
    return out_;
  }

 private:
  double Width(ValueId id) const { return static_cast<double>(graph_.value(id).width); }

  bool Divided(ValueId id) const { return flow_.behind_tp[static_cast<size_t>(id.value())]; }

  // Bytes kept of a value for the backward pass; a value that several operations keep counts once.
  void Keep(ValueId id, double bytes_per_element = 2) {
    if (!saved_inputs_.insert(id.value()).second) {
      return;
    }
    (Divided(id) ? out_.saved.split : out_.saved.whole) += bytes_per_element * Width(id);
  }

  void Touch(const Op& op) {
    out_.launches += 1;
    for (const auto* list : {&op.inputs, &op.outputs}) {
      for (const ValueId id : *list) {
        (Divided(id) ? out_.split_row_elements : out_.whole_row_elements) += Width(id);
      }
    }
  }

  void AddMatrix(TensorId id, const Op& op, size_t output) {
    const WeightTensor& tensor = graph_.tensor(id);
    if (tensor.role == TensorRole::kVector) {
      out_.vector_parameters += Elements(tensor);
      return;
    }
    Product product;
    product.outputs = static_cast<double>(tensor.shape[0]);
    product.inputs = static_cast<double>(tensor.shape[1]);
    if (tensor.replicated) {
      product.shard = Product::Shard::kWhole;
    } else if (output < op.outputs.size()) {
      const int64_t heads = flow_.key_heads[static_cast<size_t>(op.outputs[output].value())];
      if (heads > 0) {
        product.shard = Product::Shard::kHeads;
        product.heads = heads;
      }
    }
    if (out_.kind == model::LayerKind::kHead) {
      product.role = Product::Role::kHead;
    }
    product.op = op_;
    SetStored(id, product);
    out_.products.push_back(product);
  }

  void SetStored(TensorId id, Product& product) const {
    if (held_) {
      if (const std::optional<HeldTensor> held = held_(id); held) {
        product.stored = held->type;
        product.stored_bytes = held->bytes;
      }
    }
  }

  void AddState(int32_t state) {
    if (state < 0) {
      return;
    }
    const model::LayerState& s = graph_.states[static_cast<size_t>(state)];
    StateWork work;
    work.kind = s.kind;
    work.elements_per_token = static_cast<double>(s.key_width + s.value_width);
    work.sequence_bytes = static_cast<double>(s.sequence_bytes);
    work.window = static_cast<double>(s.window);
    work.heads = s.heads;
    out_.states.push_back(work);
  }

  void Take(const Op& op, bool& attends, bool& feeds_forward);
  void TakeMoe(const model::MoeOp& p, const Op& op);
  void TakeDepthRead(const model::DepthReadOp& p, const Op& op);
  void TakeLatentAttention(const model::LatentAttentionOp& p, const Op& op);
  void TakeShortConv(const model::ShortConvOp& p, const Op& op);
  void TakeDeltaAttention(const model::DeltaAttentionOp& p, const Op& op);
  void TakeCounted(const model::CountedOp& p, const Op& op, bool& attends, bool& feeds_forward);

  const Graph& graph_;
  const Flow& flow_;
  double hidden_ = 0;
  const HeldTensors& held_;
  int32_t op_ = 0;
  LayerProfile out_;
  std::set<int32_t> saved_inputs_;
  std::set<int32_t> seen_tensors_;
};

void Builder::TakeMoe(const model::MoeOp& p, const Op& op) {
  const WeightTensor& router = graph_.tensor(p.router);
  Product product{static_cast<double>(router.shape[0]), static_cast<double>(router.shape[1])};
  product.shard = Product::Shard::kWhole;
  product.role = Product::Role::kRouter;
  product.op = op_;
  out_.products.push_back(product);
  if (p.router_bias.valid()) {
    out_.vector_parameters += Elements(graph_.tensor(p.router_bias));
  }
  ExpertWork& e = out_.experts;
  e.experts = static_cast<double>(p.gate.size());
  e.chosen = static_cast<double>(p.chosen);
  for (const auto* list : {&p.gate, &p.up, &p.down}) {
    for (const TensorId id : *list) {
      e.parameters += Elements(graph_.tensor(id));
    }
  }
  e.products = 3;
  e.inputs = Width(op.inputs[0]);
  e.inner = static_cast<double>(graph_.tensor(p.gate.front()).shape[0]);
  Keep(op.inputs[0]);
  out_.saved.routed += e.chosen * (2 * e.inputs + 3 * 2 * e.inner + 2 * e.inputs);
  out_.launches += 6;
  out_.whole_row_elements += 2 * e.chosen * e.inputs;
}

// Per source a sum of squares, a score and a weighted sum. The backward pass computes the weights
// again; of the sources, the last one (the running sum) is this layer's own, the others are kept
// once by whoever wrote them, not by each reader.
void Builder::TakeDepthRead(const model::DepthReadOp& p, const Op& op) {
  for (const TensorId id : {p.query, p.key_norm}) {
    if (id.valid()) {
      out_.vector_parameters += Elements(graph_.tensor(id));
    }
  }
  out_.extra_flops_per_row += 6 * static_cast<double>(op.inputs.size()) * Width(op.inputs[0]);
  Keep(op.inputs.back());
  Touch(op);
}

void Builder::TakeLatentAttention(const model::LatentAttentionOp& p, const Op& op) {
  const WeightTensor& expand = graph_.tensor(p.expand);
  out_.products.push_back(
      {static_cast<double>(expand.shape[0]), static_cast<double>(expand.shape[1])});
  const auto heads = static_cast<double>(p.heads);
  out_.attention.push_back({heads, static_cast<double>(p.nope + p.rope),
                            static_cast<double>(p.value_dim), 0,
                            static_cast<double>(p.latent + p.rope), static_cast<double>(p.latent)});
  out_.saved.scores += 5 * heads;
  out_.saved.stats += 4 * heads;
  // q, and k and v as expanded for the backward pass.
  out_.saved.split += 2.0 * heads * static_cast<double>(2 * (p.nope + p.rope) + p.value_dim);
  AddState(p.state);
  Touch(op);
}

void Builder::TakeShortConv(const model::ShortConvOp& p, const Op& op) {
  for (const TensorId id : p.weights) {
    out_.vector_parameters += Elements(graph_.tensor(id));
  }
  for (const ValueId id : op.inputs) {
    out_.extra_flops_per_row += 2.0 * Width(id) * static_cast<double>(p.taps);
    Keep(id);
  }
  AddState(p.state);
  Touch(op);
}

void Builder::TakeDeltaAttention(const model::DeltaAttentionOp& p, const Op& op) {
  out_.vector_parameters += Elements(graph_.tensor(p.a_log)) + Elements(graph_.tensor(p.dt_bias));
  // The recurrence of one token and head: decay, S^T k, the update, S^T q, each over the state.
  out_.extra_flops_per_row += 7.0 * static_cast<double>(p.heads * p.dim * p.dim);
  for (const ValueId id : op.inputs) {
    Keep(id);
  }
  AddState(p.state);
  Touch(op);
}

void Builder::TakeCounted(const model::CountedOp& p, const Op& op, bool& attends,
                          bool& feeds_forward) {
  double matrices = 0;
  double inner = 0;
  for (const TensorId id : p.weights) {
    const WeightTensor& tensor = graph_.tensor(id);
    if (tensor.routed_expert) {
      out_.experts.parameters += Elements(tensor);
      if (tensor.role != TensorRole::kVector) {
        matrices += Elements(tensor);
        inner = std::max(inner, 1.0);
      }
    } else if (tensor.role == TensorRole::kVector) {
      out_.vector_parameters += Elements(tensor);
    } else {
      Product product{static_cast<double>(tensor.shape[0]), static_cast<double>(tensor.shape[1])};
      product.shard = tensor.replicated ? Product::Shard::kWhole : Product::Shard::kSplit;
      product.op = op_;
      SetStored(id, product);
      if (p.experts > 0) {
        product.role = Product::Role::kRouter;
      }
      out_.products.push_back(product);
    }
  }
  if (p.experts > 0) {
    ExpertWork& e = out_.experts;
    e.experts = static_cast<double>(p.experts);
    e.chosen = static_cast<double>(p.chosen);
    e.products = 3;
    e.inputs = Width(op.inputs[0]);
    e.inner = matrices / e.experts / e.products / e.inputs;
    out_.saved.routed += e.chosen * (4 * e.inputs + 6 * e.inner);
    out_.whole_row_elements += 2 * e.chosen * e.inputs;
    out_.launches += 4;
    feeds_forward = true;
  }
  if (p.heads > 0 && (p.score_dim > 0 || p.value_dim > 0)) {
    out_.attention.push_back({static_cast<double>(p.heads), 0, static_cast<double>(p.score_dim),
                              static_cast<double>(p.value_dim), static_cast<double>(p.window),
                              static_cast<double>(p.decode_score_dim),
                              static_cast<double>(p.decode_value_dim)});
    out_.saved.scores += 5 * static_cast<double>(p.heads);
    out_.saved.stats += 4 * static_cast<double>(p.heads);
  }
  attends = attends || p.heads > 0;
  AddState(p.state);
  out_.extra_flops_per_row += p.extra_flops_per_row;
  if (p.saved_bytes_per_row > 0) {
    (Divided(op.outputs[0]) ? out_.saved.split : out_.saved.whole) += p.saved_bytes_per_row;
  }
  Touch(op);
}

void Builder::Take(const Op& op, bool& attends, bool& feeds_forward) {
  if (std::get_if<model::EmbedOp>(&op.params) != nullptr) {
    const auto& p = std::get<model::EmbedOp>(op.params);
    out_.embedding_parameters += Elements(graph_.tensor(p.table));
    Product table;
    SetStored(p.table, table);
    out_.embedding_stored_bytes += table.stored_bytes;
    Touch(op);
  } else if (const auto* norm = std::get_if<model::RmsNormOp>(&op.params)) {
    out_.vector_parameters += Elements(graph_.tensor(norm->weight));
    Keep(op.inputs[0]);
    Touch(op);
  } else if (const auto* read = std::get_if<model::DepthReadOp>(&op.params)) {
    TakeDepthRead(*read, op);
  } else if (const auto* weights = std::get_if<model::StreamWeightsOp>(&op.params)) {
    for (const TensorId id : {weights->base, weights->mix, weights->norm, weights->scale}) {
      if (id.valid()) {
        out_.vector_parameters += Elements(graph_.tensor(id));
      }
    }
    out_.extra_flops_per_row +=
        weights->mix.valid() ? 2.0 * static_cast<double>(weights->streams + 3) * Width(op.inputs[0])
                             : 0.0;
    Keep(op.inputs[0]);
    Touch(op);
  } else if (const auto* write = std::get_if<model::StreamWriteOp>(&op.params)) {
    out_.extra_flops_per_row += 2.0 * static_cast<double>(write->streams + 1) * Width(op.inputs[0]);
    for (const ValueId in : op.inputs) {
      Keep(in);
    }
    Touch(op);
  } else if (const auto* linear = std::get_if<model::LinearOp>(&op.params)) {
    for (size_t i = 0; i < linear->weights.size(); ++i) {
      AddMatrix(linear->weights[i], op, i);
    }
    for (const TensorId bias : linear->biases) {
      if (bias.valid()) {
        out_.vector_parameters += Elements(graph_.tensor(bias));
      }
    }
    Keep(op.inputs[0]);
    out_.launches += static_cast<double>(linear->weights.size() > 1 ? 1 : linear->weights.size());
  } else if (const auto* attention = std::get_if<model::AttentionOp>(&op.params)) {
    const auto heads = static_cast<double>(attention->heads);
    out_.attention.push_back(
        {heads, static_cast<double>(attention->kv_heads), static_cast<double>(attention->head_dim),
         static_cast<double>(attention->value_dim), static_cast<double>(attention->window)});
    AddState(attention->state);
    if (!out_.states.empty() && out_.states.back().heads == 0) {
      out_.states.back().heads = attention->kv_heads;
    }
    for (const ValueId in : op.inputs) {
      Keep(in);
    }
    out_.saved.scores += 5 * heads;
    out_.saved.stats += 4 * heads;
    out_.launches += 1;
    attends = true;
  } else if (const auto* latent = std::get_if<model::LatentAttentionOp>(&op.params)) {
    TakeLatentAttention(*latent, op);
    attends = true;
  } else if (const auto* conv = std::get_if<model::ShortConvOp>(&op.params)) {
    TakeShortConv(*conv, op);
  } else if (const auto* delta = std::get_if<model::DeltaAttentionOp>(&op.params)) {
    TakeDeltaAttention(*delta, op);
    attends = true;
  } else if (const auto* moe = std::get_if<model::MoeOp>(&op.params)) {
    TakeMoe(*moe, op);
    feeds_forward = true;
  } else if (const auto* counted = std::get_if<model::CountedOp>(&op.params)) {
    TakeCounted(*counted, op, attends, feeds_forward);
  } else if (std::holds_alternative<model::GatedOp>(op.params) ||
             std::holds_alternative<model::ActivationOp>(op.params)) {
    for (const ValueId in : op.inputs) {
      Keep(in);
    }
    Touch(op);
    feeds_forward = true;
  } else if (!std::holds_alternative<model::SplitOp>(op.params) &&
             !std::holds_alternative<model::SelectRowsOp>(op.params)) {
    Touch(op);
  }
}

void FindBoundaries(const Graph& graph, std::vector<double>& widths) {
  const auto layers = static_cast<size_t>(graph.num_layers());
  std::vector<int32_t> last_reader(graph.values.size(), -1);
  for (const Op& op : graph.ops) {
    for (const ValueId in : op.inputs) {
      auto& last = last_reader[static_cast<size_t>(in.value())];
      last = std::max(last, op.layer.value());
    }
  }
  widths.assign(layers, 0);
  for (size_t v = 0; v < graph.values.size(); ++v) {
    if (graph.values[v].type != model::ValueType::kActivation) {
      continue;
    }
    for (int32_t l = graph.values[v].producer.value(); l < last_reader[v]; ++l) {
      widths[static_cast<size_t>(l)] += static_cast<double>(graph.values[v].width);
    }
  }
}

// A depth read keeps its running sum as its own; of the other sources each is kept once by each
// rank that reads it.
std::vector<CrossingValue> FindCrossing(const Graph& graph) {
  std::vector<CrossingValue> all(graph.values.size());
  for (const Op& op : graph.ops) {
    const auto* counted = std::get_if<model::CountedOp>(&op.params);
    const bool depth = std::holds_alternative<model::DepthReadOp>(op.params) ||
                       (counted != nullptr && counted->kind == "depth read");
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      const model::Value& value = graph.value(op.inputs[i]);
      const bool keeps = depth && i + 1 < op.inputs.size();
      const bool own = value.producer == op.layer;
      if (value.type != model::ValueType::kActivation || (own && !keeps)) {
        continue;
      }
      auto& readers = all[static_cast<size_t>(op.inputs[i].value())].readers;
      const int32_t layer = op.layer.value();
      // A layer that reads it twice keeps it once; a run goes on where the next layer does the
      // same.
      if (!readers.empty() && readers.back().last == layer && (readers.back().keeps || !keeps)) {
        continue;
      }
      if (!readers.empty() && readers.back().last + 1 == layer && readers.back().keeps == keeps) {
        readers.back().last = layer;
      } else {
        readers.push_back({layer, layer, keeps});
      }
    }
  }
  std::vector<CrossingValue> crossing;
  for (size_t v = 0; v < all.size(); ++v) {
    if (!all[v].readers.empty()) {
      all[v].width = static_cast<double>(graph.values[v].width);
      all[v].producer = graph.values[v].producer.value();
      all[v].name = graph.values[v].name;
      crossing.push_back(std::move(all[v]));
    }
  }
  return crossing;
}

// Why more than the hidden vector crosses some boundary; "" where nothing more does.
std::string LongValues(const Graph& graph, const ModelProfile& profile) {
  const auto wide = [&](double width) { return width > profile.hidden; };
  if (std::none_of(profile.boundary_width.begin(), profile.boundary_width.end(), wide)) {
    return "";
  }
  for (const Op& op : graph.ops) {
    const auto* counted = std::get_if<model::CountedOp>(&op.params);
    if (std::holds_alternative<model::DepthReadOp>(op.params) ||
        (counted != nullptr && counted->kind == "depth read")) {
      return "attention residuals";
    }
    if (std::holds_alternative<model::StreamReadOp>(op.params)) {
      return "residual streams";
    }
  }
  return "values that are read later";
}

}  // namespace

double LayerProfile::parameters() const {
  double n = embedding_parameters + vector_parameters + experts.parameters;
  for (const Product& product : products) {
    n += product.parameters();
  }
  return n;
}

Result<ModelProfile> BuildProfile(const Graph& graph, std::string name, std::string family,
                                  const HeldTensors& held) {
  ModelProfile out;
  out.name = std::move(name);
  out.family = std::move(family);
  const Flow flow = FindFlow(graph);
  for (const Op& op : graph.ops) {
    if (const auto* embed = std::get_if<model::EmbedOp>(&op.params)) {
      const WeightTensor& table = graph.tensor(embed->table);
      out.vocabulary = static_cast<double>(table.shape[0]);
      out.hidden = static_cast<double>(table.shape[1]);
      break;
    }
  }
  out.decode_cut = DecodeCut(graph);
  out.attention_share = AttentionShare(graph);
  Builder builder(graph, flow, out.hidden, held);
  for (const model::Layer& layer : graph.layers) {
    const LayerProfile profile = builder.Build(layer);
    // Searched from the back: neighbours are alike.
    auto it = std::find(out.classes.rbegin(), out.classes.rend(), profile);
    if (it == out.classes.rend()) {
      out.class_of.push_back(static_cast<int32_t>(out.classes.size()));
      out.classes.push_back(profile);
    } else {
      out.class_of.push_back(static_cast<int32_t>(std::distance(it, out.classes.rend())) - 1);
    }
  }
  FindBoundaries(graph, out.boundary_width);
  out.crossing = FindCrossing(graph);
  out.long_values = LongValues(graph, out);
  for (const WeightTensor& tensor : graph.tensors) {
    out.parameters += Elements(tensor);
  }
  out.parameters_active = out.parameters;
  for (const int32_t c : out.class_of) {
    const ExpertWork& e = out.classes[static_cast<size_t>(c)].experts;
    if (e.experts > 0) {
      out.has_experts = true;
      out.parameters_active -= e.parameters * (1 - e.chosen / e.experts);
    }
  }
  for (const Op& op : graph.ops) {
    if (const auto* attention = std::get_if<model::AttentionOp>(&op.params)) {
      out.max_kv_heads = std::max(out.max_kv_heads, attention->kv_heads);
      out.attention_heads = std::max(out.attention_heads, attention->heads);
    } else if (const auto* latent = std::get_if<model::LatentAttentionOp>(&op.params)) {
      out.attention_heads = std::max(out.attention_heads, latent->heads);
    } else if (const auto* delta = std::get_if<model::DeltaAttentionOp>(&op.params)) {
      out.attention_heads = std::max(out.attention_heads, delta->heads);
    } else if (const auto* counted = std::get_if<model::CountedOp>(&op.params)) {
      out.attention_heads = std::max(out.attention_heads, counted->heads);
    }
  }
  const LayerProfile& head = out.layer(out.num_layers() - 1);
  double stored = 0;
  for (int32_t l = 0; l < out.num_layers(); ++l) {
    stored += out.layer(l).parameters();
  }
  out.tied = !head.products.empty() && stored > out.parameters + 0.5;
  return out;
}

}  // namespace penstock::cost
