#include "runtime/stage.h"

#include <algorithm>

#include "runtime/bind_op.h"
#include "runtime/step_input.h"

namespace penstock::runtime {
namespace {

std::pair<int32_t, int32_t> OpRange(const model::Graph& graph, const StageRange& range) {
  if (range.empty()) {
    return {0, 0};
  }
  return {graph.layers[static_cast<size_t>(range.first_layer)].first_op,
          graph.layers[static_cast<size_t>(range.last_layer) - 1].last_op};
}

int64_t BlocksOf(int32_t index, const StateSpec& state) {
  return state.blocks[static_cast<size_t>(state.pools.pool_of[static_cast<size_t>(index)])];
}

kernels::KvCacheSpec CacheSpec(const model::AttentionOp& op, const StateSpec& state) {
  return {BlocksOf(op.state, state),
          kBlockTokens,
          op.kv_heads,
          op.head_dim,
          op.value_dim,
          state.kv_type};
}

kernels::LatentCacheSpec CacheSpec(const model::LatentAttentionOp& op, const StateSpec& state) {
  return {BlocksOf(op.state, state), kBlockTokens, op.latent, op.rope, state.kv_type};
}

int64_t SlotBytes(const model::Graph& graph, const model::ShortConvOp& op,
                  const kernels::Device& device) {
  int64_t width = 0;
  for (const TensorId id : op.weights) {
    width += graph.tensor(id).shape[0];
  }
  return device.ShortConvSlotBytes(width, op.taps);
}

int64_t SlotBytes(const model::Graph& /*graph*/, const model::DeltaAttentionOp& op,
                  const kernels::Device& device) {
  return device.DeltaSlotBytes(op.heads, op.dim);
}

// Bytes of what one operation keeps; 0 for one without state.
int64_t OpStateBytes(const model::Graph& graph, const model::Op& op, const StateSpec& state,
                     const kernels::Device& device) {
  if (const auto* a = std::get_if<model::AttentionOp>(&op.params)) {
    return device.KvCacheBytes(CacheSpec(*a, state));
  }
  if (const auto* l = std::get_if<model::LatentAttentionOp>(&op.params)) {
    return device.LatentCacheBytes(CacheSpec(*l, state));
  }
  if (const auto* c = std::get_if<model::ShortConvOp>(&op.params)) {
    return device.SlotCacheBytes(BlocksOf(c->state, state), SlotBytes(graph, *c, device));
  }
  if (const auto* d = std::get_if<model::DeltaAttentionOp>(&op.params)) {
    return device.SlotCacheBytes(BlocksOf(d->state, state), SlotBytes(graph, *d, device));
  }
  return 0;
}

using Caches = std::vector<std::unique_ptr<kernels::StateCache>>;

// Allocates what one operation keeps, at its state's place in `caches`.
Result<> CreateState(const model::Graph& graph, const model::Op& op, const StateSpec& state,
                     kernels::Device& device, MemoryAccount& account, Caches& caches) {
  if (const auto* a = std::get_if<model::AttentionOp>(&op.params)) {
    PENSTOCK_TRY_ASSIGN(caches[static_cast<size_t>(a->state)],
                        device.CreateKvCache(CacheSpec(*a, state), account));
  } else if (const auto* l = std::get_if<model::LatentAttentionOp>(&op.params)) {
    PENSTOCK_TRY_ASSIGN(caches[static_cast<size_t>(l->state)],
                        device.CreateLatentCache(CacheSpec(*l, state), account));
  } else if (const auto* c = std::get_if<model::ShortConvOp>(&op.params)) {
    PENSTOCK_TRY_ASSIGN(
        caches[static_cast<size_t>(c->state)],
        device.CreateSlots(BlocksOf(c->state, state), SlotBytes(graph, *c, device), account));
  } else if (const auto* d = std::get_if<model::DeltaAttentionOp>(&op.params)) {
    PENSTOCK_TRY_ASSIGN(
        caches[static_cast<size_t>(d->state)],
        device.CreateSlots(BlocksOf(d->state, state), SlotBytes(graph, *d, device), account));
  }
  return {};
}

// The value that each layer hands on: what later layers (or the output) read of it. Given at the
// layer's last operation.
std::vector<ValueId> CheckedValues(const model::Graph& graph, int32_t first_op, int32_t last_op) {
  std::vector<ValueId> checked(static_cast<size_t>(last_op - first_op));
  for (int32_t i = first_op; i < last_op; ++i) {
    const model::Op& op = graph.ops[static_cast<size_t>(i)];
    if (i + 1 == last_op || graph.ops[static_cast<size_t>(i) + 1].layer != op.layer) {
      checked[static_cast<size_t>(i - first_op)] = op.outputs[0];
    }
  }
  return checked;
}

}  // namespace

int64_t StateBytes(const model::Graph& graph, const StageRange& range, const StateSpec& state,
                   const kernels::Device& device) {
  const auto [first_op, last_op] = OpRange(graph, range);
  int64_t bytes = 0;
  for (int32_t i = first_op; i < last_op; ++i) {
    bytes += OpStateBytes(graph, graph.ops[static_cast<size_t>(i)], state, device);
  }
  return bytes;
}

Result<MemoryFigures> PlannedStageMemory(const model::Graph& graph, const StageSpec& spec,
                                         const WeightRule& rule, const StateSpec& state,
                                         const kernels::Device& device) {
  PENSTOCK_TRY_ASSIGN(const StageLayout layout,
                      StageLayout::Create(graph, spec.range, spec.incoming, spec.outgoing,
                                          spec.limits, rule, device));
  const auto [first_op, last_op] = OpRange(graph, spec.range);
  MemoryFigures figures;
  figures[MemoryCategory::kWeights] =
      StageWeights::PlannedBytes(graph, first_op, last_op, rule, device);
  figures[MemoryCategory::kKv] = StateBytes(graph, spec.range, state, device);
  figures[MemoryCategory::kActivations] = layout.activations_bytes();
  figures[MemoryCategory::kWorkspace] = layout.workspace_bytes();
  for (const int64_t bytes : figures.bytes) {
    figures.total += bytes;
  }
  return figures;
}

Stage::Stage(const model::Graph& graph, StageSpec spec, const StateSpec& state,
             kernels::Device& device)
    : graph_(graph), spec_(std::move(spec)), pools_(state.pools), device_(device) {
  for (size_t pool = 0; pool < pools_.windows.size(); ++pool) {
    slots_.emplace_back(pools_.windows[pool] == kSlotPool ? state.blocks[pool] : 0);
  }
}

Stage::~Stage() = default;

Result<std::unique_ptr<Stage>> Stage::Create(const model::Graph& graph, const StageSpec& spec,
                                             const WeightRule& rule, const StateSpec& state,
                                             const weights::ModelFiles& files,
                                             kernels::Device& device, MemoryAccount& account,
                                             const StageWeights::Progress& progress) {
  std::unique_ptr<Stage> stage(new Stage(graph, spec, state, device));
  PENSTOCK_TRY_ASSIGN(stage->layout_,
                      StageLayout::Create(graph, spec.range, spec.incoming, spec.outgoing,
                                          spec.limits, rule, device));
  PENSTOCK_TRY_ASSIGN(stage->activations_, Buffer::Allocate(account, MemoryCategory::kActivations,
                                                            stage->layout_.activations_bytes()));
  PENSTOCK_TRY_ASSIGN(stage->workspace_, Buffer::Allocate(account, MemoryCategory::kWorkspace,
                                                          stage->layout_.workspace_bytes()));
  const auto [first_op, last_op] = OpRange(graph, spec.range);
  stage->caches_.resize(graph.states.size());
  for (int32_t i = first_op; i < last_op; ++i) {
    PENSTOCK_TRY(CreateState(graph, graph.ops[static_cast<size_t>(i)], state, device, account,
                             stage->caches_));
  }
  PENSTOCK_TRY_ASSIGN(stage->weights_, StageWeights::Load(graph, first_op, last_op, rule, files,
                                                          device, account, progress));
  stage->Bind(rule);
  return stage;
}

void Stage::Bind(const WeightRule& rule) {
  const auto [first_op, last_op] = OpRange(graph_, spec_.range);
  const BindContext context{rule, weights_, caches_, pools_.pool_of};
  for (int32_t i = first_op; i < last_op; ++i) {
    ops_.push_back(BindOp(graph_.ops[static_cast<size_t>(i)], context));
  }
  checked_ = CheckedValues(graph_, first_op, last_op);
  const std::vector<bool> selected = SelectedValues(graph_);
  for (int32_t i = first_op; i < last_op; ++i) {
    after_selection_.push_back(
        selected[static_cast<size_t>(graph_.ops[static_cast<size_t>(i)].outputs[0].value())]);
  }
}

Tensor Stage::ValueOf(ValueId id, const StepPlan& plan) {
  const Place& place = layout_.place(id);
  PENSTOCK_CHECK(place.offset_bytes >= 0, "the stage holds the value");
  const int64_t rows = place.selected ? plan.selected() : plan.rows();
  return Tensor::Strided(activations_, DType::kF32, rows, graph_.value(id).width, place.row_stride,
                         place.offset_bytes);
}

std::vector<Tensor> Stage::Views(std::span<const ValueId> ids, const StepPlan& plan) {
  std::vector<Tensor> views;
  for (const ValueId id : ids) {
    if (graph_.value(id).type == model::ValueType::kActivation) {
      views.push_back(ValueOf(id, plan));
    }
  }
  return views;
}

std::vector<Tensor> Stage::Incoming(const StepPlan& plan) {
  return Views(spec_.incoming, plan);
}

std::vector<Tensor> Stage::Outgoing(const StepPlan& plan) {
  return Views(spec_.outgoing, plan);
}

Result<> Stage::CheckFinite(int32_t op, const StepPlan& plan) {
  const ValueId id = checked_[static_cast<size_t>(op)];
  if (!id.valid()) {
    return {};
  }
  const int64_t row = device_.FirstNonFiniteRow(ValueOf(id, plan));
  if (row < 0) {
    return {};
  }
  const LayerId layer = graph_.value(id).producer;
  return MakeError(ErrorCode::kCorruptData,
                   "[runtime.stage] {} gave NaN or infinity (value {}, step {}, row {}): the "
                   "weights are damaged or overflow",
                   graph_.layers[static_cast<size_t>(layer.value())].name, graph_.value(id).name,
                   plan.step, row);
}

Result<> Stage::AdvanceSlots(const StepPlan& plan) {
  for (const SequenceSlice& slice : plan.slices) {
    for (size_t pool = 0; pool < slots_.size(); ++pool) {
      if (pools_.windows[pool] != kSlotPool) {
        continue;
      }
      const bool given = pool < slice.blocks.size() && !slice.blocks[pool].empty();
      PENSTOCK_TRY(slots_[pool].Advance(slice.sequence, given ? slice.blocks[pool][0] : -1,
                                        slice.first_position, slice.rows()));
    }
  }
  return {};
}

Result<> Stage::Forward(const StepPlan& plan) {
  const int64_t selected = plan.selected();
  if (plan.rows() > spec_.limits.rows || selected > spec_.limits.selected) {
    return MakeError(
        ErrorCode::kInternal,
        "[runtime.stage] step {} has {} rows ({} selected), the stage was made for {} ({})",
        plan.step, plan.rows(), selected, spec_.limits.rows, spec_.limits.selected);
  }
  PENSTOCK_TRY(AdvanceSlots(plan));
  const std::function<Tensor(ValueId)> value = [&](ValueId id) { return ValueOf(id, plan); };
  StepInput input{device_, value, Tensor::Of(workspace_, DType::kU8, 1, workspace_.size()),
                  {},      {},    {}};
  input.sequences.resize(pools_.windows.empty() ? 1 : pools_.windows.size());
  int64_t row = 0;
  for (const SequenceSlice& slice : plan.slices) {
    for (size_t pool = 0; pool < input.sequences.size(); ++pool) {
      const std::span<const int32_t> blocks = pool < slice.blocks.size()
                                                  ? std::span<const int32_t>(slice.blocks[pool])
                                                  : std::span<const int32_t>();
      input.sequences[pool].push_back(
          {row, slice.rows(), slice.first_position, blocks, slice.long_rope});
    }
    input.tokens.insert(input.tokens.end(), slice.tokens.begin(), slice.tokens.end());
    for (int64_t i = slice.rows() - slice.selected(); i < slice.rows(); ++i) {
      input.selected.push_back(static_cast<int32_t>(row + i));
    }
    row += slice.rows();
  }
  for (size_t i = 0; i < ops_.size(); ++i) {
    if (selected == 0 && after_selection_[i]) {
      continue;
    }
    ops_[i](input);
    PENSTOCK_TRY(CheckFinite(static_cast<int32_t>(i), plan));
  }
  return {};
}

}  // namespace penstock::runtime
