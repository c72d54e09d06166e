// Brings float32 matrices into the layouts of cpu/gemm.h for training: weights for both directions,
// and both operands of the gradient of the weights. Vectorized with Highway's run-time dispatch.
//
// A word is 4 bytes of a group: one float32, or two bf16 (nearest, ties to even) that follow each
// other along the direction that a product sums over.

#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/activations.h"
#include "kernels/cpu/packed_matrix.h"
#include "kernels/cpu/vector_ops.h"
#include "tensor/tensor.h"

namespace penstock::kernels {

// Columns of `source` are summed over, its rows are output features from `first_row` on: the image
// of x W^T. Packs the source's rows [rows.begin, rows.end); other lanes stay as they are.
void PackForward(Tensor source, const PackedShape& shape, int64_t first_row, std::byte* panels,
                 RowRange rows);

// Rows of `source` are summed over, as rows first_row + ... of the whole; its columns are output
// features: the image of dy W, and of x in dy^T x. Packs the source's rows [rows.begin, rows.end).
// With bf16 an odd begin, or an odd end that is not the whole's, writes one half of its words.
void PackBackward(Tensor source, const PackedShape& shape, int64_t first_row, std::byte* panels,
                  RowRange rows);

// Columns [columns.begin, columns.end) of `source` as rows of activations: row 0 of dst is column
// columns.begin, and the source's rows are summed over. `layout` is that of columns.end -
// columns.begin rows with source.rows() columns. bf16 with `as_f32`: as rounded float32.
void PackTransposed(Tensor source, WeightType type, bool as_f32, const ActivationLayout& layout,
                    std::byte* dst, RowRange columns);

}  // namespace penstock::kernels
