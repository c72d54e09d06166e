// TrainingDevice on the CPU: deals rows, columns and heads to the device's threads.

#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/training_matrix.h"
#include "kernels/training.h"

namespace penstock::kernels {

class CpuTraining final : public TrainingDevice {
 public:
  explicit CpuTraining(CpuDevice& device)
      : device_(device), kernels_(device.kernels()), pool_(device.pool()) {}

  Device& device() override { return device_; }

  int64_t TrainMatrixBytes(int64_t rows, int64_t columns, ProductType type) const override;
  Result<std::unique_ptr<TrainMatrix>> CreateMatrix(int64_t rows, int64_t columns, ProductType type,
                                                    MemoryAccount& account) override;
  void Repack(TrainMatrix& matrix, Tensor master, int64_t first_row) override;
  int64_t ProductWorkspaceBytes(int64_t outputs, int64_t inputs, ProductType type,
                                int64_t rows) const override;
  void LinearForward(const TrainMatrix& w, Tensor x, Tensor bias, Tensor out,
                     Tensor workspace) override;
  void LinearBackwardInput(const TrainMatrix& w, Tensor dy, bool accumulate, Tensor dx,
                           Tensor workspace) override;
  void LinearBackwardWeight(ProductType type, Tensor dy, Tensor x, bool accumulate, Tensor dw,
                            Tensor workspace) override;
  void AddColumnSums(Tensor x, Tensor out) override;

  void EmbedForward(Tensor table, std::span<const int32_t> ids, float scale, Tensor out) override;
  void EmbedBackwardWeight(std::span<const int32_t> ids, float scale, Tensor dy,
                           Tensor dtable) override;

  void RmsNormBackwardInput(Tensor x, Tensor weight, float epsilon, bool add_one, int64_t group,
                            Tensor dy, bool accumulate, Tensor dx) override;
  void RmsNormBackwardWeight(Tensor x, float epsilon, int64_t group, Tensor dy,
                             Tensor dweight) override;
  void RopeForward(Tensor x, const RopeParams& params, std::span<const Segment> segments,
                   Tensor out) override;
  void RopeBackward(Tensor dy, const RopeParams& params, std::span<const Segment> segments,
                    bool accumulate, Tensor dx) override;
  void GatedBackward(Activation activation, Tensor gate, Tensor up, Tensor dy, bool accumulate_gate,
                     Tensor dgate, bool accumulate_up, Tensor dup) override;
  void ActBackward(Activation activation, Tensor x, Tensor dy, bool accumulate, Tensor dx) override;
  void SituBackward(const SituParams& params, Tensor gate, Tensor up, Tensor dy,
                    bool accumulate_gate, Tensor dgate, bool accumulate_up, Tensor dup) override;
  void ScaleInto(Tensor dy, float factor, bool accumulate, Tensor dx) override;
  void SoftCapBackward(Tensor x, float cap, Tensor dy, bool accumulate, Tensor dx) override;
  void ScatterAddRows(Tensor dy, std::span<const int32_t> rows, Tensor dx) override;
  void Dropout(Tensor x, const DropoutKey& key, float rate, Tensor out) override;
  void DropoutBackward(Tensor dy, const DropoutKey& key, float rate, bool accumulate,
                       Tensor dx) override;

  void DepthReadBackwardInput(std::span<const Tensor> sources, Tensor query, Tensor key_norm,
                              float epsilon, Tensor dy, std::span<const uint8_t> accumulate,
                              std::span<const Tensor> dsources, Tensor factors) override;
  void DepthReadBackwardWeight(std::span<const Tensor> sources, Tensor query, Tensor key_norm,
                               Tensor factors, Tensor dquery, Tensor dkey_norm) override;
  void StreamWeightsBackwardInput(const StreamParams& params, Tensor x, Tensor dc, bool accumulate,
                                  Tensor dx, Tensor factors) override;
  void StreamWeightsBackwardWeight(const StreamParams& params, Tensor x, Tensor dc, Tensor factors,
                                   Tensor dbase, Tensor dmix, Tensor dnorm, Tensor dscale) override;
  void StreamReadBackward(int64_t streams, Tensor x, Tensor c, Tensor dout, bool accumulate_x,
                          Tensor dx, bool accumulate_c, Tensor dc) override;
  void StreamWriteBackward(int64_t streams, Tensor x, Tensor c, Tensor y, Tensor dout,
                           bool accumulate_x, Tensor dx, bool accumulate_c, Tensor dc,
                           bool accumulate_y, Tensor dy) override;

  int64_t TrainAttentionWorkspaceBytes(const AttentionParams& params, int64_t rows,
                                       int64_t keys) const override;
  void AttentionForward(const AttentionParams& params, std::span<const Segment> segments, Tensor q,
                        Tensor k, Tensor v, Tensor out, Tensor lse, Tensor workspace) override;
  void AttentionBackward(const AttentionParams& params, std::span<const Segment> segments, Tensor q,
                         Tensor k, Tensor v, Tensor out, Tensor lse, Tensor dout, Tensor dq,
                         Tensor dk, Tensor dv, Tensor workspace) override;

  void ShortConvForward(const ConvShape& shape, std::span<const Segment> segments, Tensor x,
                        std::span<const float> weight, Tensor out) override;
  void ShortConvBackwardInput(const ConvShape& shape, std::span<const Segment> segments, Tensor x,
                              std::span<const float> weight, Tensor dy, bool accumulate,
                              Tensor dx) override;
  void ShortConvBackwardWeight(const ConvShape& shape, std::span<const Segment> segments, Tensor x,
                               std::span<const float> weight, Tensor dy,
                               std::span<float> dweight) override;
  int64_t TrainDeltaWorkspaceBytes(const DeltaParams& params, int64_t rows) const override;
  void DeltaForward(const DeltaParams& params, std::span<const Segment> segments, Tensor q,
                    Tensor k, Tensor v, Tensor f, Tensor b, Tensor out, Tensor workspace) override;
  void DeltaBackward(const DeltaParams& params, std::span<const Segment> segments, Tensor q,
                     Tensor k, Tensor v, Tensor f, Tensor b, Tensor dout,
                     const DeltaGradients& gradients, Tensor workspace) override;

  int64_t MoeSavedBytes(int64_t experts, int64_t chosen, int64_t width, int64_t ffn,
                        int64_t rows) const override;
  int64_t MoeHeldBytes(int64_t experts, int64_t chosen, int64_t width, int64_t ffn,
                       int64_t rows) const override;
  int64_t TrainMoeWorkspaceBytes(int64_t experts, int64_t chosen, int64_t width, int64_t ffn,
                                 ProductType type, int64_t rows) const override;
  void MoeForward(const TrainMoeParams& params, Tensor x, Tensor out, Tensor saved,
                  Tensor workspace) override;
  void MoeBackwardInput(const TrainMoeParams& params, Tensor x, Tensor saved, Tensor dy,
                        bool accumulate, Tensor dx, Tensor held, Tensor workspace) override;
  void MoeBackwardWeight(const TrainMoeParams& params, Tensor x, Tensor saved, Tensor dy,
                         Tensor held, Tensor drouter, std::span<const Tensor> dgate_up,
                         std::span<const Tensor> ddown, Tensor workspace) override;

  void CrossEntropy(Tensor logits, std::span<const int32_t> targets, std::span<double> nll,
                    Tensor lse) override;
  void CrossEntropyBackward(Tensor logits, std::span<const int32_t> targets, Tensor lse,
                            float factor, Tensor dlogits) override;
  double SumOfSquares(Tensor x) override;
  void AdamW(const AdamWParams& params, Tensor g, Tensor w, Tensor m, Tensor v) override;
  void AdamWRepack(const AdamWParams& params, Tensor g, Tensor w, Tensor m, Tensor v,
                   std::span<const PackedRows> images) override;
  void Fill(Tensor x, float value) override;

 private:
  // body(thread, head) over the heads of delta attention.
  template <class Body>
  void OverHeads(const DeltaParams& params, int64_t rows, const Body& body);

  // body(RowRange) over the rows of `out`, in shares when there is enough work.
  template <class Body>
  void OverRows(Tensor out, int64_t work_per_element, const Body& body) {
    const bool serial = out.rows() * out.columns() * work_per_element < CpuDevice::kSerialElements;
    pool_.Split(out.rows(), serial, [&](int64_t begin, int64_t end) {
      body(RowRange{begin, end});
    });
  }

  // body(RowRange) over the rows of segments; other rows are not touched.
  template <class Body>
  void OverSegments(std::span<const Segment> segments, int64_t columns, const Body& body) {
    for (const Segment& segment : segments) {
      pool_.Split(segment.rows, segment.rows * columns < CpuDevice::kSerialElements,
                  [&](int64_t begin, int64_t end) {
                    body(RowRange{segment.first_row + begin, segment.first_row + end});
                  });
    }
  }

  // body(RowRange) over columns in whole cache lines; `rows` rows of work for each.
  template <class Body>
  void OverColumns(int64_t columns, int64_t rows, const Body& body) {
    pool_.Split((columns + 15) / 16, rows * columns < CpuDevice::kSerialElements,
                [&](int64_t begin, int64_t end) {
                  body(RowRange{begin * 16, std::min(columns, end * 16)});
                });
  }

  // out = x P + bias, where P is the packed image `panels` of `shape`. At most `most_groups` groups
  // are summed before they are added to `out`.
  void Product(const PackedShape& shape, const std::byte* panels, Tensor x, const float* bias,
               int64_t bias_stride, int64_t most_groups, Tensor out, Tensor workspace);

  // Brings x into `args` as `layout` says.
  void PackActivations(Tensor x, const ActivationLayout& layout, bool f32, Tensor workspace,
                       GemmArgs& args);

  // Workspace of the products inside a mixture of experts. REQUIRES: the workspace is large enough.
  int64_t MoeProductBytes(const TrainMoeParams& params, Tensor x, Tensor workspace) const;

  CpuDevice& device_;
  const GemmKernels& kernels_;
  ThreadPool& pool_;
  std::vector<float> norms_;    // of the rows of one call
  std::vector<double> blocks_;  // sums of blocks of one call
};

}  // namespace penstock::kernels
