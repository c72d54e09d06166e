// Operations that work row by row without matrices, and the loss.

#include <numeric>

#include "runtime/train_ops.h"

namespace penstock::runtime {
namespace {

class RmsNormTrainOp final : public TrainOp {
 public:
  RmsNormTrainOp(const model::Op& op, const model::RmsNormOp& params) : TrainOp(op), p_(params) {
    traits.inputs = {kReadInBoth};
    traits.weight_reads_gradient = true;
    traits.cheap = true;
    traits.vectors = {params.weight};
    traits.gradients = {{params.weight}};
  }

  void Forward(OpFrame& f) const override {
    f.device.device().RmsNorm(f.in[0], f.vectors[0], p_.epsilon, p_.add_one, p_.group, f.out[0]);
  }

  void BackwardInput(OpFrame& f) const override {
    f.device.RmsNormBackwardInput(f.in[0], f.vectors[0], p_.epsilon, p_.add_one, p_.group,
                                  f.dout[0], f.accumulate[0] != 0, f.din[0]);
  }

  void BackwardWeight(OpFrame& f) const override {
    f.device.RmsNormBackwardWeight(f.in[0], p_.epsilon, p_.group, f.dout[0], f.gradients[0]);
  }

 private:
  const model::RmsNormOp& p_;
};

// The outputs are columns of the input; their gradients come back side by side.
class SplitTrainOp final : public TrainOp {
 public:
  SplitTrainOp(const model::Op& op, const model::SplitOp& params) : TrainOp(op), p_(params) {
    traits.view = true;
  }

  void Forward(OpFrame&) const override {}

  void BackwardInput(OpFrame& f) const override {
    int64_t column = 0;
    for (size_t i = 0; i < f.dout.size(); ++i) {
      f.device.ScaleInto(f.dout[i], 1.0F, f.accumulate[0] != 0,
                         f.din[0].Columns(column, p_.widths[i]));
      column += p_.widths[i];
    }
  }

 private:
  const model::SplitOp& p_;
};

class GatedTrainOp final : public TrainOp {
 public:
  GatedTrainOp(const model::Op& op, const model::GatedOp& params)
      : TrainOp(op), activation_(ConvertActivation(params.activation)) {
    traits.inputs = {kReadInI, kReadInI};
    traits.cheap = true;
  }

  void Forward(OpFrame& f) const override {
    f.device.device().Gated(activation_, f.in[0], f.in[1], f.out[0]);
  }

  void BackwardInput(OpFrame& f) const override {
    f.device.GatedBackward(activation_, f.in[0], f.in[1], f.dout[0], f.accumulate[0] != 0, f.din[0],
                           f.accumulate[1] != 0, f.din[1]);
  }

 private:
  kernels::Activation activation_;
};

class ActTrainOp final : public TrainOp {
 public:
  ActTrainOp(const model::Op& op, const model::ActivationOp& params)
      : TrainOp(op), activation_(ConvertActivation(params.activation)) {
    traits.inputs = {kReadInI};
    traits.cheap = true;
  }

  void Forward(OpFrame& f) const override { f.device.device().Act(activation_, f.in[0], f.out[0]); }

  void BackwardInput(OpFrame& f) const override {
    f.device.ActBackward(activation_, f.in[0], f.dout[0], f.accumulate[0] != 0, f.din[0]);
  }

 private:
  kernels::Activation activation_;
};

// a + b. With dropout, b is a branch that is dropped before it joins the residual: where a comes
// from another layer, from the embedding, or is itself such a sum.
class AddTrainOp final : public TrainOp {
 public:
  AddTrainOp(const model::Op& op, int32_t index, bool drops)
      : TrainOp(op), index_(index), drops_(drops) {
    if (op.inputs[0] != op.inputs[1]) {
      traits.moves_gradient = 0;
    }
  }

  void Forward(OpFrame& f) const override {
    if (!Drops(f)) {
      f.device.device().Add(f.in[0], f.in[1], f.out[0]);
      return;
    }
    f.device.Dropout(f.in[1], Key(f), f.rows.dropout, f.out[0]);
    f.device.ScaleInto(f.in[0], 1.0F, true, f.out[0]);
  }

  void BackwardInput(OpFrame& f) const override {
    if (!f.moved) {
      f.device.ScaleInto(f.dout[0], 1.0F, f.accumulate[0] != 0, f.din[0]);
    }
    if (Drops(f)) {
      f.device.DropoutBackward(f.dout[0], Key(f), f.rows.dropout, f.accumulate[1] != 0, f.din[1]);
    } else {
      f.device.ScaleInto(f.dout[0], 1.0F, f.accumulate[1] != 0, f.din[1]);
    }
  }

 private:
  bool Drops(const OpFrame& f) const { return drops_ && f.rows.dropout > 0; }

  kernels::DropoutKey Key(const OpFrame& f) const {
    kernels::DropoutKey key = f.rows.dropout_key;
    key.op = static_cast<uint32_t>(index_);
    return key;
  }

  int32_t index_;
  bool drops_;
};

class ScaleTrainOp final : public TrainOp {
 public:
  ScaleTrainOp(const model::Op& op, const model::ScaleOp& params)
      : TrainOp(op), factor_(params.factor) {
    traits.cheap = true;
  }

  void Forward(OpFrame& f) const override { f.device.device().Scale(f.in[0], factor_, f.out[0]); }

  void BackwardInput(OpFrame& f) const override {
    f.device.ScaleInto(f.dout[0], factor_, f.accumulate[0] != 0, f.din[0]);
  }

 private:
  float factor_;
};

class SoftCapTrainOp final : public TrainOp {
 public:
  SoftCapTrainOp(const model::Op& op, const model::SoftCapOp& params)
      : TrainOp(op), cap_(params.cap) {
    traits.inputs = {kReadInI};
    traits.cheap = true;
  }

  void Forward(OpFrame& f) const override { f.device.device().SoftCap(f.in[0], cap_, f.out[0]); }

  void BackwardInput(OpFrame& f) const override {
    f.device.SoftCapBackward(f.in[0], cap_, f.dout[0], f.accumulate[0] != 0, f.din[0]);
  }

 private:
  float cap_;
};

class SelectRowsTrainOp final : public TrainOp {
 public:
  explicit SelectRowsTrainOp(const model::Op& op) : TrainOp(op) {
    traits.into = {GradientInto::kAdds};
    traits.cheap = true;
  }

  void Forward(OpFrame& f) const override {
    f.device.device().GatherRows(f.in[0], f.rows.selected, f.out[0]);
  }

  void BackwardInput(OpFrame& f) const override {
    f.device.ScatterAddRows(f.dout[0], f.rows.selected, f.din[0]);
  }
};

class LossTrainOp final : public TrainOp {
 public:
  LossTrainOp(const model::Op& op, size_t term) : TrainOp(op), term_(term) {
    traits.inputs = {kReadInI};
    traits.into = {GradientInto::kWrites};
    traits.gradient_in_place = true;
    traits.extras = {{.from_forward = true, .read = kReadInI}};
  }

  int64_t ExtraBytes(size_t, const OpShape& shape, const kernels::TrainingDevice&) const override {
    return shape.rows * 4;
  }

  void Forward(OpFrame& f) const override {
    std::vector<double> losses(static_cast<size_t>(f.in[0].rows()));
    f.device.CrossEntropy(f.in[0], Targets(f), losses, Lse(f));
    f.loss = std::accumulate(losses.begin(), losses.end(), 0.0);
  }

  void BackwardInput(OpFrame& f) const override {
    const float factor = term_ == 0 ? f.rows.factor : f.rows.term_factors[term_ - 1];
    f.device.CrossEntropyBackward(f.in[0], Targets(f), Lse(f), factor, f.din[0]);
  }

 private:
  std::span<const int32_t> Targets(const OpFrame& f) const {
    return term_ == 0 ? f.rows.targets : f.rows.term_targets[term_ - 1];
  }

  static Tensor Lse(const OpFrame& f) {
    return {f.extras[0].Bytes().data(), DType::kF32, f.in[0].rows(), 1};
  }

  size_t term_;
};

}  // namespace

std::unique_ptr<TrainOp> MakeRmsNorm(const model::Op& op, const model::RmsNormOp& params) {
  return std::make_unique<RmsNormTrainOp>(op, params);
}

std::unique_ptr<TrainOp> MakeSplit(const model::Op& op, const model::SplitOp& params) {
  return std::make_unique<SplitTrainOp>(op, params);
}

std::unique_ptr<TrainOp> MakeGated(const model::Op& op, const model::GatedOp& params) {
  if (params.activation == model::Activation::kSitu) {
    return MakeSitu(op, params);
  }
  return std::make_unique<GatedTrainOp>(op, params);
}

std::unique_ptr<TrainOp> MakeAct(const model::Op& op, const model::ActivationOp& params) {
  return std::make_unique<ActTrainOp>(op, params);
}

std::unique_ptr<TrainOp> MakeAdd(const model::Op& op, int32_t index,
                                 const TrainOpContext& context) {
  bool drops = false;
  if (context.dropout > 0) {
    const ValueId a = op.inputs[0];
    drops = context.graph.value(a).producer != op.layer;
    for (int32_t i = 0; i < index && !drops; ++i) {
      const model::Op& before = context.graph.ops[static_cast<size_t>(i)];
      drops = before.outputs[0] == a && (std::holds_alternative<model::AddOp>(before.params) ||
                                         std::holds_alternative<model::EmbedOp>(before.params));
    }
  }
  return std::make_unique<AddTrainOp>(op, index, drops);
}

std::unique_ptr<TrainOp> MakeScale(const model::Op& op, const model::ScaleOp& params) {
  return std::make_unique<ScaleTrainOp>(op, params);
}

std::unique_ptr<TrainOp> MakeSoftCap(const model::Op& op, const model::SoftCapOp& params) {
  return std::make_unique<SoftCapTrainOp>(op, params);
}

std::unique_ptr<TrainOp> MakeSelectRows(const model::Op& op) {
  return std::make_unique<SelectRowsTrainOp>(op);
}

std::unique_ptr<TrainOp> MakeLossOp(const model::Op& op, size_t term) {
  return std::make_unique<LossTrainOp>(op, term);
}

}  // namespace penstock::runtime
