// Latent attention in training: keys and values are expanded, and attended as in ordinary
// attention. (Absorbed is a way of decoding: in training it would multiply more.)

#include <algorithm>

#include "runtime/train_ops.h"

namespace penstock::runtime {
namespace {

class LatentAttentionTrainOp final : public TrainOp {
 public:
  LatentAttentionTrainOp(const model::Op& op, const model::LatentAttentionOp& params,
                         const TrainOpContext& context)
      : TrainOp(op), type_(context.products), p_(params), attention_{params.heads,
                                                                     params.heads,
                                                                     params.nope + params.rope,
                                                                     params.value_dim,
                                                                     params.scale,
                                                                     0.0F,
                                                                     0} {
    traits.inputs = {kReadInI, kReadInW, kNotRead};
    traits.outputs = {kReadInI};
    traits.into = {GradientInto::kWrites, GradientInto::kEither, GradientInto::kEither};
    traits.matrices = {{params.expand}};
    traits.gradients = {{params.expand}};
    traits.writes_first = true;
    traits.extras = {{.from_forward = true, .read = kReadInI},    // lse
                     {.from_forward = true, .read = kReadInI},    // keys
                     {.from_forward = true, .read = kReadInI},    // values
                     {.from_forward = false, .read = kReadInW}};  // gradient of the expansion
  }

  // First what is wanted while attention runs, then its own; a product follows or goes before.
  int64_t WorkspaceBytes(const OpShape& shape,
                         const kernels::TrainingDevice& device) const override {
    const int64_t attention =
        device.TrainAttentionWorkspaceBytes(attention_, shape.rows, shape.rows);
    const int64_t product = device.ProductWorkspaceBytes(Width(), p_.latent, type_, shape.rows);
    return Align(shape.rows * p_.heads * (KeyDim() + p_.value_dim) * 4) +
           std::max(attention, product);
  }

  int64_t ExtraBytes(size_t extra, const OpShape& shape,
                     const kernels::TrainingDevice&) const override {
    const int64_t widths[] = {1, KeyDim(), p_.value_dim, p_.nope + p_.value_dim};
    return shape.rows * p_.heads * widths[extra] * 4;
  }

  void Forward(OpFrame& f) const override {
    const int64_t rows = f.in[0].rows();
    const Tensor kv = Front(f, rows, 0, Width());
    f.device.LinearForward(*f.matrices[0], f.in[1], {}, kv, Rest(f, rows));
    const Tensor k = Extra(f, 1, rows, p_.heads * KeyDim());
    const Tensor v = Extra(f, 2, rows, p_.heads * p_.value_dim);
    for (int64_t r = 0; r < rows; ++r) {
      const float* from = kv.Row<float>(r).data();
      const std::span<const float> shared = f.in[2].Row<float>(r);
      float* key = k.Row<float>(r).data();
      float* value = v.Row<float>(r).data();
      for (int64_t h = 0; h < p_.heads; ++h) {
        key = std::copy_n(from, p_.nope, key);
        key = std::copy(shared.begin(), shared.end(), key);
        value = std::copy_n(from + p_.nope, p_.value_dim, value);
        from += p_.nope + p_.value_dim;
      }
    }
    f.device.AttentionForward(attention_, f.rows.segments, f.in[0], k, v, f.out[0],
                              Extra(f, 0, rows, p_.heads), Rest(f, rows));
  }

  void BackwardInput(OpFrame& f) const override {
    const int64_t rows = f.in[0].rows();
    const Tensor dk = Front(f, rows, 0, p_.heads * KeyDim());
    const Tensor dv = Front(f, rows, rows * p_.heads * KeyDim() * 4, p_.heads * p_.value_dim);
    f.device.Fill(dk, 0.0F);
    f.device.Fill(dv, 0.0F);
    f.device.AttentionBackward(
        attention_, f.rows.segments, f.in[0], Extra(f, 1, rows, p_.heads * KeyDim()),
        Extra(f, 2, rows, p_.heads * p_.value_dim), f.out[0], Extra(f, 0, rows, p_.heads),
        f.dout[0], f.din[0], dk, dv, Rest(f, rows));
    const Tensor dkv = Extra(f, 3, rows, Width());
    for (int64_t r = 0; r < rows; ++r) {
      float* to = dkv.Row<float>(r).data();
      const float* key = dk.Row<float>(r).data();
      const float* value = dv.Row<float>(r).data();
      const std::span<float> shared = f.din[2].Row<float>(r);
      if (f.accumulate[2] == 0) {
        std::fill(shared.begin(), shared.end(), 0.0F);
      }
      for (int64_t h = 0; h < p_.heads; ++h) {  // heads ascending, one term after the other
        to = std::copy_n(key, p_.nope, to);
        to = std::copy_n(value, p_.value_dim, to);
        for (size_t i = 0; i < shared.size(); ++i) {
          shared[i] += key[p_.nope + static_cast<int64_t>(i)];
        }
        key += KeyDim();
        value += p_.value_dim;
      }
    }
    f.device.LinearBackwardInput(*f.matrices[0], dkv, f.accumulate[1] != 0, f.din[1],
                                 Rest(f, rows));
  }

  void BackwardWeight(OpFrame& f) const override {
    f.device.LinearBackwardWeight(type_, Extra(f, 3, f.in[1].rows(), Width()), f.in[1], !f.first,
                                  f.gradients[0], f.workspace);
  }

 private:
  static int64_t Align(int64_t bytes) { return (bytes + 63) / 64 * 64; }

  int64_t KeyDim() const { return p_.nope + p_.rope; }

  int64_t Width() const { return p_.heads * (p_.nope + p_.value_dim); }

  // Of the first part of the workspace.
  static Tensor Front(const OpFrame& f, int64_t rows, int64_t offset_bytes, int64_t width) {
    return {f.workspace.Bytes().data() + offset_bytes, DType::kF32, rows, width};
  }

  // The workspace behind it.
  Tensor Rest(const OpFrame& f, int64_t rows) const {
    const int64_t used = Align(rows * p_.heads * (KeyDim() + p_.value_dim) * 4);
    return f.workspace.Columns(used, f.workspace.columns() - used);
  }

  static Tensor Extra(const OpFrame& f, size_t extra, int64_t rows, int64_t width) {
    return {f.extras[extra].Bytes().data(), DType::kF32, rows, width};
  }

  kernels::ProductType type_;
  const model::LatentAttentionOp& p_;
  kernels::AttentionParams attention_;
};

}  // namespace

std::unique_ptr<TrainOp> MakeLatentAttention(const model::Op& op,
                                             const model::LatentAttentionOp& params,
                                             const TrainOpContext& context) {
  if (context.slices > 1) {
    return nullptr;  // keys of earlier slices are not kept
  }
  return std::make_unique<LatentAttentionTrainOp>(op, params, context);
}

}  // namespace penstock::runtime
