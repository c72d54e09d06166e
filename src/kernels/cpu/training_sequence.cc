// Short convolutions, delta attention and the SiTU unit of CpuTraining.

#include <algorithm>

#include "kernels/cpu/short_conv.h"
#include "kernels/cpu/training_delta.h"
#include "kernels/cpu/training_device.h"
#include "kernels/cpu/training_sequence_ops.h"

namespace penstock::kernels {
namespace {

int64_t Lines(int64_t floats) {
  return (floats + 15) / 16 * 16;
}

int64_t ForwardFloats(int64_t dim) {
  return Lines(DeltaHeadFloats(dim)) + Lines(DeltaScratchFloats(dim));
}

float* Scratch(Tensor workspace, int64_t bytes) {
  PENSTOCK_CHECK(workspace.bytes() >= bytes, "the workspace is large enough");
  return reinterpret_cast<float*>(workspace.Bytes().data());
}

}  // namespace

void CpuTraining::SituBackward(const SituParams& params, Tensor gate, Tensor up, Tensor dy,
                               bool accumulate_gate, Tensor dgate, bool accumulate_up, Tensor dup) {
  OverRows(dy, 8, [&](RowRange range) {
    SituBackRows(params, gate, up, dy, accumulate_gate, dgate, accumulate_up, dup, range);
  });
}

void CpuTraining::ShortConvForward(const ConvShape& shape, std::span<const Segment> segments,
                                   Tensor x, std::span<const float> weight, Tensor out) {
  const ConvRows conv{shape.taps, shape.activation, weight.data(), nullptr, true};
  OverColumns(x.columns(), x.rows() * shape.taps, [&](RowRange range) {
    for (const Segment& segment : segments) {
      ConvolveColumns(conv, x.Rows(segment.first_row, segment.rows),
                      out.Rows(segment.first_row, segment.rows), range.begin, range.end);
    }
  });
}

void CpuTraining::ShortConvBackwardInput(const ConvShape& shape, std::span<const Segment> segments,
                                         Tensor x, std::span<const float> weight, Tensor dy,
                                         bool accumulate, Tensor dx) {
  OverColumns(x.columns(), x.rows() * shape.taps, [&](RowRange range) {
    ConvInputColumns(shape, segments, x, weight.data(), dy, accumulate, dx, range);
  });
}

void CpuTraining::ShortConvBackwardWeight(const ConvShape& shape, std::span<const Segment> segments,
                                          Tensor x, std::span<const float> weight, Tensor dy,
                                          std::span<float> dweight) {
  OverColumns(x.columns(), x.rows() * shape.taps, [&](RowRange range) {
    ConvWeightColumns(shape, segments, x, weight.data(), dy, dweight.data(), range);
  });
}

int64_t CpuTraining::TrainDeltaWorkspaceBytes(const DeltaParams& params, int64_t rows) const {
  return 4 * pool_.threads() *
         std::max(ForwardFloats(params.dim), Lines(DeltaBackScratchFloats(params.dim, rows)));
}

template <class Body>
void CpuTraining::OverHeads(const DeltaParams& params, int64_t rows, const Body& body) {
  const auto run = [&](int thread, int64_t threads) {
    for (int64_t head = thread; head < params.heads; head += threads) {
      body(thread, head);
    }
  };
  if (rows * params.heads * params.dim * params.dim < CpuDevice::kSerialElements) {
    run(0, 1);
  } else {
    pool_.Run([&](int thread) { run(thread, pool_.threads()); });
  }
}

void CpuTraining::DeltaForward(const DeltaParams& params, std::span<const Segment> segments,
                               Tensor q, Tensor k, Tensor v, Tensor f, Tensor b, Tensor out,
                               Tensor workspace) {
  const int64_t floats = ForwardFloats(params.dim);
  float* scratch = Scratch(workspace, 4 * pool_.threads() * floats);
  OverHeads(params, q.rows(), [&](int thread, int64_t head) {
    float* state = scratch + thread * floats;
    for (const Segment& segment : segments) {
      const SequenceRows rows{
          .first_row = segment.first_row, .rows = segment.rows, .first_position = 0, .blocks = {}};
      RunDeltaHead({&params, head, &rows, state}, q, k, v, f, b, out,
                   state + Lines(DeltaHeadFloats(params.dim)));
    }
  });
}

void CpuTraining::DeltaBackward(const DeltaParams& params, std::span<const Segment> segments,
                                Tensor q, Tensor k, Tensor v, Tensor f, Tensor b, Tensor dout,
                                const DeltaGradients& gradients, Tensor workspace) {
  const int64_t floats = Lines(DeltaBackScratchFloats(params.dim, q.rows()));
  float* scratch = Scratch(workspace, 4 * pool_.threads() * floats);
  std::fill(gradients.sums.begin(), gradients.sums.end(), 0.0F);
  OverHeads(params, q.rows(), [&](int thread, int64_t head) {
    double rate_sum = 0;
    for (const Segment& segment : segments) {
      RunDeltaBackHead({&params, head, &segment}, q, k, v, f, b, dout, gradients, &rate_sum,
                       scratch + thread * floats);
    }
    gradients.sums[static_cast<size_t>(params.heads * params.dim + head)] =
        static_cast<float>(rate_sum);
  });
}

}  // namespace penstock::kernels
