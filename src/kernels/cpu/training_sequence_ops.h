// Backward of short convolutions and of the SiTU unit on the CPU, vectorized with Highway's
// run-time dispatch. Each takes a range of rows or of columns, the share of one thread; an
// element's result never depends on the range it lies in.

#pragma once

#include <cstdint>
#include <span>

#include "kernels/cpu/vector_ops.h"
#include "kernels/device.h"
#include "kernels/training.h"
#include "tensor/tensor.h"

namespace penstock::kernels {

// Arguments as TrainingDevice's; `weight` [width x taps].
void ConvInputColumns(const ConvShape& shape, std::span<const Segment> segments, Tensor x,
                      const float* weight, Tensor dy, bool accumulate, Tensor dx, RowRange columns);
void ConvWeightColumns(const ConvShape& shape, std::span<const Segment> segments, Tensor x,
                       const float* weight, Tensor dy, float* dweight, RowRange columns);
void SituBackRows(const SituParams& params, Tensor gate, Tensor up, Tensor dy, bool accumulate_gate,
                  Tensor dgate, bool accumulate_up, Tensor dup, RowRange rows);

}  // namespace penstock::kernels
