// Operations of the variations that read over depth: attention residuals and multi-stream
// residuals, and joining values side by side.

#include <vector>

#include "runtime/train_ops.h"

namespace penstock::runtime {
namespace {

constexpr int64_t kFloatBytes = 4;

Tensor Floats(Tensor bytes, int64_t rows, int64_t columns) {
  return {bytes.Bytes().data(), DType::kF32, rows, columns};
}

// I leaves what W needs per row and source in an extra: the sources themselves are kept values.
class DepthReadTrainOp final : public TrainOp {
 public:
  DepthReadTrainOp(const model::Op& op, const model::DepthReadOp& params)
      : TrainOp(op), p_(params) {
    traits.inputs.assign(op.inputs.size(), kReadInBoth);
    traits.cheap = true;
    traits.vectors = {params.query};
    traits.gradients = {{params.query}};
    if (params.key_norm.valid()) {
      traits.vectors.push_back(params.key_norm);
      traits.gradients.push_back({params.key_norm});
    }
    traits.extras = {{.from_forward = false, .read = kReadInW}};
  }

  int64_t ExtraBytes(size_t, const OpShape& shape, const kernels::TrainingDevice&) const override {
    return shape.rows * Columns() * kFloatBytes;
  }

  void Forward(OpFrame& f) const override {
    f.device.device().DepthRead(f.in, f.vectors[0], KeyNorm(f), p_.epsilon, f.out[0]);
  }

  void BackwardInput(OpFrame& f) const override {
    f.device.DepthReadBackwardInput(f.in, f.vectors[0], KeyNorm(f), p_.epsilon, f.dout[0],
                                    f.accumulate, f.din, Factors(f));
  }

  void BackwardWeight(OpFrame& f) const override {
    f.device.DepthReadBackwardWeight(f.in, f.vectors[0], KeyNorm(f), Factors(f), f.gradients[0],
                                     p_.key_norm.valid() ? f.gradients[1] : Tensor());
  }

 private:
  int64_t Columns() const { return 3 * std::ssize(node().inputs); }

  Tensor KeyNorm(const OpFrame& f) const { return p_.key_norm.valid() ? f.vectors[1] : Tensor(); }

  Tensor Factors(const OpFrame& f) const { return Floats(f.extras[0], f.in[0].rows(), Columns()); }

  const model::DepthReadOp& p_;
};

class ConcatTrainOp final : public TrainOp {
 public:
  explicit ConcatTrainOp(const model::Op& op) : TrainOp(op) { traits.cheap = true; }

  void Forward(OpFrame& f) const override {
    int64_t column = 0;
    for (const Tensor& part : f.in) {
      f.device.ScaleInto(part, 1.0F, false, f.out[0].Columns(column, part.columns()));
      column += part.columns();
    }
  }

  void BackwardInput(OpFrame& f) const override {
    int64_t column = 0;
    for (size_t i = 0; i < f.in.size(); ++i) {
      const int64_t width = f.din[i].columns();
      f.device.ScaleInto(f.dout[0].Columns(column, width), 1.0F, f.accumulate[i] != 0, f.din[i]);
      column += width;
    }
  }
};

class StreamWeightsTrainOp final : public TrainOp {
 public:
  StreamWeightsTrainOp(const model::Op& op, const model::StreamWeightsOp& params)
      : TrainOp(op), p_(params), dynamic_(params.mix.valid()) {
    traits.inputs = {dynamic_ ? kReadInBoth : kNotRead};
    traits.into = {dynamic_ ? GradientInto::kEither : GradientInto::kNothing};
    traits.weight_reads_gradient = true;
    traits.cheap = true;
    for (const TensorId id : {params.base, params.mix, params.norm, params.scale}) {
      if (id.valid()) {
        traits.vectors.push_back(id);
        traits.gradients.push_back({id});
      }
    }
    if (dynamic_) {
      traits.extras = {{.from_forward = false, .read = kReadInW}};
    }
  }

  int64_t ExtraBytes(size_t, const OpShape& shape, const kernels::TrainingDevice&) const override {
    return shape.rows * Columns() * kFloatBytes;
  }

  void Forward(OpFrame& f) const override {
    f.device.device().StreamWeights(Params(f), f.in[0], f.out[0]);
  }

  void BackwardInput(OpFrame& f) const override {
    if (dynamic_) {
      f.device.StreamWeightsBackwardInput(Params(f), f.in[0], f.dout[0], f.accumulate[0] != 0,
                                          f.din[0], Factors(f));
    }
  }

  void BackwardWeight(OpFrame& f) const override {
    const auto gradient = [&](size_t i) { return dynamic_ ? f.gradients[i] : Tensor(); };
    f.device.StreamWeightsBackwardWeight(Params(f), f.in[0], f.dout[0], Factors(f), f.gradients[0],
                                         gradient(1), gradient(2), gradient(3));
  }

 private:
  int64_t Columns() const { return 2 * p_.streams * (p_.streams + 2); }

  kernels::StreamParams Params(const OpFrame& f) const {
    kernels::StreamParams params{
        .streams = p_.streams, .base = f.vectors[0], .epsilon = p_.epsilon};
    if (dynamic_) {
      params.mix = f.vectors[1];
      params.norm = f.vectors[2];
      params.scale = f.vectors[3];
    }
    return params;
  }

  Tensor Factors(const OpFrame& f) const {
    return dynamic_ ? Floats(f.extras[0], f.dout[0].rows(), Columns()) : Tensor();
  }

  const model::StreamWeightsOp& p_;
  bool dynamic_;
};

class StreamReadTrainOp final : public TrainOp {
 public:
  StreamReadTrainOp(const model::Op& op, const model::StreamReadOp& params)
      : TrainOp(op), streams_(params.streams) {
    traits.inputs = {kReadInI, kReadInI};
    traits.cheap = true;
  }

  void Forward(OpFrame& f) const override {
    f.device.device().StreamRead(streams_, f.in[0], f.in[1], f.out[0]);
  }

  void BackwardInput(OpFrame& f) const override {
    f.device.StreamReadBackward(streams_, f.in[0], f.in[1], f.dout[0], f.accumulate[0] != 0,
                                f.din[0], f.accumulate[1] != 0, f.din[1]);
  }

 private:
  int64_t streams_;
};

class StreamWriteTrainOp final : public TrainOp {
 public:
  StreamWriteTrainOp(const model::Op& op, const model::StreamWriteOp& params)
      : TrainOp(op), streams_(params.streams) {
    traits.inputs = {kReadInI, kReadInI, kReadInI};
  }

  void Forward(OpFrame& f) const override {
    f.device.device().StreamWrite(streams_, f.in[0], f.in[1], f.in[2], f.out[0]);
  }

  void BackwardInput(OpFrame& f) const override {
    f.device.StreamWriteBackward(streams_, f.in[0], f.in[1], f.in[2], f.dout[0],
                                 f.accumulate[0] != 0, f.din[0], f.accumulate[1] != 0, f.din[1],
                                 f.accumulate[2] != 0, f.din[2]);
  }

 private:
  int64_t streams_;
};

}  // namespace

std::unique_ptr<TrainOp> MakeConcat(const model::Op& op) {
  return std::make_unique<ConcatTrainOp>(op);
}

std::unique_ptr<TrainOp> MakeDepthRead(const model::Op& op, const model::DepthReadOp& params) {
  return std::make_unique<DepthReadTrainOp>(op, params);
}

std::unique_ptr<TrainOp> MakeStreamWeights(const model::Op& op,
                                           const model::StreamWeightsOp& params) {
  return std::make_unique<StreamWeightsTrainOp>(op, params);
}

std::unique_ptr<TrainOp> MakeStreamRead(const model::Op& op, const model::StreamReadOp& params) {
  return std::make_unique<StreamReadTrainOp>(op, params);
}

std::unique_ptr<TrainOp> MakeStreamWrite(const model::Op& op, const model::StreamWriteOp& params) {
  return std::make_unique<StreamWriteTrainOp>(op, params);
}

}  // namespace penstock::runtime
