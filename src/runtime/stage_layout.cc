#include "runtime/stage_layout.h"

#include <algorithm>

namespace penstock::runtime {
namespace {

constexpr int64_t kAlignment = 64;

// Storage of one or several values: views share the storage of what they look into.
struct Storage {
  int64_t bytes = 0;
  int32_t first_op = 0;  // live over operations [first_op, last_op]
  int32_t last_op = 0;
  int64_t offset = -1;
};

int64_t Align(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Assigns storage to the values of one stage and packs it.
class Packer {
 public:
  Packer(const model::Graph& graph, const RowLimits& limits)
      : graph_(graph),
        limits_(limits),
        selected_(SelectedValues(graph)),
        storage_of_(graph.values.size(), -1),
        column_of_(graph.values.size(), 0),
        width_of_(graph.values.size(), 0) {}

  // One storage for several values side by side.
  void Define(std::span<const ValueId> values, int32_t op) {
    int64_t width = 0;
    for (const ValueId id : values) {
      width += graph_.value(id).width;
    }
    const int64_t rows = selected_[Index(values[0])] ? limits_.selected : limits_.rows;
    storages_.push_back({Align(rows * width * 4), op, op, -1});
    int64_t column = 0;
    for (const ValueId id : values) {
      Attach(id, static_cast<int32_t>(storages_.size()) - 1, column, width);
      column += graph_.value(id).width;
    }
  }

  // Adjacent columns of `whole`.
  void DefineViews(ValueId whole, std::span<const ValueId> parts) {
    int64_t column = column_of_[Index(whole)];
    for (const ValueId id : parts) {
      Attach(id, storage_of_[Index(whole)], column, width_of_[Index(whole)]);
      column += graph_.value(id).width;
    }
  }

  void Use(ValueId id, int32_t op) {
    if (storage_of_[Index(id)] >= 0) {
      Storage& storage = storages_[static_cast<size_t>(storage_of_[Index(id)])];
      storage.last_op = std::max(storage.last_op, op);
    }
  }

  // Lowest free offset first, in order of birth.
  int64_t Pack() {
    std::vector<Storage*> placed;
    int64_t total = 0;
    for (Storage& storage : storages_) {
      int64_t offset = 0;
      for (const Storage* other : placed) {  // ascending offset
        const bool together =
            other->first_op <= storage.last_op && storage.first_op <= other->last_op;
        if (together && offset + storage.bytes > other->offset) {
          offset = std::max(offset, other->offset + other->bytes);
        }
      }
      storage.offset = offset;
      placed.insert(std::upper_bound(
                        placed.begin(), placed.end(), &storage,
                        [](const Storage* a, const Storage* b) { return a->offset < b->offset; }),
                    &storage);
      total = std::max(total, offset + storage.bytes);
    }
    return total;
  }

  std::vector<Place> Places() const {
    std::vector<Place> places(graph_.values.size());
    for (size_t i = 0; i < places.size(); ++i) {
      if (storage_of_[i] >= 0) {
        places[i] = {storages_[static_cast<size_t>(storage_of_[i])].offset + column_of_[i] * 4,
                     width_of_[i], selected_[i]};
      }
    }
    return places;
  }

 private:
  static size_t Index(ValueId id) { return static_cast<size_t>(id.value()); }

  void Attach(ValueId id, int32_t storage, int64_t column, int64_t width) {
    storage_of_[Index(id)] = storage;
    column_of_[Index(id)] = column;
    width_of_[Index(id)] = width;
  }

  const model::Graph& graph_;
  RowLimits limits_;
  std::vector<bool> selected_;
  std::vector<Storage> storages_;
  std::vector<int32_t> storage_of_;
  std::vector<int64_t> column_of_;
  std::vector<int64_t> width_of_;
};

int64_t LinearWorkspace(const model::Graph& graph, const model::LinearOp& op, int64_t rows,
                        const WeightRule& rule, const kernels::Device& device) {
  int64_t most = 0;
  size_t begin = 0;
  for (const size_t end : PackGroups(op, rule)) {
    int64_t outputs = 0;
    for (size_t i = begin; i < end; ++i) {
      outputs += graph.tensor(op.weights[i]).shape[0];
    }
    const int64_t inputs = graph.tensor(op.weights[begin]).shape[1];
    most = std::max(most, device.LinearWorkspaceBytes(outputs, inputs,
                                                      rule.held(op.weights[begin]).type, rows));
    begin = end;
  }
  return most;
}

int64_t OpWorkspace(const model::Graph& graph, const model::Op& op, int64_t rows,
                    const WeightRule& rule, const kernels::Device& device) {
  if (const auto* linear = std::get_if<model::LinearOp>(&op.params)) {
    return LinearWorkspace(graph, *linear, rows, rule, device);
  }
  if (const auto* attention = std::get_if<model::AttentionOp>(&op.params)) {
    return device.AttentionWorkspaceBytes(
        {attention->heads, attention->kv_heads, attention->head_dim, attention->value_dim,
         attention->scale, attention->soft_cap, attention->window},
        rows);
  }
  if (const auto* latent = std::get_if<model::LatentAttentionOp>(&op.params)) {
    kernels::LatentAttentionParams params;
    params.heads = latent->heads;
    params.nope = latent->nope;
    params.rope = latent->rope;
    params.value_dim = latent->value_dim;
    params.latent = latent->latent;
    params.absorbed = latent->absorbed;
    return device.LatentAttentionWorkspaceBytes(params, rule.held(latent->expand).type, rows);
  }
  if (const auto* delta = std::get_if<model::DeltaAttentionOp>(&op.params)) {
    return device.DeltaWorkspaceBytes({.heads = delta->heads, .dim = delta->dim});
  }
  if (const auto* moe = std::get_if<model::MoeOp>(&op.params)) {
    const auto& up = graph.tensor(moe->up[0]).shape;
    return device.MoeWorkspaceBytes(static_cast<int64_t>(moe->up.size()), moe->chosen, up[1], up[0],
                                    rule.held(moe->up[0]).type, rows);
  }
  return 0;
}

}  // namespace

std::vector<bool> SelectedValues(const model::Graph& graph) {
  std::vector<bool> selected(graph.values.size(), false);
  for (const model::Op& op : graph.ops) {
    bool after = std::holds_alternative<model::SelectRowsOp>(op.params);
    for (const ValueId id : op.inputs) {
      after = after || selected[static_cast<size_t>(id.value())];
    }
    for (const ValueId id : op.outputs) {
      selected[static_cast<size_t>(id.value())] = after;
    }
  }
  return selected;
}

int64_t BoundaryBytes(const model::Graph& graph, std::span<const ValueId> values,
                      const RowLimits& limits) {
  const std::vector<bool> selected = SelectedValues(graph);
  int64_t bytes = 0;
  for (const ValueId id : values) {
    if (graph.value(id).type == model::ValueType::kActivation) {
      bytes += graph.value(id).width * 4 *
               (selected[static_cast<size_t>(id.value())] ? limits.selected : limits.rows);
    }
  }
  return bytes;
}

Result<StageLayout> StageLayout::Create(const model::Graph& graph, const StageRange& range,
                                        std::span<const ValueId> incoming,
                                        std::span<const ValueId> outgoing, const RowLimits& limits,
                                        const WeightRule& rule, const kernels::Device& device) {
  StageLayout layout;
  layout.limits_ = limits;
  Packer packer(graph, limits);
  const int32_t first_op =
      range.empty() ? 0 : graph.layers[static_cast<size_t>(range.first_layer)].first_op;
  const int32_t last_op =
      range.empty() ? 0 : graph.layers[static_cast<size_t>(range.last_layer) - 1].last_op;
  for (const ValueId id : incoming) {
    if (graph.value(id).type == model::ValueType::kActivation) {
      packer.Define(std::span(&id, 1), first_op - 1);
    }
  }
  for (int32_t i = first_op; i < last_op; ++i) {
    const model::Op& op = graph.ops[static_cast<size_t>(i)];
    if (std::holds_alternative<model::CountedOp>(op.params)) {
      return MakeError(ErrorCode::kUnsupported,
                       "[runtime.layout] {} has work that can be planned but not run yet: {}",
                       graph.layers[static_cast<size_t>(op.layer.value())].name,
                       std::get<model::CountedOp>(op.params).kind);
    }
    if (const auto* embed = std::get_if<model::EmbedOp>(&op.params); embed && embed->shift > 0) {
      return MakeError(ErrorCode::kUnsupported,
                       "[runtime.layout] {} looks up ids that follow: it trains and does not run",
                       graph.layers[static_cast<size_t>(op.layer.value())].name);
    }
    for (const ValueId id : op.inputs) {
      packer.Use(id, i);
    }
    if (std::holds_alternative<model::SplitOp>(op.params)) {
      packer.DefineViews(op.inputs[0], op.outputs);
    } else {
      packer.Define(op.outputs, i);
    }
    layout.workspace_bytes_ =
        std::max(layout.workspace_bytes_, OpWorkspace(graph, op, limits.rows, rule, device));
  }
  for (const ValueId id : outgoing) {
    packer.Use(id, last_op);
  }
  // A view that is used late keeps its storage: Use was called on the view's own id above, which
  // shares it.
  layout.activations_bytes_ = packer.Pack();
  layout.places_ = packer.Places();
  return layout;
}

}  // namespace penstock::runtime
