// Runs F, R, I and W of a stage on a unit, operation by operation. Dry: only makes and releases
// memory, for planning.

#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "kernels/training.h"
#include "runtime/train_memory.h"
#include "runtime/train_parameters.h"
#include "runtime/train_stage_plan.h"
#include "runtime/train_unit.h"

namespace penstock::runtime {

class TrainStageRunner {
 public:
  struct Context {
    const kernels::TrainingDevice* sizes = nullptr;
    kernels::TrainingDevice* device = nullptr;  // null: dry
    TrainParameters* parameters = nullptr;      // null: dry
    BlockPool* pool = nullptr;
    Tensor workspace;
    int32_t slices = 1;
  };

  explicit TrainStageRunner(const Context& context) : c_(context) {}

  // F, or R (`again`). `at`: index of the stage in the unit's plan. Adds to `losses`, one per term
  // of the graph's loss, what the stage computes of it.
  Result<> Forward(TrainUnit& unit, size_t at, bool again, std::span<double> losses);

  // I, W, or both at once (B), into the accumulators of this local lane. Afterwards the gradients
  // of the values in front of the stage are there.
  Result<> Backward(TrainUnit& unit, size_t at, bool input, bool weight, size_t lane);

  // Sum of squares of the gradient that the last I of this stage ended with: not finite if any of
  // it is not. 0 for an empty stage.
  double LastGradientSquares() const { return last_squares_; }

  // Scratch for the stage's operations.
  static int64_t WorkspaceBytes(const TrainStagePlan& plan, const OpShape& largest,
                                int64_t selected, const DirectionPlan& direction,
                                const kernels::TrainingDevice& sizes);

 private:
  OpShape ShapeOf(const TrainUnit& unit, const TrainOp& op) const;
  Result<> MakeExtras(TrainUnit& unit, const PlannedOp& op, const OpShape& shape,
                      bool from_forward);
  void FreeExtras(TrainUnit& unit, const PlannedOp& op, ReadIn half, bool all);
  void FreeShared(TrainUnit& unit, const PlannedOp& op);
  Result<> ForwardOp(TrainUnit& unit, size_t at, const PlannedOp& op, bool again,
                     std::span<double> losses);
  Result<> BackwardOp(TrainUnit& unit, const PlannedOp& op, bool input, bool weight, size_t lane);
  Result<> InputHalf(TrainUnit& unit, const PlannedOp& op, const OpShape& shape);
  void RunInput(TrainUnit& unit, const PlannedOp& op, bool moved);
  void ReleaseAfterBackward(TrainUnit& unit, const PlannedOp& op, bool input, bool weight);
  OpFrame Frame(TrainUnit& unit, const PlannedOp& op, size_t lane);
  static void Zero(const Tensor& x);

  Context c_;
  double last_squares_ = 0;
  const PlannedOp* last_op_ = nullptr;  // of the stage's I
  // Of the operation that runs.
  std::vector<Tensor> in_, out_, dout_, din_, extras_;
  std::vector<uint8_t> accumulate_;
};

}  // namespace penstock::runtime
