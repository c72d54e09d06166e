// Row-wise operations of the CPU device, vectorized with Highway's run-time dispatch.
//
// Each takes a range of rows [begin, end), the share of one thread. An element's result depends on
// its row and column only. Tensors are float32 unless said otherwise.

#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/activations.h"
#include "kernels/device.h"
#include "tensor/tensor.h"

namespace penstock::kernels {

struct RowRange {
  int64_t begin = 0;
  int64_t end = 0;
};

void RmsNormRows(Tensor x, const float* weight, float epsilon, bool add_one, int64_t group,
                 Tensor out, RowRange rows);
void GatedRows(Activation activation, Tensor gate, Tensor up, Tensor out, RowRange rows);
void SituRows(const SituParams& params, Tensor gate, Tensor up, Tensor out, RowRange rows);
void ActRows(Activation activation, Tensor x, Tensor out, RowRange rows);
void AddRows(Tensor a, Tensor b, Tensor out, RowRange rows);
void ScaleRows(Tensor x, float factor, Tensor out, RowRange rows);
void SoftCapRows(Tensor x, float cap, Tensor out, RowRange rows);
// out[r] += factor[r] * x[r] for row r of `rows`, into row target[r] of out.
void AddScaledRows(Tensor x, const int32_t* target, const float* factor, Tensor out, RowRange rows);
// out [rows, weight.rows()] = x weight^T with one fixed order per output (a router's logits).
void RouterRows(Tensor x, Tensor weight, float* out, RowRange rows);
// In place: softmax of each row.
void SoftmaxRows(Tensor x, RowRange rows);
// Row of x with a NaN or infinity, the first in `rows`, or -1.
int64_t FirstNonFinite(Tensor x, RowRange rows);

// cos, sin [rows, rotary_dim / 2] are the tables of each row, already scaled.
void RopeRows(Tensor x, const RopeParams& params, const float* cos, const float* sin, Tensor out,
              RowRange rows);

// ---- Activations as the matrix products want them (see cpu/gemm.h and cpu/activations.h). ----

// Symmetric 8 bits per row: scale[r] = max |x| / 127. `offset` adds 128 (unsigned). A row with a
// NaN or infinity gets a NaN scale, so its results are NaN.
void QuantizeRowsInt8(Tensor x, bool offset, const ActivationLayout& layout, std::byte* dst,
                      float* scale, RowRange rows);
// 8 bits per block of 32 columns, in the layout of an int4 product.
void QuantizeRowsInt4(Tensor x, bool minima, const ActivationLayout& layout, std::byte* dst,
                      RowRange rows);
// As they are.
void CopyRows(Tensor x, const ActivationLayout& layout, std::byte* dst, RowRange rows);
// Rounded to bf16 (nearest, ties to even): as bf16, or as float32 with `as_f32`.
void RoundRowsBf16(Tensor x, bool as_f32, const ActivationLayout& layout, std::byte* dst,
                   RowRange rows);

}  // namespace penstock::kernels
