// Short convolutions and delta attention in training.

#include <algorithm>

#include "runtime/train_ops.h"

namespace penstock::runtime {
namespace {

class SituTrainOp final : public TrainOp {
 public:
  SituTrainOp(const model::Op& op, const model::GatedOp& params)
      : TrainOp(op), situ_{params.beta, params.linear_beta} {
    traits.inputs = {kReadInI, kReadInI};
    traits.cheap = true;
  }

  void Forward(OpFrame& f) const override {
    f.device.device().Situ(situ_, f.in[0], f.in[1], f.out[0]);
  }

  void BackwardInput(OpFrame& f) const override {
    f.device.SituBackward(situ_, f.in[0], f.in[1], f.dout[0], f.accumulate[0] != 0, f.din[0],
                          f.accumulate[1] != 0, f.din[1]);
  }

 private:
  kernels::SituParams situ_;
};

class ShortConvTrainOp final : public TrainOp {
 public:
  ShortConvTrainOp(const model::Op& op, const model::ShortConvOp& params)
      : TrainOp(op), shape_{params.taps, kernels::Activation::kSilu} {
    traits.inputs.assign(params.weights.size(), kReadInBoth);
    traits.weight_reads_gradient = true;
    traits.vectors = params.weights;
    for (const TensorId id : params.weights) {
      traits.gradients.push_back({id});
    }
  }

  void Forward(OpFrame& f) const override {
    for (size_t i = 0; i < f.in.size(); ++i) {
      f.device.ShortConvForward(shape_, f.rows.segments, f.in[i], f.vectors[i].All<float>(),
                                f.out[i]);
    }
  }

  void BackwardInput(OpFrame& f) const override {
    for (size_t i = 0; i < f.in.size(); ++i) {
      f.device.ShortConvBackwardInput(shape_, f.rows.segments, f.in[i], f.vectors[i].All<float>(),
                                      f.dout[i], f.accumulate[i] != 0, f.din[i]);
    }
  }

  void BackwardWeight(OpFrame& f) const override {
    for (size_t i = 0; i < f.in.size(); ++i) {
      f.device.ShortConvBackwardWeight(shape_, f.rows.segments, f.in[i], f.vectors[i].All<float>(),
                                       f.dout[i], f.gradients[i].All<float>());
    }
  }

 private:
  kernels::ConvShape shape_;
};

class DeltaTrainOp final : public TrainOp {
 public:
  DeltaTrainOp(const model::Op& op, const model::DeltaAttentionOp& params)
      : TrainOp(op), p_(params) {
    traits.inputs.assign(5, kReadInI);
    traits.vectors = {params.a_log, params.dt_bias};
    traits.gradients = {{params.dt_bias}, {params.a_log}};
    traits.extras = {{.from_forward = false, .read = kReadInW}};  // sums of gradients over rows
  }

  int64_t WorkspaceBytes(const OpShape& shape,
                         const kernels::TrainingDevice& device) const override {
    return device.TrainDeltaWorkspaceBytes({p_.heads, p_.dim, p_.bounded, p_.lower_bound, {}, {}},
                                           shape.rows);
  }

  int64_t ExtraBytes(size_t, const OpShape&, const kernels::TrainingDevice&) const override {
    return 4 * Sums();
  }

  void Forward(OpFrame& f) const override {
    f.device.DeltaForward(Params(f), f.rows.segments, f.in[0], f.in[1], f.in[2], f.in[3], f.in[4],
                          f.out[0], f.workspace);
  }

  void BackwardInput(OpFrame& f) const override {
    kernels::DeltaGradients to;
    to.q = f.din[0];
    to.k = f.din[1];
    to.v = f.din[2];
    to.f = f.din[3];
    to.b = f.din[4];
    to.accumulate_q = f.accumulate[0] != 0;
    to.accumulate_k = f.accumulate[1] != 0;
    to.accumulate_v = f.accumulate[2] != 0;
    to.accumulate_f = f.accumulate[3] != 0;
    to.accumulate_b = f.accumulate[4] != 0;
    to.sums = HeldSums(f);
    f.device.DeltaBackward(Params(f), f.rows.segments, f.in[0], f.in[1], f.in[2], f.in[3], f.in[4],
                           f.dout[0], to, f.workspace);
  }

  void BackwardWeight(OpFrame& f) const override {
    const std::span<const float> sums = HeldSums(f);
    size_t next = 0;
    for (const Tensor& gradient : f.gradients) {
      for (float& g : gradient.All<float>()) {
        g += sums[next++];
      }
    }
  }

 private:
  int64_t Sums() const { return p_.heads * p_.dim + p_.heads; }

  std::span<float> HeldSums(const OpFrame& f) const {
    return {reinterpret_cast<float*>(f.extras[0].Bytes().data()), static_cast<size_t>(Sums())};
  }

  kernels::DeltaParams Params(const OpFrame& f) const {
    const auto row = [](Tensor t) {
      return Tensor(t.All<float>().data(), DType::kF32, 1, t.rows() * t.columns());
    };
    return {p_.heads, p_.dim, p_.bounded, p_.lower_bound, row(f.vectors[0]), row(f.vectors[1])};
  }

  const model::DeltaAttentionOp& p_;
};

}  // namespace

std::unique_ptr<TrainOp> MakeSitu(const model::Op& op, const model::GatedOp& params) {
  return std::make_unique<SituTrainOp>(op, params);
}

std::unique_ptr<TrainOp> MakeShortConv(const model::Op& op, const model::ShortConvOp& params,
                                       const TrainOpContext& context) {
  if (context.slices > 1 || params.activation != model::Activation::kSilu) {
    return nullptr;
  }
  return std::make_unique<ShortConvTrainOp>(op, params);
}

std::unique_ptr<TrainOp> MakeDeltaAttention(const model::Op& op,
                                            const model::DeltaAttentionOp& params,
                                            const TrainOpContext& context) {
  if (context.slices > 1) {
    return nullptr;  // the state of earlier slices is not kept
  }
  return std::make_unique<DeltaTrainOp>(op, params);
}

}  // namespace penstock::runtime
