#include "kernels/cpu/training_matrix.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/training_pack.h"

namespace penstock::kernels {
namespace {

PackedShape Shape(int64_t rows, int64_t columns, ProductType type) {
  return {rows, columns, PackedType(type), false};
}

}  // namespace

int64_t CpuTrainMatrix::Bytes(int64_t rows, int64_t columns, ProductType type) {
  return Shape(rows, columns, type).panel_bytes() + Shape(columns, rows, type).panel_bytes();
}

Result<std::unique_ptr<CpuTrainMatrix>> CpuTrainMatrix::Create(int64_t rows, int64_t columns,
                                                               ProductType type, ThreadPool& pool,
                                                               MemoryAccount& account) {
  PENSTOCK_CHECK(rows > 0 && columns > 0, "a matrix has elements");
  std::unique_ptr<CpuTrainMatrix> matrix(
      new CpuTrainMatrix(Shape(rows, columns, type), Shape(columns, rows, type)));
  PENSTOCK_TRY_ASSIGN(matrix->buffer_, Buffer::Allocate(account, MemoryCategory::kWeights,
                                                        Bytes(rows, columns, type)));
  // Lanes and groups beyond the matrix must be zero; each page is touched by the thread that will
  // read about there.
  std::byte* data = matrix->buffer_.data();
  pool.Split(matrix->buffer_.size(), false, [&](int64_t begin, int64_t end) {
    std::memset(data + begin, 0, static_cast<size_t>(end - begin));
  });
  return matrix;
}

void CpuTrainMatrix::Repack(Tensor master, int64_t first_row, ThreadPool& pool) {
  PENSTOCK_CHECK(
      master.columns() == columns() && first_row >= 0 && first_row + master.rows() <= rows(),
      "the master's rows lie in the matrix");
  // A strip of rows at a time, so that the second image is made from rows that are near.
  const int64_t first_strip = first_row / kStrip;
  const int64_t strips = (first_row + master.rows() + kStrip - 1) / kStrip - first_strip;
  pool.Split(strips, master.rows() * master.columns() < 16384, [&](int64_t begin, int64_t end) {
    for (int64_t s = first_strip + begin; s < first_strip + end; ++s) {
      const RowRange rows{std::max<int64_t>(0, s * kStrip - first_row),
                          std::min(master.rows(), (s + 1) * kStrip - first_row)};
      PackRows(master, first_row, rows);
    }
  });
}

void CpuTrainMatrix::PackRows(Tensor master, int64_t first_row, RowRange rows) {
  std::byte* forward = buffer_.data();
  PackForward(master, forward_, first_row, forward, rows);
  PackBackward(master, backward_, first_row, forward + forward_.panel_bytes(), rows);
}

}  // namespace penstock::kernels
