// Operations with matrices: embedding, linear, mixture of experts.

#include <algorithm>

#include "runtime/train_ops.h"

namespace penstock::runtime {
namespace {

class EmbedTrainOp final : public TrainOp {
 public:
  EmbedTrainOp(const model::Op& op, const model::EmbedOp& params, int32_t index, float dropout)
      : TrainOp(op),
        scale_(params.scale),
        shift_(params.shift),
        index_(index),
        dropout_(dropout > 0) {
    traits.into = {GradientInto::kNothing};
    traits.weight_reads_gradient = true;
    traits.vectors = {params.table};
    traits.gradients = {{params.table}};
  }

  void Forward(OpFrame& f) const override {
    std::vector<int32_t> later;
    f.device.EmbedForward(f.vectors[0], Ids(f, later), scale_, f.out[0]);
    Drop(f, f.out[0]);
  }

  // The gradient that W reads is that of what was dropped.
  void BackwardInput(OpFrame& f) const override { Drop(f, f.dout[0]); }

  void BackwardWeight(OpFrame& f) const override {
    std::vector<int32_t> later;
    f.device.EmbedBackwardWeight(Ids(f, later), scale_, f.dout[0], f.gradients[0]);
  }

 private:
  // The ids `shift_` rows on in their sequences; the last rows of a sequence, which no loss looks
  // at, keep their own.
  std::span<const int32_t> Ids(const OpFrame& f, std::vector<int32_t>& later) const {
    if (shift_ == 0) {
      return f.rows.tokens;
    }
    for (size_t s = 0; s < f.rows.segments.size(); ++s) {
      const kernels::Segment& segment = f.rows.segments[s];
      const int64_t first = f.rows.first_row + segment.first_row;
      const int64_t end =
          segment.first_key + f.rows.lengths[s] - segment.first_position + segment.keys_before;
      for (int64_t row = first; row < first + segment.rows; ++row) {
        later.push_back(
            f.rows.micro_tokens[static_cast<size_t>(row + shift_ < end ? row + shift_ : row)]);
      }
    }
    return later;
  }

  void Drop(OpFrame& f, Tensor x) const {
    if (dropout_ && f.rows.dropout > 0) {
      kernels::DropoutKey key = f.rows.dropout_key;
      key.op = static_cast<uint32_t>(index_);
      f.device.Dropout(x, key, f.rows.dropout, x);
    }
  }

  float scale_;
  int32_t shift_;
  int32_t index_;
  bool dropout_;
};

class LinearTrainOp final : public TrainOp {
 public:
  LinearTrainOp(const model::Op& op, const model::LinearOp& params, const TrainOpContext& context)
      : TrainOp(op), type_(context.products) {
    traits.inputs = {kReadInW};
    traits.weight_reads_gradient = true;
    traits.matrices = {params.weights};
    traits.gradients = {params.weights};
    traits.writes_first = true;
    for (const TensorId id : params.weights) {
      parts_.push_back(context.graph.tensor(id).shape[0]);
      outputs_ += parts_.back();
    }
    inputs_ = context.graph.tensor(params.weights[0]).shape[1];
    if (!params.biases.empty()) {
      traits.biases = {params.biases};
      int64_t column = 0;
      for (size_t i = 0; i < params.biases.size(); ++i) {
        if (params.biases[i].valid()) {
          traits.gradients.push_back({params.biases[i]});
          bias_parts_.push_back({column, parts_[i]});
        }
        column += parts_[i];
      }
    }
  }

  int64_t WorkspaceBytes(const OpShape& shape,
                         const kernels::TrainingDevice& device) const override {
    return device.ProductWorkspaceBytes(outputs_, inputs_, type_, shape.rows);
  }

  void Forward(OpFrame& f) const override {
    f.device.LinearForward(*f.matrices[0], f.in[0], f.biases.empty() ? Tensor() : f.biases[0],
                           f.out[0].Widened(outputs_), f.workspace);
  }

  void BackwardInput(OpFrame& f) const override {
    f.device.LinearBackwardInput(*f.matrices[0], f.dout[0].Widened(outputs_), f.accumulate[0] != 0,
                                 f.din[0], f.workspace);
  }

  void BackwardWeight(OpFrame& f) const override {
    const Tensor dy = f.dout[0].Widened(outputs_);
    f.device.LinearBackwardWeight(type_, dy, f.in[0], !f.first, f.gradients[0], f.workspace);
    for (size_t i = 0; i < bias_parts_.size(); ++i) {
      f.device.AddColumnSums(dy.Columns(bias_parts_[i].column, bias_parts_[i].width),
                             f.gradients[i + 1]);
    }
  }

 private:
  struct Part {
    int64_t column = 0;
    int64_t width = 0;
  };

  kernels::ProductType type_;
  std::vector<int64_t> parts_;
  std::vector<Part> bias_parts_;
  int64_t outputs_ = 0;
  int64_t inputs_ = 0;
};

// Matrices: per expert gate above up, then per expert down. Accumulators in the same order, after
// the router's.
class MoeTrainOp final : public TrainOp {
 public:
  MoeTrainOp(const model::Op& op, const model::MoeOp& params, const TrainOpContext& context)
      : TrainOp(op),
        type_(context.products),
        experts_(params.up.size()),
        chosen_(params.chosen),
        width_(context.graph.tensor(params.up[0]).shape[1]),
        ffn_(context.graph.tensor(params.up[0]).shape[0]) {
    params_.sigmoid = params.scoring == model::MoeOp::Scoring::kSigmoid;
    params_.normalize = params.normalize;
    params_.chosen = params.chosen;
    params_.weight_scale = params.weight_scale;
    params_.activation = ConvertActivation(params.activation);
    params_.groups = params.groups;
    params_.chosen_groups = params.chosen_groups;
    traits.inputs = {kReadInBoth};
    traits.weight_reads_gradient = true;
    params_.situ = {params.beta, params.linear_beta};
    if (op.inputs.size() > 1) {
      traits.inputs.push_back(kReadInBoth);  // what the router reads
    }
    traits.vectors = {params.router};
    traits.gradients = {{params.router}};
    if (params.router_bias.valid()) {
      traits.vectors.push_back(params.router_bias);
    }
    for (size_t e = 0; e < experts_; ++e) {
      traits.matrices.push_back({params.gate[e], params.up[e]});
    }
    for (size_t e = 0; e < experts_; ++e) {
      traits.matrices.push_back({params.down[e]});
    }
    traits.gradients.insert(traits.gradients.end(), traits.matrices.begin(), traits.matrices.end());
    traits.extras = {{.from_forward = true, .read = kReadInBoth},
                     {.from_forward = false, .read = kReadInW}};
  }

  int64_t WorkspaceBytes(const OpShape& shape,
                         const kernels::TrainingDevice& device) const override {
    return device.TrainMoeWorkspaceBytes(Experts(), chosen_, width_, ffn_, type_, shape.rows);
  }

  int64_t ExtraBytes(size_t extra, const OpShape& shape,
                     const kernels::TrainingDevice& device) const override {
    return extra == 0 ? device.MoeSavedBytes(Experts(), chosen_, width_, ffn_, shape.rows)
                      : device.MoeHeldBytes(Experts(), chosen_, width_, ffn_, shape.rows);
  }

  void Forward(OpFrame& f) const override {
    f.device.MoeForward(Params(f), f.in[0], f.out[0], f.extras[0], f.workspace);
  }

  void BackwardInput(OpFrame& f) const override {
    f.device.MoeBackwardInput(Params(f), f.in[0], f.extras[0], f.dout[0], f.accumulate[0] != 0,
                              f.din[0], f.extras[1], f.workspace);
  }

  void BackwardWeight(OpFrame& f) const override {
    f.device.MoeBackwardWeight(Params(f), f.in[0], f.extras[0], f.dout[0], f.extras[1],
                               f.gradients[0], f.gradients.subspan(1, experts_),
                               f.gradients.subspan(1 + experts_, experts_), f.workspace);
  }

 private:
  int64_t Experts() const { return static_cast<int64_t>(experts_); }

  kernels::TrainMoeParams Params(const OpFrame& f) const {
    kernels::TrainMoeParams params = params_;
    if (f.in.size() > 1) {
      params.router_input = f.in[1];
      if (f.din.size() > 1) {
        params.router_input_gradient = f.din[1];
        params.accumulate_router_input = f.accumulate[1] != 0;
      }
    }
    params.router = f.vectors[0];
    params.router_bias = f.vectors.size() > 1 ? f.vectors[1] : Tensor();
    params.gate_up = f.matrices.subspan(0, experts_);
    params.down = f.matrices.subspan(experts_, experts_);
    return params;
  }

  kernels::ProductType type_;
  size_t experts_;
  int64_t chosen_;
  int64_t width_;
  int64_t ffn_;
  kernels::TrainMoeParams params_;
};

}  // namespace

std::unique_ptr<TrainOp> MakeEmbed(const model::Op& op, const model::EmbedOp& params, int32_t index,
                                   const TrainOpContext& context) {
  return std::make_unique<EmbedTrainOp>(op, params, index, context.dropout);
}

std::unique_ptr<TrainOp> MakeLinear(const model::Op& op, const model::LinearOp& params,
                                    const TrainOpContext& context) {
  return std::make_unique<LinearTrainOp>(op, params, context);
}

std::unique_ptr<TrainOp> MakeMoe(const model::Op& op, const model::MoeOp& params,
                                 const TrainOpContext& context) {
  return std::make_unique<MoeTrainOp>(op, params, context);
}

}  // namespace penstock::runtime
