// What one stage does in training, worked out before anything runs: its operations, which of them
// run again when it recomputes, and how often each value is read in F, R, I and W, so that memory
// is released with the last reading.

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "kernels/training.h"
#include "model/cut.h"
#include "model/graph.h"
#include "runtime/train_op.h"
#include "runtime/train_rank.h"

namespace penstock::runtime {

// One operation of a stage.
struct PlannedOp {
  int32_t index = 0;  // in the graph; from graph.ops.size() on for the terms of the loss
  std::unique_ptr<TrainOp> run;
  bool recomputed = false;  // in R of a unit that recomputes
  int32_t term = -1;        // of the loss that it computes
};

struct TrainStagePlan {
  StageId stage;
  std::vector<PlannedOp> ops;
  std::vector<ValueId> front;  // activations that cross the boundary in front, ascending
  std::vector<ValueId> behind;

  // `losses` must outlive the plan: pseudo operations that read the logits of each term.
  static Result<TrainStagePlan> Create(const TrainSpec& spec, const model::CutSets& cuts,
                                       StageId stage, std::span<const model::Op> losses);
};

// Where a value, or the gradient of one, lies on a rank: columns of a root that one operation
// writes as a whole. A value that another rank makes is its own root.
struct ValuePlace {
  int32_t root = -1;  // value id; -1: token ids
  int64_t column = 0;
};

// The stages of one rank on one copy of the weights.
class DirectionPlan {
 public:
  // `stages`: ascending. Keeps the pointers.
  DirectionPlan(const model::Graph& graph, std::vector<const TrainStagePlan*> stages,
                bool forward_only);

  const std::vector<const TrainStagePlan*>& stages() const { return stages_; }

  ValuePlace value(ValueId id) const { return value_[static_cast<size_t>(id.value())]; }

  ValuePlace gradient(ValueId id) const { return gradient_[static_cast<size_t>(id.value())]; }

  int64_t value_width(int32_t root) const { return value_width_[static_cast<size_t>(root)]; }

  int64_t gradient_width(int32_t root) const { return gradient_width_[static_cast<size_t>(root)]; }

  bool forward_only() const { return forward_only_; }

  int64_t width(ValueId id) const { return graph_.value(id).width; }

  size_t num_values() const { return graph_.values.size(); }

  bool selected(ValueId id) const { return selected_[static_cast<size_t>(id.value())]; }

  // Readings of a root by the stage `at` (index into stages()), from its definition on.
  // `recomputes`: the unit has an R there. `in_r`: from its second definition, in R.
  int32_t Readings(size_t at, int32_t root, bool recomputes, bool in_r) const {
    const Counts& counts = counts_[at];
    return (in_r         ? counts.again
            : recomputes ? counts.once
                         : counts.plain)[static_cast<size_t>(root)];
  }

 private:
  struct Counts {
    std::vector<int32_t> plain;  // F, I and W of a unit without R
    std::vector<int32_t> once;   // with R: F, R, and what I and W read of values that are kept
    std::vector<int32_t> again;  // R, I and W, of values that R makes again
  };

  void PlaceValues();
  void Count();

  const model::Graph& graph_;
  std::vector<const TrainStagePlan*> stages_;
  bool forward_only_;
  std::vector<bool> selected_;
  std::vector<ValuePlace> value_;
  std::vector<ValuePlace> gradient_;
  std::vector<int64_t> value_width_;
  std::vector<int64_t> gradient_width_;
  std::vector<Counts> counts_;
};

// Helpers for traits whose lists may be left empty.
inline ReadIn InputRead(const TrainOp& op, size_t i) {
  return op.traits.inputs.empty() ? kNotRead : op.traits.inputs[i];
}

inline ReadIn OutputRead(const TrainOp& op, size_t i) {
  return op.traits.outputs.empty() ? kNotRead : op.traits.outputs[i];
}

inline GradientInto IntoOf(const TrainOp& op, size_t i) {
  return op.traits.into.empty() ? GradientInto::kEither : op.traits.into[i];
}

inline bool HasWeights(const TrainOp& op) {
  return !op.traits.gradients.empty();
}

}  // namespace penstock::runtime
