// A weight matrix in the layout of cpu/gemm.h.

#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/result.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/pool.h"
#include "kernels/device.h"

namespace penstock::kernels {

// Shape of the packed data, from which every size follows.
struct PackedShape {
  int64_t rows = 0;
  int64_t columns = 0;
  WeightType type = WeightType::kF32;
  bool minima = false;  // kInt4 only
  bool mx = false;      // kInt4 only: MXFP4

  int64_t strips() const { return (rows + kStrip - 1) / kStrip; }

  int64_t group_columns() const;  // columns per group

  int64_t groups() const { return (columns + group_columns() - 1) / group_columns(); }

  int64_t word_bytes() const;   // per group and strip
  int64_t panel_bytes() const;  // of all panels, rounded up to 64
  int64_t bytes() const;        // panels, then for kInt8 scales and sums
};

class PackedMatrix final : public Matrix {
 public:
  // Packs with the threads of `pool`, a strip of rows at a time each. See Device::LoadMatrix.
  static Result<std::unique_ptr<PackedMatrix>> Load(std::span<const MatrixSource* const> parts,
                                                    WeightType type, ThreadPool& pool,
                                                    MemoryAccount& account);

  int64_t rows() const override { return shape_.rows; }

  int64_t columns() const override { return shape_.columns; }

  WeightType type() const override { return shape_.type; }

  int64_t bytes() const override { return shape_.bytes(); }

  const PackedShape& shape() const { return shape_; }

  const std::byte* panels() const { return buffer_.data(); }

  const float* scales() const;        // kInt8: per row, padded to strips
  const int32_t* row_sum128() const;  // kInt8: 128 times the sum of the row

  // out[c] = element (row, c) * scale. REQUIRES: 0 <= row < rows().
  void DequantizeRow(int64_t row, float scale, std::span<float> out) const;

 private:
  explicit PackedMatrix(PackedShape shape) : shape_(shape) {}

  // First word of (strip, group 0), and the distance between groups in bytes.
  struct StripPlace {
    int64_t first = 0;
    int64_t group_stride = 0;
    int64_t strip_in_panel = 0;
    int64_t width = 0;
  };

  StripPlace Place(int64_t strip) const;

  Result<> PackStrip(std::span<const MatrixSource* const> parts, int64_t strip);
  Result<> PackInt4Strip(std::span<const MatrixSource* const> parts, int64_t strip);
  struct Int4Block;
  Result<Int4Block> TakeBlock(const MatrixSource& part, int64_t row, const std::byte*& at) const;

  PackedShape shape_;
  Buffer buffer_;
};

}  // namespace penstock::kernels
