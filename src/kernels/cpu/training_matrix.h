// A trainable matrix on the CPU: its two packed images.

#pragma once

#include <cstdint>
#include <memory>

#include "base/result.h"
#include "kernels/cpu/packed_matrix.h"
#include "kernels/cpu/pool.h"
#include "kernels/cpu/vector_ops.h"
#include "kernels/training.h"

namespace penstock::kernels {

inline WeightType PackedType(ProductType type) {
  return type == ProductType::kF32 ? WeightType::kF32 : WeightType::kBF16;
}

class CpuTrainMatrix final : public TrainMatrix {
 public:
  static int64_t Bytes(int64_t rows, int64_t columns, ProductType type);
  // Errors: kOutOfMemory.
  static Result<std::unique_ptr<CpuTrainMatrix>> Create(int64_t rows, int64_t columns,
                                                        ProductType type, ThreadPool& pool,
                                                        MemoryAccount& account);

  int64_t rows() const override { return forward_.rows; }

  int64_t columns() const override { return forward_.columns; }

  int64_t bytes() const override { return buffer_.size(); }

  // Output features are the matrix's rows: x W^T.
  const PackedShape& forward() const { return forward_; }

  const std::byte* forward_panels() const { return buffer_.data(); }

  // Output features are the matrix's columns: dy W.
  const PackedShape& backward() const { return backward_; }

  const std::byte* backward_panels() const { return buffer_.data() + forward_.panel_bytes(); }

  // See TrainingDevice::Repack.
  void Repack(Tensor master, int64_t first_row, ThreadPool& pool);
  // Of the master's rows [rows.begin, rows.end) alone. With bf16, pairs of the matrix's rows must
  // not be divided over threads.
  void PackRows(Tensor master, int64_t first_row, RowRange rows);

 private:
  CpuTrainMatrix(PackedShape forward, PackedShape backward)
      : forward_(forward), backward_(backward) {}

  PackedShape forward_;
  PackedShape backward_;
  Buffer buffer_;
};

}  // namespace penstock::kernels
