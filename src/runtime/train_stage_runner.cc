#include "runtime/train_stage_runner.h"

#include <algorithm>
#include <cstring>

namespace penstock::runtime {
namespace {

Tensor Bytes(Block& block) {
  return {block.data(), DType::kU8, 1, block.bytes()};
}

}  // namespace

void TrainStageRunner::Zero(const Tensor& x) {
  for (int64_t row = 0; row < x.rows(); ++row) {
    const std::span<float> numbers = x.Row<float>(row);
    std::fill(numbers.begin(), numbers.end(), 0.0F);
  }
}

int64_t TrainStageRunner::WorkspaceBytes(const TrainStagePlan& plan, const OpShape& largest,
                                         int64_t selected, const DirectionPlan& direction,
                                         const kernels::TrainingDevice& sizes) {
  int64_t most = 0;
  for (const PlannedOp& op : plan.ops) {
    const model::Op& node = op.run->node();
    OpShape shape = largest;
    const ValueId of = node.outputs.empty() ? node.inputs[0] : node.outputs[0];
    shape.rows = direction.selected(of) ? selected : largest.rows;
    shape.input_rows = direction.selected(node.inputs[0]) ? selected : largest.rows;
    if (shape.rows > 0) {
      most = std::max(most, op.run->WorkspaceBytes(shape, sizes));
    }
  }
  return most;
}

OpShape TrainStageRunner::ShapeOf(const TrainUnit& unit, const TrainOp& op) const {
  const model::Op& node = op.node();
  OpShape shape;
  shape.input_rows = unit.RowsOf(node.inputs[0]);
  shape.rows = node.outputs.empty() ? shape.input_rows : unit.RowsOf(node.outputs[0]);
  shape.keys = unit.sizes().micro_rows;
  shape.slices = c_.slices;
  return shape;
}

Result<> TrainStageRunner::MakeExtras(TrainUnit& unit, const PlannedOp& op, const OpShape& shape,
                                      bool from_forward) {
  const std::vector<ExtraSpec>& specs = op.run->traits.extras;
  for (size_t k = 0; k < specs.size(); ++k) {
    if (specs[k].from_forward != from_forward) {
      continue;
    }
    std::vector<Block>& blocks =
        specs[k].whole_micro_batch ? unit.shared().blocks[op.index] : unit.extras()[op.index];
    blocks.resize(specs.size());
    if (blocks[k].held()) {
      continue;
    }
    PENSTOCK_TRY_ASSIGN(blocks[k], c_.pool->Take(op.run->ExtraBytes(k, shape, *c_.sizes)));
    if (specs[k].zeroed && c_.device != nullptr) {
      std::memset(blocks[k].data(), 0, static_cast<size_t>(blocks[k].bytes()));
    }
  }
  return {};
}

// After a half of the backward pass: those that nothing reads any more. `all`: whatever they are
// kept for.
void TrainStageRunner::FreeExtras(TrainUnit& unit, const PlannedOp& op, ReadIn half, bool all) {
  const auto it = unit.extras().find(op.index);
  if (it == unit.extras().end()) {
    return;
  }
  for (size_t k = 0; k < it->second.size(); ++k) {
    const ReadIn last = (op.run->traits.extras[k].read & kReadInW) != 0 ? kReadInW : kReadInI;
    if (all || last == half) {
      it->second[k].Release();
    }
  }
  if (std::none_of(it->second.begin(), it->second.end(), [](const Block& b) { return b.held(); })) {
    unit.extras().erase(it);
  }
}

// The last slice that passes gives back what the micro-batch shares.
void TrainStageRunner::FreeShared(TrainUnit& unit, const PlannedOp& op) {
  MicroBatchExtras& shared = unit.shared();
  if (shared.blocks.contains(op.index) && ++shared.done[op.index] == c_.slices) {
    shared.blocks.erase(op.index);
    shared.done.erase(op.index);
  }
}

OpFrame TrainStageRunner::Frame(TrainUnit& unit, const PlannedOp& op, size_t lane) {
  const model::Op& node = op.run->node();
  const BoundWeights& bound = c_.parameters->bound(op.index);
  extras_.assign(op.run->traits.extras.size(), Tensor());
  for (size_t k = 0; k < extras_.size(); ++k) {
    auto& blocks = op.run->traits.extras[k].whole_micro_batch ? unit.shared().blocks[op.index]
                                                              : unit.extras()[op.index];
    if (k < blocks.size() && blocks[k].held()) {
      extras_[k] = Bytes(blocks[k]);
    }
  }
  accumulate_.resize(node.inputs.size(), 0);
  OpFrame frame{*c_.device, unit.rows, c_.workspace};
  frame.in = in_;
  frame.out = out_;
  frame.dout = dout_;
  frame.din = din_;
  frame.accumulate = accumulate_;
  frame.extras = extras_;
  frame.matrices = bound.matrices;
  frame.vectors = bound.vectors;
  frame.biases = bound.biases;
  if (lane < bound.gradients.size()) {
    frame.gradients = bound.gradients[lane];
  }
  return frame;
}

Result<> TrainStageRunner::Forward(TrainUnit& unit, size_t at, bool again,
                                   std::span<double> losses) {
  for (const PlannedOp& op : unit.plan().stages()[at]->ops) {
    if (!op.run->traits.view && (!again || op.recomputed)) {
      PENSTOCK_TRY(ForwardOp(unit, at, op, again, losses));
    }
  }
  return {};
}

Result<> TrainStageRunner::ForwardOp(TrainUnit& unit, size_t at, const PlannedOp& op, bool again,
                                     std::span<double> losses) {
  const model::Op& node = op.run->node();
  const OpShape shape = ShapeOf(unit, *op.run);
  bool there = again && !node.outputs.empty() && unit.Has(node.outputs[0]);
  if (!node.outputs.empty()) {
    // One reading more keeps the outputs alive until the operation is done.
    const ValueId first = node.outputs[0];
    const int32_t readings =
        again ? unit.plan().Readings(at, unit.plan().value(first).root, true, true)
              : unit.ReadingsOfAll(first);
    PENSTOCK_TRY(unit.Define(*c_.pool, first, readings + 1));
  }
  // An output that is still there for another reader is not made again, unless its extras are.
  const bool extras = std::any_of(op.run->traits.extras.begin(), op.run->traits.extras.end(),
                                  [](const ExtraSpec& e) { return e.from_forward; });
  there = there && !extras;
  if (!there) {
    PENSTOCK_TRY(MakeExtras(unit, op, shape, true));
  }
  if (c_.device != nullptr && shape.rows > 0 && !there) {
    in_.clear();
    out_.clear();
    dout_.clear();
    din_.clear();
    for (const ValueId id : node.inputs) {
      in_.push_back(unit.Value(id));
    }
    for (const ValueId id : node.outputs) {
      out_.push_back(unit.Value(id));
    }
    OpFrame frame = Frame(unit, op, 0);
    op.run->Forward(frame);
    if (op.term >= 0) {
      losses[static_cast<size_t>(op.term)] += frame.loss;
    }
  }
  const bool dropped =
      unit.plan().forward_only() || (!again && op.recomputed && unit.recomputes(at));
  if (dropped) {
    FreeExtras(unit, op, kReadInI, true);
  }
  if (unit.plan().forward_only()) {
    FreeShared(unit, op);
  }
  for (const ValueId id : node.inputs) {
    unit.Read(id);
  }
  if (!node.outputs.empty()) {
    unit.Read(node.outputs[0]);
  }
  return {};
}

Result<> TrainStageRunner::Backward(TrainUnit& unit, size_t at, bool input, bool weight,
                                    size_t lane) {
  const std::vector<PlannedOp>& ops = unit.plan().stages()[at]->ops;
  last_squares_ = 0;
  last_op_ = ops.empty() ? nullptr : &ops.front();
  for (auto op = ops.rbegin(); op != ops.rend(); ++op) {
    if (input || HasWeights(*op->run)) {
      PENSTOCK_TRY(BackwardOp(unit, *op, input, weight && HasWeights(*op->run), lane));
    }
  }
  return {};
}

Result<> TrainStageRunner::BackwardOp(TrainUnit& unit, const PlannedOp& op, bool input, bool weight,
                                      size_t lane) {
  const model::Op& node = op.run->node();
  const OpShape shape = ShapeOf(unit, *op.run);
  in_.clear();
  out_.clear();
  dout_.clear();
  din_.clear();
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const ReadIn read = InputRead(*op.run, i);
    const bool wanted = (input && (read & kReadInI) != 0) || (weight && (read & kReadInW) != 0);
    in_.push_back(wanted ? unit.Value(node.inputs[i]) : Tensor());
  }
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    const bool wanted = input && (OutputRead(*op.run, i) & kReadInI) != 0;
    out_.push_back(wanted ? unit.Value(node.outputs[i]) : Tensor());
  }
  for (const ValueId id : node.outputs) {
    if (input && !unit.HasGradient(id)) {
      PENSTOCK_TRY_ASSIGN(const Tensor nobody_read_it, unit.MakeGradient(*c_.pool, id));
      if (c_.device != nullptr) {
        Zero(nobody_read_it);
      }
    }
    dout_.push_back(unit.Gradient(id));
  }
  if (input) {
    PENSTOCK_TRY(InputHalf(unit, op, shape));
  }
  if (weight && c_.device != nullptr && shape.rows > 0) {
    OpFrame frame = Frame(unit, op, lane);
    frame.first = c_.parameters->TakeFirst(op.index, lane, op.run->traits.writes_first);
    op.run->BackwardWeight(frame);
  }
  ReleaseAfterBackward(unit, op, input, weight);
  return {};
}

Result<> TrainStageRunner::InputHalf(TrainUnit& unit, const PlannedOp& op, const OpShape& shape) {
  const model::Op& node = op.run->node();
  const OpTraits& traits = op.run->traits;
  const bool real = c_.device != nullptr;
  bool moved = false;
  std::vector<std::pair<Block, Tensor>> apart;  // written here, then added to what is there
  accumulate_.assign(node.inputs.size(), 0);
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const ValueId id = node.inputs[i];
    const GradientInto into = IntoOf(*op.run, i);
    if (into == GradientInto::kNothing) {
      din_.emplace_back();
      continue;
    }
    const bool there = unit.HasGradient(id);
    if (!there && traits.moves_gradient == static_cast<int>(i) &&
        unit.CanMoveGradient(node.outputs[0], id)) {
      unit.MoveGradient(node.outputs[0], id);
      din_.push_back(unit.Gradient(id));
      moved = true;
      continue;
    }
    if (i == 0 && !there && traits.gradient_in_place && unit.ValueBecomesGradient(id)) {
      din_.push_back(unit.Gradient(id));
      continue;
    }
    if (there && into == GradientInto::kWrites) {
      PENSTOCK_TRY_ASSIGN(Block block, c_.pool->Take(unit.RowsOf(id) * unit.plan().width(id) * 4));
      din_.emplace_back(block.data(), DType::kF32, unit.RowsOf(id), unit.plan().width(id));
      apart.emplace_back(std::move(block), unit.Gradient(id));
      continue;
    }
    PENSTOCK_TRY_ASSIGN(const Tensor place, unit.MakeGradient(*c_.pool, id));
    accumulate_[i] = there ? 1 : 0;
    if (!there && into == GradientInto::kAdds && real) {
      Zero(place);
    }
    din_.push_back(place);
  }
  PENSTOCK_TRY(MakeExtras(unit, op, shape, false));
  if (!real || shape.rows == 0) {
    return {};
  }
  RunInput(unit, op, moved);
  for (auto& [block, place] : apart) {
    const Tensor written(block.data(), DType::kF32, place.rows(), place.columns());
    c_.device->ScaleInto(written, 1.0F, true, place);
  }
  return {};
}

void TrainStageRunner::RunInput(TrainUnit& unit, const PlannedOp& op, bool moved) {
  OpFrame frame = Frame(unit, op, 0);
  frame.moved = moved;
  op.run->BackwardInput(frame);
  if (&op != last_op_) {
    return;
  }
  // What the stage's I ends with: the gradient of its first operation's input, or what the
  // embedding gets.
  const Tensor& last = !din_.empty() && !din_[0].empty() ? din_[0] : dout_[0];
  last_squares_ = c_.device->SumOfSquares(last);
}

void TrainStageRunner::ReleaseAfterBackward(TrainUnit& unit, const PlannedOp& op, bool input,
                                            bool weight) {
  const model::Op& node = op.run->node();
  const auto release = [&](ValueId id, ReadIn read) {
    // A value whose memory became its gradient's is not read any more.
    const int32_t times = (input && (read & kReadInI) != 0 && unit.Has(id) ? 1 : 0) +
                          (weight && (read & kReadInW) != 0 ? 1 : 0);
    if (times > 0) {
      unit.Read(id, times);
    }
  };
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    release(node.inputs[i], InputRead(*op.run, i));
  }
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    release(node.outputs[i], OutputRead(*op.run, i));
  }
  if (input) {
    FreeExtras(unit, op, kReadInI, false);
    FreeShared(unit, op);
  }
  if (weight) {
    FreeExtras(unit, op, kReadInW, false);
  }
  const bool held = HasWeights(*op.run) && op.run->traits.weight_reads_gradient;
  if (held ? weight : input) {
    for (const ValueId id : node.outputs) {
      unit.DropGradient(id);
    }
  }
}

}  // namespace penstock::runtime
