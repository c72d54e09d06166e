// Cheap numbers for measurements, where what they are does not matter: calibration and benchmarks.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "tensor/dtype.h"
#include "tensor/matrix_source.h"

namespace penstock::kernels {

// `count` numbers within -1 and 1, always the same.
inline std::vector<float> Numbers(int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  uint32_t state = 1;
  for (float& value : values) {
    state = state * 1664525 + 1013904223;
    value = static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31F;
  }
  return values;
}

// A matrix of them [rows, columns] that is never held whole: each row is the first one, turned. As
// float32, or as blocks of q4_0 or q4_1 (every block the same bytes).
class NumberSource final : public MatrixSource {
 public:
  NumberSource(int64_t rows, int64_t columns, DType type)
      : rows_(rows), columns_(columns), type_(type), row_(Numbers(columns)) {
    raw_.resize(static_cast<size_t>(RowBytes(type, (columns + 31) / 32 * 32)), std::byte{0x24});
  }

  const std::string& name() const override { return name_; }

  int64_t rows() const override { return rows_; }

  int64_t columns() const override { return columns_; }

  DType type() const override { return type_; }

  Result<> ReadRows(int64_t begin, int64_t count, std::span<float> out) const override {
    for (int64_t r = 0; r < count; ++r) {
      const auto shift = static_cast<size_t>((begin + r) * 31 % columns_);
      std::rotate_copy(row_.begin(), row_.begin() + static_cast<std::ptrdiff_t>(shift), row_.end(),
                       out.begin() + r * columns_);
    }
    return {};
  }

  std::span<const std::byte> RawRow(int64_t /*row*/) const override { return raw_; }

  void DropPages() const override {}

 private:
  std::string name_ = "numbers";
  int64_t rows_;
  int64_t columns_;
  DType type_;
  std::vector<float> row_;
  std::vector<std::byte> raw_;
};

}  // namespace penstock::kernels
