// How a product's activations lie in its workspace.

#pragma once

#include <cstdint>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/packed_matrix.h"

namespace penstock::kernels {

struct ActivationLayout {
  int64_t padded = 0;        // columns
  int64_t stride = 0;        // bytes of a row; 0: the activations are used where they are
  int64_t scales_bytes = 0;  // per row, after all rows

  int64_t Bytes(int64_t rows) const { return rows * (stride + scales_bytes); }
};

inline ActivationLayout LayoutOf(const PackedShape& shape, const GemmKernels& kernels) {
  ActivationLayout layout;
  layout.padded = shape.groups() * shape.group_columns();
  int64_t bytes = 0;
  switch (shape.type) {
    case WeightType::kF32:
      return layout;
    case WeightType::kBF16:
      bytes = layout.padded * (kernels.bf16_as_f32 ? 4 : 2);
      break;
    case WeightType::kInt8:
      bytes = layout.padded;
      layout.scales_bytes = 4;
      break;
    case WeightType::kInt4:
      bytes = shape.groups() * kInt4ActivationBytes;
      break;
  }
  // Whole cache lines, and an odd number of them: rows at a distance of a power of two would fall
  // into the same sets of the cache.
  layout.stride = ((bytes + 63) / 64 | 1) * 64;
  return layout;
}

}  // namespace penstock::kernels
