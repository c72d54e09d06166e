// How a product's activations lie in its workspace.

#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/packed_matrix.h"

namespace penstock::kernels {

struct ActivationLayout {
  bool packed = false;  // else the activations are used where they are
  int64_t rows = 0;
  int64_t columns = 0;  // padded to groups
  int64_t blocks = 0;
  int64_t block_groups = 0;
  int64_t block_columns = 0;
  int64_t row_stride = 0;    // bytes of a row in a block
  int64_t scales_bytes = 0;  // of all rows, after all blocks

  int64_t block_stride() const { return rows * row_stride; }

  int64_t bytes() const { return blocks * block_stride() + scales_bytes; }
};

inline ActivationLayout LayoutOf(const PackedShape& shape, int64_t rows,
                                 const GemmKernels& kernels) {
  ActivationLayout layout;
  layout.rows = rows;
  layout.columns = shape.groups() * shape.group_columns();
  layout.packed = shape.type != WeightType::kF32 || rows > kFewRows;
  const int64_t most = shape.type == WeightType::kInt4 ? kInt4BlockGroups : kBlockGroups;
  layout.block_groups = rows <= kFewRows ? shape.groups() : std::min(most, shape.groups());
  layout.block_columns = layout.block_groups * shape.group_columns();
  if (!layout.packed) {
    return layout;
  }
  layout.blocks = (shape.groups() + layout.block_groups - 1) / layout.block_groups;
  int64_t group_bytes = 4;
  if (shape.type == WeightType::kInt4) {
    group_bytes = kInt4ActivationBytes;
  } else if (shape.type == WeightType::kBF16 && kernels.bf16_as_f32) {
    group_bytes = 8;
  }
  layout.row_stride = layout.block_groups * group_bytes;
  layout.scales_bytes = shape.type == WeightType::kInt8 ? rows * 4 : 0;
  return layout;
}

}  // namespace penstock::kernels
