// Tensor: a cheap view of memory with a type and a shape. The memory (a Buffer, a map) must outlive
// it.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "tensor/dtype.h"
#include "tensor/memory.h"

namespace penstock {

// A matrix view [rows, columns] of a plain (not block-quantized) type. Rows may be further apart
// than `columns` (a slice of columns of a wider matrix); elements of a row are adjacent. Copying
// copies the view, never the elements.
class Tensor {
 public:
  Tensor() = default;

  Tensor(void* data, DType type, int64_t rows, int64_t columns, int64_t row_stride)
      : data_(static_cast<std::byte*>(data)),
        type_(type),
        rows_(rows),
        columns_(columns),
        row_stride_(row_stride) {}

  Tensor(void* data, DType type, int64_t rows, int64_t columns)
      : Tensor(data, type, rows, columns, columns) {}

  // View of `buffer` from `offset_bytes` on. REQUIRES: it lies inside.
  static Tensor Of(Buffer& buffer, DType type, int64_t rows, int64_t columns,
                   int64_t offset_bytes = 0) {
    PENSTOCK_CHECK(
        offset_bytes >= 0 && offset_bytes + rows * RowBytes(type, columns) <= buffer.size(),
        "the view lies inside its buffer");
    return {buffer.data() + offset_bytes, type, rows, columns};
  }

  // The same with rows `row_stride` elements apart.
  static Tensor Strided(Buffer& buffer, DType type, int64_t rows, int64_t columns,
                        int64_t row_stride, int64_t offset_bytes) {
    const int64_t last = rows == 0 ? 0 : RowBytes(type, (rows - 1) * row_stride + columns);
    PENSTOCK_CHECK(
        offset_bytes >= 0 && columns <= row_stride && offset_bytes + last <= buffer.size(),
        "the view lies inside its buffer");
    return {buffer.data() + offset_bytes, type, rows, columns, row_stride};
  }

  bool empty() const { return data_ == nullptr; }

  DType type() const { return type_; }

  int64_t rows() const { return rows_; }

  int64_t columns() const { return columns_; }

  int64_t row_stride() const { return row_stride_; }  // in elements

  bool contiguous() const { return row_stride_ == columns_ || rows_ <= 1; }

  int64_t bytes() const { return rows_ * RowBytes(type_, columns_); }

  Tensor Rows(int64_t begin, int64_t count) const {
    PENSTOCK_DCHECK(begin >= 0 && count >= 0 && begin + count <= rows_, "rows inside");
    return {data_ + begin * RowBytes(type_, row_stride_), type_, count, columns_, row_stride_};
  }

  Tensor Columns(int64_t begin, int64_t count) const {
    PENSTOCK_DCHECK(begin >= 0 && count >= 0 && begin + count <= columns_, "columns inside");
    return {data_ + RowBytes(type_, begin), type_, rows_, count, row_stride_};
  }

  // The same rows with more columns, for a view of the first of several values that lie side by
  // side.
  Tensor Widened(int64_t columns) const {
    PENSTOCK_DCHECK(columns >= columns_ && columns <= row_stride_, "columns inside the row");
    return {data_, type_, rows_, columns, row_stride_};
  }

  // One row as numbers. T must be the storage type of `type()` (bf16 and f16: uint16_t).
  template <class T>
  std::span<T> Row(int64_t row) const {
    PENSTOCK_DCHECK(row >= 0 && row < rows_, "row inside");
    PENSTOCK_DCHECK(sizeof(T) == static_cast<size_t>(Traits(type_).block_bytes), "storage type");
    return {reinterpret_cast<T*>(data_) + row * row_stride_, static_cast<size_t>(columns_)};
  }

  // All elements. REQUIRES: contiguous().
  template <class T>
  std::span<T> All() const {
    PENSTOCK_DCHECK(contiguous(), "contiguous");
    return {reinterpret_cast<T*>(data_), static_cast<size_t>(rows_ * columns_)};
  }

  // The bytes of a contiguous view, for messages.
  std::span<std::byte> Bytes() const {
    PENSTOCK_DCHECK(contiguous(), "contiguous");
    return {data_, static_cast<size_t>(bytes())};
  }

 private:
  std::byte* data_ = nullptr;
  DType type_ = DType::kF32;
  int64_t rows_ = 0;
  int64_t columns_ = 0;
  int64_t row_stride_ = 0;
};

}  // namespace penstock
