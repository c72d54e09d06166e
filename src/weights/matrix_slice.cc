#include "weights/matrix_slice.h"

#include <utility>
#include <vector>

#include "base/check.h"
#include "weights/dequantize.h"

namespace penstock::weights {
namespace {

constexpr int64_t kPrefetchBytes = 1 << 20;  // smaller reads leave reading ahead to the system

class SliceSource final : public MatrixSource {
 public:
  explicit SliceSource(MatrixSlice slice)
      : slice_(std::move(slice)), row_bytes_(RowBytes(slice_.type, slice_.columns)) {}

  const std::string& name() const override { return slice_.name; }

  int64_t rows() const override { return slice_.rows; }

  int64_t columns() const override { return slice_.columns; }

  DType type() const override { return slice_.type; }

  Result<> ReadRows(int64_t begin, int64_t count, std::span<float> out) const override {
    PENSTOCK_CHECK(begin >= 0 && count >= 0 && begin <= slice_.rows - count, "rows of this matrix");
    PENSTOCK_CHECK(static_cast<int64_t>(out.size()) == count * slice_.columns,
                   "room for just these rows");
    const int64_t bytes = count * row_bytes_;
    if (bytes >= kPrefetchBytes) {
      slice_.file->Prefetch(
          static_cast<size_t>(Offset(begin + count)),
          static_cast<size_t>(std::min(bytes, (slice_.rows - begin - count) * row_bytes_)));
    }
    const auto columns = static_cast<size_t>(slice_.columns);
    for (int64_t i = 0; i < count; ++i) {
      const std::span<float> row = out.subspan(static_cast<size_t>(i) * columns, columns);
      DequantizeRow(slice_.type, RawRow(begin + i), row);
      if (!AllFinite(row)) {
        return MakeError(
            ErrorCode::kCorruptData,
            "[weights.matrix] {}: tensor {}, row {}: NaN or infinity among its weights",
            slice_.file->path(), slice_.name, begin + i);
      }
      Finish(row);
    }
    return {};
  }

  std::span<const std::byte> RawRow(int64_t row) const override {
    PENSTOCK_DCHECK(row >= 0 && row < slice_.rows, "a row of this matrix");
    const int64_t stored = slice_.rows > 1 ? StoredIndex(row) : row;
    return slice_.file->bytes().subspan(static_cast<size_t>(Offset(stored)),
                                        static_cast<size_t>(row_bytes_));
  }

  void DropPages() const override {
    slice_.file->DropPages(slice_.offset, static_cast<size_t>(slice_.rows * row_bytes_));
  }

 private:
  uint64_t Offset(int64_t stored_row) const {
    return slice_.offset + static_cast<uint64_t>(stored_row * row_bytes_);
  }

  int64_t StoredIndex(int64_t row) const {
    const int64_t size = slice_.permuted_head_rows;
    if (size == 0) {
      return row;
    }
    const int64_t within = row % size;
    return row - within + within % (size / 2) * 2 + within / (size / 2);
  }

  // What concerns elements: the offset of norms, the permutation of a bias.
  void Finish(std::span<float> row) const {
    if (slice_.minus_one) {
      for (float& value : row) {
        value -= 1.0F;
      }
    }
    if (slice_.rows == 1 && slice_.permuted_head_rows > 0) {
      const std::vector<float> stored(row.begin(), row.end());
      for (size_t i = 0; i < row.size(); ++i) {
        row[i] = stored[static_cast<size_t>(StoredIndex(static_cast<int64_t>(i)))];
      }
    }
  }

  MatrixSlice slice_;
  int64_t row_bytes_;
};

}  // namespace

std::unique_ptr<MatrixSource> MakeMatrixSource(MatrixSlice slice) {
  return std::make_unique<SliceSource>(std::move(slice));
}

}  // namespace penstock::weights
