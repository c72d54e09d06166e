// Where a weight matrix or vector comes from: read by rows while it is packed, so that nothing is
// held twice.

#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"
#include "tensor/dtype.h"

namespace penstock {

// A matrix [rows, columns] inside a file (vectors have one row). Rows are output features, columns
// input features. Implementations undo whatever the file format did to the tensor (row
// permutations, fused or split parts), so that rows come in the canonical order of Hugging Face.
// Thread-safe for reading.
class MatrixSource {
 public:
  virtual ~MatrixSource() = default;

  virtual const std::string& name() const = 0;  // canonical tensor name
  virtual int64_t rows() const = 0;
  virtual int64_t columns() const = 0;
  virtual DType type() const = 0;  // as stored

  // Dequantizes rows [begin, begin + count) into `out` [count, columns].
  // Errors: kCorruptData when an element is NaN or infinite, naming tensor and row.
  virtual Result<> ReadRows(int64_t begin, int64_t count, std::span<float> out) const = 0;

  // The stored bytes of one row, RowBytes(type(), columns()) long, not dequantized.
  virtual std::span<const std::byte> RawRow(int64_t row) const = 0;

  // Tells the file that the pages of this matrix are not needed any more.
  virtual void DropPages() const = 0;
};

}  // namespace penstock
