// Rotary embedding and attention inside a micro-batch.

#include "runtime/train_ops.h"

namespace penstock::runtime {
namespace {

class RopeTrainOp final : public TrainOp {
 public:
  RopeTrainOp(const model::Op& op, const model::RopeOp& params) : TrainOp(op), params_(params) {
    traits.cheap = true;
  }

  void Forward(OpFrame& f) const override {
    std::vector<kernels::Segment> chosen;
    f.device.RopeForward(f.in[0], Rope(), Segments(f, chosen), f.out[0]);
  }

  void BackwardInput(OpFrame& f) const override {
    std::vector<kernels::Segment> chosen;
    f.device.RopeBackward(f.dout[0], Rope(), Segments(f, chosen), f.accumulate[0] != 0, f.din[0]);
  }

 private:
  kernels::RopeParams Rope() const {
    const model::RopeTable& table = params_.table;
    return {params_.heads,       params_.head_dim,          params_.rotary_dim,
            params_.interleaved, table.inverse_frequencies, table.long_inverse_frequencies,
            table.scale,         table.long_scale,          params_.offset};
  }

  // LongRoPE: sequences beyond the original context turn by other angles.
  std::span<const kernels::Segment> Segments(const OpFrame& f,
                                             std::vector<kernels::Segment>& chosen) const {
    if (params_.table.long_inverse_frequencies.empty()) {
      return f.rows.segments;
    }
    chosen = f.rows.segments;
    for (size_t i = 0; i < chosen.size(); ++i) {
      chosen[i].long_rope = f.rows.lengths[i] > params_.table.long_from;
    }
    return chosen;
  }

  const model::RopeOp& params_;
};

// One slice: keys and values are the inputs themselves. Several: they are gathered, with their
// gradients, in buffers of the whole micro-batch.
class AttentionTrainOp final : public TrainOp {
 public:
  AttentionTrainOp(const model::Op& op, const model::AttentionOp& params, int32_t slices)
      : TrainOp(op),
        attention_{params.heads, params.kv_heads, params.head_dim, params.value_dim,
                   params.scale, params.soft_cap, params.window},
        sliced_(slices > 1) {
    const ReadIn kv = sliced_ ? kNotRead : kReadInI;
    traits.inputs = {kReadInI, kv, kv};
    traits.outputs = {kReadInI};
    traits.extras = {{.from_forward = true, .read = kReadInI}};
    if (sliced_) {
      traits.into = {GradientInto::kWrites, GradientInto::kEither, GradientInto::kEither};
      for (const bool from_forward : {true, false}) {
        const ExtraSpec whole = {from_forward, kReadInI, true, !from_forward};
        traits.extras.insert(traits.extras.end(), {whole, whole});
      }
    } else {
      traits.into = {GradientInto::kWrites, GradientInto::kAdds, GradientInto::kAdds};
    }
  }

  int64_t WorkspaceBytes(const OpShape& shape,
                         const kernels::TrainingDevice& device) const override {
    return device.TrainAttentionWorkspaceBytes(attention_, shape.rows, shape.keys);
  }

  int64_t ExtraBytes(size_t extra, const OpShape& shape,
                     const kernels::TrainingDevice&) const override {
    if (extra == 0) {
      return shape.rows * attention_.heads * 4;
    }
    return shape.keys * (extra % 2 == 1 ? KeyWidth() : ValueWidth()) * 4;
  }

  void Forward(OpFrame& f) const override {
    const Tensor lse = Lse(f);
    if (!sliced_) {
      f.device.AttentionForward(attention_, f.rows.segments, f.in[0], f.in[1], f.in[2], f.out[0],
                                lse, f.workspace);
      return;
    }
    const int64_t rows = f.in[0].rows();
    const Tensor k = Whole(f, 1, KeyWidth());
    const Tensor v = Whole(f, 2, ValueWidth());
    f.device.ScaleInto(f.in[1], 1.0F, false, k.Rows(f.rows.first_row, rows));
    f.device.ScaleInto(f.in[2], 1.0F, false, v.Rows(f.rows.first_row, rows));
    f.device.AttentionForward(attention_, f.rows.segments, f.in[0],
                              k.Rows(0, f.rows.first_row + rows),
                              v.Rows(0, f.rows.first_row + rows), f.out[0], lse, f.workspace);
  }

  void BackwardInput(OpFrame& f) const override {
    const Tensor lse = Lse(f);
    if (!sliced_) {
      f.device.AttentionBackward(attention_, f.rows.segments, f.in[0], f.in[1], f.in[2], f.out[0],
                                 lse, f.dout[0], f.din[0], f.din[1], f.din[2], f.workspace);
      return;
    }
    const int64_t first = f.rows.first_row;
    const int64_t rows = f.in[0].rows();
    const Tensor dk = Whole(f, 3, KeyWidth());
    const Tensor dv = Whole(f, 4, ValueWidth());
    f.device.AttentionBackward(
        attention_, f.rows.segments, f.in[0], Whole(f, 1, KeyWidth()).Rows(0, first + rows),
        Whole(f, 2, ValueWidth()).Rows(0, first + rows), f.out[0], lse, f.dout[0], f.din[0],
        dk.Rows(0, first + rows), dv.Rows(0, first + rows), f.workspace);
    // Later slices have been here: the rows of this one are complete.
    f.device.ScaleInto(dk.Rows(first, rows), 1.0F, f.accumulate[1] != 0, f.din[1]);
    f.device.ScaleInto(dv.Rows(first, rows), 1.0F, f.accumulate[2] != 0, f.din[2]);
  }

 private:
  int64_t KeyWidth() const { return attention_.kv_heads * attention_.head_dim; }

  int64_t ValueWidth() const { return attention_.kv_heads * attention_.value_dim; }

  Tensor Lse(const OpFrame& f) const {
    return {f.extras[0].Bytes().data(), DType::kF32, f.in[0].rows(), attention_.heads};
  }

  static Tensor Whole(const OpFrame& f, size_t extra, int64_t width) {
    return {f.extras[extra].Bytes().data(), DType::kF32, f.rows.micro_rows, width};
  }

  kernels::AttentionParams attention_;
  bool sliced_;
};

}  // namespace

std::unique_ptr<TrainOp> MakeRope(const model::Op& op, const model::RopeOp& params) {
  return std::make_unique<RopeTrainOp>(op, params);
}

std::unique_ptr<TrainOp> MakeAttention(const model::Op& op, const model::AttentionOp& params,
                                       const TrainOpContext& context) {
  return std::make_unique<AttentionTrainOp>(op, params, context.slices);
}

}  // namespace penstock::runtime
