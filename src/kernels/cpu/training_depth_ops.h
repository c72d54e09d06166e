// Backward operations of reads over depth and multi-stream residuals, by rows or columns, with
// Highway's run-time dispatch. An element's result depends on the arguments only, never on the
// range it lies in. The contracts are TrainingDevice's.

#pragma once

#include <cstdint>
#include <span>

#include "kernels/cpu/vector_ops.h"
#include "kernels/device.h"
#include "tensor/tensor.h"

namespace penstock::kernels {

// Gradient of z = (query * key_norm) . s / sqrt(mean(s^2) + epsilon), a = softmax(z), y = sum of
// a_j s_j: with t_j = dy . s_j, dz_j = a_j (t_j - sum of a_i t_i) and r_j the root's inverse,
// ds_j = a_j dy + dz_j r_j (query * key_norm) - dz_j z_j r_j^2 / columns * s_j.
struct DepthReadGradient {
  std::span<const Tensor> sources;
  const float* query;
  const float* key_norm;  // may be null
  float epsilon;
};

void DepthReadBackwardRows(const DepthReadGradient& read, Tensor dy,
                           std::span<const uint8_t> accumulate, std::span<const Tensor> dsources,
                           Tensor factors, RowRange rows);
// Rows ascending, sources ascending within a row.
void DepthReadWeightColumns(const DepthReadGradient& read, Tensor factors, float* dquery,
                            float* dkey_norm, RowRange columns);

void StreamWeightsBackwardRows(const StreamParams& params, Tensor x, Tensor dc, bool accumulate,
                               Tensor dx, Tensor factors, RowRange rows);
// Columns of one stream; rows ascending, then streams, then coefficients.
void StreamMixColumns(const StreamParams& params, Tensor x, Tensor factors, Tensor dmix,
                      float* dnorm, RowRange columns);
void StreamReadBackwardRows(int64_t streams, Tensor x, Tensor c, Tensor dout, bool accumulate_x,
                            Tensor dx, bool accumulate_c, Tensor dc, RowRange rows);
void StreamWriteBackwardRows(int64_t streams, Tensor x, Tensor c, Tensor y, Tensor dout,
                             bool accumulate_x, Tensor dx, bool accumulate_c, Tensor dc,
                             bool accumulate_y, Tensor dy, RowRange rows);

}  // namespace penstock::kernels
