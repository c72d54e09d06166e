// Stage: the layers of one stage on one device, ready to run. Knows no family, no neighbour and no
// transport: it computes the values that the graph says from those that it is given.

#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "kernels/device.h"
#include "model/graph.h"
#include "runtime/stage_layout.h"
#include "runtime/stage_weights.h"
#include "runtime/state_pools.h"
#include "runtime/step_plan.h"
#include "runtime/weight_rule.h"
#include "weights/model_files.h"

namespace penstock::runtime {

// Per-sequence state of a run: the same for all stages.
struct StateSpec {
  StatePools pools;
  std::vector<int64_t> blocks;  // per pool
  DType kv_type = DType::kBF16;
};

struct StageSpec {
  StageRange range;
  std::vector<ValueId> incoming;  // received before F
  std::vector<ValueId> outgoing;  // sent after F
  RowLimits limits;
};

// Bytes that a stage will take, category by category, from headers alone: the plan's figures.
// Messages are not included (the channel's).
Result<MemoryFigures> PlannedStageMemory(const model::Graph& graph, const StageSpec& spec,
                                         const WeightRule& rule, const StateSpec& state,
                                         const kernels::Device& device);

// Bytes of the per-sequence states of layers [first, last).
int64_t StateBytes(const model::Graph& graph, const StageRange& range, const StateSpec& state,
                   const kernels::Device& device);

struct StepInput;

// Not thread-safe. The graph, device and account must outlive it.
class Stage {
 public:
  // Allocates and loads everything. Errors: those of StageWeights::Load and of the account.
  static Result<std::unique_ptr<Stage>> Create(const model::Graph& graph, const StageSpec& spec,
                                               const WeightRule& rule, const StateSpec& state,
                                               const weights::ModelFiles& files,
                                               kernels::Device& device, MemoryAccount& account,
                                               const StageWeights::Progress& progress);
  ~Stage();

  // Views of the incoming and outgoing values for this plan's rows, in the order of the spec.
  // Incoming ones are filled by the caller before Forward; outgoing ones are valid after it until
  // the next Forward. Token ids are not among them: every plan carries them.
  std::vector<Tensor> Incoming(const StepPlan& plan);
  std::vector<Tensor> Outgoing(const StepPlan& plan);

  // Runs the stage's layers. Errors: kInternal (shape of the plan beyond the limits, a state of
  // fixed size that the plan would take back), kCorruptData
  // (NaN or infinity, naming the layer).
  Result<> Forward(const StepPlan& plan);

  // The value `id` of this stage for the plan's rows, for the head's logits.
  Tensor ValueOf(ValueId id, const StepPlan& plan);

  bool empty() const { return spec_.range.empty(); }

 private:
  Stage(const model::Graph& graph, StageSpec spec, const StateSpec& state, kernels::Device& device);

  std::vector<Tensor> Views(std::span<const ValueId> ids, const StepPlan& plan);
  Result<> CheckFinite(int32_t op, const StepPlan& plan);
  Result<> AdvanceSlots(const StepPlan& plan);
  void Bind(const WeightRule& rule);

  const model::Graph& graph_;
  StageSpec spec_;
  const StatePools pools_;
  std::vector<SlotPositions> slots_;  // per pool; of pages: none
  kernels::Device& device_;
  StageLayout layout_;
  StageWeights weights_;
  Buffer activations_;
  Buffer workspace_;
  std::vector<std::unique_ptr<kernels::StateCache>>
      caches_;  // per state of the graph; null: of another stage
  std::vector<std::function<void(const StepInput&)>> ops_;
  std::vector<bool> after_selection_;  // per operation: works on the rows that get logits only
  std::vector<ValueId>
      checked_;  // per operation: the layer's result to look at after it, or invalid
};

}  // namespace penstock::runtime
