#include "weights/derived_source.h"

#include <cmath>
#include <utility>
#include <vector>

#include "base/check.h"
#include "weights/dequantize.h"

namespace penstock::weights {
namespace {

class DerivedSource : public MatrixSource {
 public:
  DerivedSource(std::string name, int64_t rows, int64_t columns)
      : name_(std::move(name)), rows_(rows), columns_(columns) {}

  const std::string& name() const override { return name_; }

  int64_t rows() const override { return rows_; }

  int64_t columns() const override { return columns_; }

  DType type() const override { return DType::kF32; }

  // Computed: there are no stored bytes in this shape.
  std::span<const std::byte> RawRow(int64_t /*row*/) const override {
    PENSTOCK_CHECK(false, "only 4-bit matrices are read raw");
    return {};
  }

 private:
  std::string name_;
  int64_t rows_;
  int64_t columns_;
};

class Mxfp4Source final : public DerivedSource {
 public:
  Mxfp4Source(std::string name, std::unique_ptr<MatrixSource> packed,
              std::unique_ptr<MatrixSource> scales)
      : DerivedSource(std::move(name), packed->rows(), packed->columns() * 2),
        packed_(std::move(packed)),
        scales_(std::move(scales)) {}

  DType type() const override { return DType::kMXFP4; }

  Result<> ReadRows(int64_t begin, int64_t count, std::span<float> out) const override {
    for (int64_t i = 0; i < count; ++i) {
      const auto row =
          out.subspan(static_cast<size_t>(i * columns()), static_cast<size_t>(columns()));
      DequantizeRow(DType::kMXFP4, RawRow(begin + i), row);
      if (!AllFinite(row)) {
        return MakeError(ErrorCode::kCorruptData,
                         "[weights.mxfp4] tensor {}, row {}: a scale that is not a number", name(),
                         begin + i);
      }
    }
    return {};
  }

  std::span<const std::byte> RawRow(int64_t row) const override {
    thread_local std::vector<std::byte> blocks;
    const std::span<const std::byte> packed = packed_->RawRow(row);
    const std::span<const std::byte> scales = scales_->RawRow(row);
    blocks.resize(static_cast<size_t>(RowBytes(DType::kMXFP4, columns())));
    const auto half = [&](size_t column) {
      const auto both = std::to_integer<unsigned>(packed[column / 2]);
      return column % 2 == 0 ? both & 15U : both >> 4U;
    };
    for (size_t b = 0; b < scales.size(); ++b) {
      blocks[b * 17] = scales[b];
      for (size_t i = 0; i < 16; ++i) {  // elements i and i + 16 of a block share a byte
        blocks[b * 17 + 1 + i] =
            static_cast<std::byte>(half(b * 32 + i) | half(b * 32 + 16 + i) << 4U);
      }
    }
    return blocks;
  }

  void DropPages() const override {
    packed_->DropPages();
    scales_->DropPages();
  }

 private:
  std::unique_ptr<MatrixSource> packed_;
  std::unique_ptr<MatrixSource> scales_;
};

class SplitKeyValueSource final : public DerivedSource {
 public:
  SplitKeyValueSource(std::string name, int64_t heads, std::unique_ptr<MatrixSource> keys,
                      std::unique_ptr<MatrixSource> values)
      : DerivedSource(std::move(name), heads * keys->columns() + values->rows(), values->columns()),
        nope_(keys->columns()),
        value_(values->rows() / heads),
        keys_(std::move(keys)),
        values_(std::move(values)) {}

  Result<> ReadRows(int64_t begin, int64_t count, std::span<float> out) const override {
    std::vector<float> head_keys;  // [latent, nope] of one head
    int64_t held = -1;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t head = (begin + i) / (nope_ + value_);
      const int64_t row = (begin + i) % (nope_ + value_);
      const auto to =
          out.subspan(static_cast<size_t>(i * columns()), static_cast<size_t>(columns()));
      if (row >= nope_) {
        PENSTOCK_TRY(values_->ReadRows(head * value_ + row - nope_, 1, to));
        continue;
      }
      if (held != head) {
        head_keys.resize(static_cast<size_t>(columns() * nope_));
        PENSTOCK_TRY(keys_->ReadRows(head * columns(), columns(), head_keys));
        held = head;
      }
      for (int64_t c = 0; c < columns(); ++c) {
        to[static_cast<size_t>(c)] = head_keys[static_cast<size_t>(c * nope_ + row)];
      }
    }
    return {};
  }

  void DropPages() const override {
    keys_->DropPages();
    values_->DropPages();
  }

 private:
  int64_t nope_;
  int64_t value_;
  std::unique_ptr<MatrixSource> keys_;
  std::unique_ptr<MatrixSource> values_;
};

class LogOfNegativeSource final : public DerivedSource {
 public:
  explicit LogOfNegativeSource(std::unique_ptr<MatrixSource> inner)
      : DerivedSource(inner->name(), inner->rows(), inner->columns()), inner_(std::move(inner)) {}

  Result<> ReadRows(int64_t begin, int64_t count, std::span<float> out) const override {
    PENSTOCK_TRY(inner_->ReadRows(begin, count, out));
    for (float& x : out) {
      if (!(x < 0.0F)) {
        return MakeError(ErrorCode::kCorruptData,
                         "[weights.derived] tensor {}: holds {}, wanted negative numbers "
                         "(-exp(A_log))",
                         name(), x);
      }
      x = static_cast<float>(std::log(-static_cast<double>(x)));
    }
    return {};
  }

  void DropPages() const override { inner_->DropPages(); }

 private:
  std::unique_ptr<MatrixSource> inner_;
};

}  // namespace

std::unique_ptr<MatrixSource> MakeMxfp4Source(std::string name,
                                              std::unique_ptr<MatrixSource> packed,
                                              std::unique_ptr<MatrixSource> scales) {
  return std::make_unique<Mxfp4Source>(std::move(name), std::move(packed), std::move(scales));
}

std::unique_ptr<MatrixSource> MakeSplitKeyValueSource(std::string name, int64_t heads,
                                                      std::unique_ptr<MatrixSource> keys,
                                                      std::unique_ptr<MatrixSource> values) {
  return std::make_unique<SplitKeyValueSource>(std::move(name), heads, std::move(keys),
                                               std::move(values));
}

std::unique_ptr<MatrixSource> MakeLogOfNegativeSource(std::unique_ptr<MatrixSource> inner) {
  return std::make_unique<LogOfNegativeSource>(std::move(inner));
}

}  // namespace penstock::weights
