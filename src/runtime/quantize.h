// Quantizes a matrix while it is read, for --weights int4 with a file that has no 4-bit types.

#pragma once

#include <memory>

#include "tensor/matrix_source.h"

namespace penstock::runtime {

// Presents a matrix as GGUF blocks of type q4_1: 32 columns with a scale (largest minus smallest
// over 15) and a minimum, both f16. REQUIRES: columns are a multiple of 32. RawRow stays valid
// until the same thread's next call.
class Q41Source final : public MatrixSource {
 public:
  explicit Q41Source(std::unique_ptr<MatrixSource> inner);

  const std::string& name() const override { return inner_->name(); }

  int64_t rows() const override { return inner_->rows(); }

  int64_t columns() const override { return inner_->columns(); }

  DType type() const override { return DType::kQ4_1; }

  Result<> ReadRows(int64_t begin, int64_t count, std::span<float> out) const override;
  std::span<const std::byte> RawRow(int64_t row) const override;

  void DropPages() const override { inner_->DropPages(); }

 private:
  std::unique_ptr<MatrixSource> inner_;
};

}  // namespace penstock::runtime
