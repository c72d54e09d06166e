#include "kernels/cpu/packed_matrix.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>
#include <vector>

namespace penstock::kernels {
namespace {

// A row of a matrix that consists of parts.
struct PartRow {
  const MatrixSource* part = nullptr;
  int64_t row = 0;
};

PartRow Locate(std::span<const MatrixSource* const> parts, int64_t row) {
  for (const MatrixSource* part : parts) {
    if (row < part->rows()) {
      return {part, row};
    }
    row -= part->rows();
  }
  PENSTOCK_CHECK(false, "the row lies in a part");
  return {};
}

uint32_t Bits(float x) {
  return std::bit_cast<uint32_t>(x);
}

uint16_t ToBf16(float x) {
  const uint32_t bits = Bits(x);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

float FromHalf(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16;
  const uint32_t exponent = (h >> 10) & 31;
  const uint32_t mantissa = h & 1023;
  if (exponent == 0) {
    const float magnitude = std::ldexp(static_cast<float>(mantissa), -24);
    return sign != 0 ? -magnitude : magnitude;
  }
  const uint32_t wide = exponent == 31 ? 255 : exponent + 112;
  return std::bit_cast<float>(sign | (wide << 23) | (mantissa << 13));
}

bool HalfIsFinite(uint16_t h) {
  return ((h >> 10) & 31) != 31;
}

// -8 h, which is exact unless it overflows.
std::optional<uint16_t> TimesMinusEight(uint16_t h) {
  const auto sign = static_cast<uint16_t>((h & 0x8000) ^ 0x8000);
  uint32_t exponent = (h >> 10) & 31;
  uint32_t mantissa = h & 1023;
  if (exponent == 0) {
    mantissa *= 8;
    exponent = mantissa >= 1024 ? 1 : 0;
    for (; mantissa >= 2048; mantissa >>= 1) {
      ++exponent;
    }
  } else {
    exponent += 3;
    if (exponent > 30) {
      return std::nullopt;
    }
  }
  return static_cast<uint16_t>(sign | (exponent << 10) | (mantissa & 1023));
}

// One row of float32 as groups of 4 bytes; returns what the row needs beside them.
struct RowExtras {
  float scale = 0;
  int32_t sum128 = 0;
};

RowExtras EncodeRow(WeightType type, std::span<const float> row, std::byte* out) {
  RowExtras extras;
  switch (type) {
    case WeightType::kF32:
      std::memcpy(out, row.data(), row.size_bytes());
      break;
    case WeightType::kBF16:
      for (size_t i = 0; i < row.size(); ++i) {
        const uint16_t half = ToBf16(row[i]);
        std::memcpy(out + 2 * i, &half, 2);
      }
      break;
    case WeightType::kInt8: {
      float largest = 0;
      for (const float x : row) {
        largest = std::max(largest, std::abs(x));
      }
      extras.scale = largest / 127.0F;
      // Magnitudes whose inverse would overflow count as zero.
      const float inverse = largest < 1e-36F ? 0.0F : 127.0F / largest;
      int32_t sum = 0;
      for (size_t i = 0; i < row.size(); ++i) {
        const auto q = static_cast<int32_t>(std::nearbyint(row[i] * inverse));
        sum += q;
        out[i] = static_cast<std::byte>(q);
      }
      extras.sum128 = 128 * sum;
      break;
    }
    case WeightType::kInt4:
      PENSTOCK_CHECK(false, "4-bit rows are packed from the file's bytes");
  }
  return extras;
}

Error CorruptScale(const MatrixSource& part, int64_t row) {
  return MakeError(ErrorCode::kCorruptData,
                   "[kernels.load_matrix] tensor {}, row {}: a block's scale or minimum is NaN or "
                   "infinite, wanted finite numbers",
                   part.name(), row);
}

}  // namespace

int64_t PackedShape::group_columns() const {
  switch (type) {
    case WeightType::kF32:
      return 1;
    case WeightType::kBF16:
      return 2;
    case WeightType::kInt8:
      return 4;
    case WeightType::kInt4:
      return kInt4Block;
  }
  return 1;
}

int64_t PackedShape::word_bytes() const {
  if (type != WeightType::kInt4) {
    return 64;
  }
  if (mx) {
    return 272;
  }
  return minima ? 320 : 288;
}

int64_t PackedShape::panel_bytes() const {
  return (strips() * groups() * word_bytes() + 63) / 64 * 64;
}

int64_t PackedShape::bytes() const {
  const int64_t extras = type == WeightType::kInt8 ? strips() * kStrip * 8 : 0;
  return panel_bytes() + extras;
}

const float* PackedMatrix::scales() const {
  return reinterpret_cast<const float*>(buffer_.data() + shape_.panel_bytes());
}

const int32_t* PackedMatrix::row_sum128() const {
  return reinterpret_cast<const int32_t*>(buffer_.data() + shape_.panel_bytes() +
                                          shape_.strips() * kStrip * 4);
}

PackedMatrix::StripPlace PackedMatrix::Place(int64_t strip) const {
  const int64_t panel = strip / kPanelStrips;
  StripPlace place;
  place.width = std::min(kPanelStrips, shape_.strips() - panel * kPanelStrips);
  place.strip_in_panel = strip - panel * kPanelStrips;
  place.group_stride = place.width * shape_.word_bytes();
  place.first = panel * kPanelStrips * shape_.groups() * shape_.word_bytes();
  return place;
}

Result<std::unique_ptr<PackedMatrix>> PackedMatrix::Load(std::span<const MatrixSource* const> parts,
                                                         WeightType type, ThreadPool& pool,
                                                         MemoryAccount& account) {
  PENSTOCK_CHECK(!parts.empty(), "a matrix has parts");
  PackedShape shape;
  shape.type = type;
  shape.columns = parts[0]->columns();
  for (const MatrixSource* part : parts) {
    PENSTOCK_CHECK(part->columns() == shape.columns, "parts have the same columns");
    shape.rows += part->rows();
    if (type == WeightType::kInt4) {
      const bool mx = part->type() == DType::kMXFP4;
      PENSTOCK_CHECK(mx || part->type() == DType::kQ4_0 || part->type() == DType::kQ4_1,
                     "4-bit matrices come from q4_0, q4_1 or mxfp4");
      PENSTOCK_CHECK(shape.columns % kInt4Block == 0, "rows are whole blocks");
      PENSTOCK_CHECK(part == parts[0] || mx == shape.mx, "mxfp4 stands alone");
      shape.minima = shape.minima || part->type() == DType::kQ4_1;
      shape.mx = mx;
    }
  }

  std::unique_ptr<PackedMatrix> matrix(new PackedMatrix(shape));
  PENSTOCK_TRY_ASSIGN(matrix->buffer_,
                      Buffer::Allocate(account, MemoryCategory::kWeights, shape.bytes()));
  // The first failing strip decides the message, whatever the threads.
  std::vector<std::optional<Error>> errors(static_cast<size_t>(shape.strips()));
  pool.Split(shape.strips(), shape.rows * shape.columns < 65536, [&](int64_t begin, int64_t end) {
    for (int64_t strip = begin; strip < end; ++strip) {
      const Result<> packed = type == WeightType::kInt4 ? matrix->PackInt4Strip(parts, strip)
                                                        : matrix->PackStrip(parts, strip);
      if (!packed.ok()) {
        errors[static_cast<size_t>(strip)] = packed.error();
        return;
      }
    }
  });
  for (const MatrixSource* part : parts) {
    part->DropPages();
  }
  for (std::optional<Error>& error : errors) {
    if (error.has_value()) {
      return *std::move(error);
    }
  }
  return matrix;
}

Result<> PackedMatrix::PackStrip(std::span<const MatrixSource* const> parts, int64_t strip) {
  const int64_t groups = shape_.groups();
  const auto columns = static_cast<size_t>(shape_.columns);
  std::vector<float> row(columns);
  // The strip's rows in groups of 4 bytes, transposed below; zero beyond the matrix.
  std::vector<uint32_t> words(static_cast<size_t>(kStrip * groups));
  std::byte* extras = buffer_.data() + shape_.panel_bytes();
  for (int64_t lane = 0; lane < kStrip; ++lane) {
    const int64_t r = strip * kStrip + lane;
    RowExtras row_extras;
    if (r < shape_.rows) {
      const PartRow at = Locate(parts, r);
      PENSTOCK_TRY(at.part->ReadRows(at.row, 1, row));
      row_extras =
          EncodeRow(shape_.type, row, reinterpret_cast<std::byte*>(words.data() + lane * groups));
    }
    if (shape_.type == WeightType::kInt8) {
      std::memcpy(extras + r * 4, &row_extras.scale, 4);
      std::memcpy(extras + (shape_.strips() * kStrip + r) * 4, &row_extras.sum128, 4);
    }
  }
  const StripPlace place = Place(strip);
  std::byte* out = buffer_.data() + place.first + place.strip_in_panel * 64;
  for (int64_t g = 0; g < groups; ++g, out += place.group_stride) {
    uint32_t word[kStrip];
    for (int64_t lane = 0; lane < kStrip; ++lane) {
      word[lane] = words[static_cast<size_t>(lane * groups + g)];
    }
    std::memcpy(out, word, sizeof(word));
  }
  return {};
}

// A block as a strip holds it.
struct PackedMatrix::Int4Block {
  std::byte digits[16] = {};
  uint16_t scale = 0;    // f16, or E8M0
  uint16_t minimum = 0;  // f16
};

// Takes one block off `at`, which moves behind it.
Result<PackedMatrix::Int4Block> PackedMatrix::TakeBlock(const MatrixSource& part, int64_t row,
                                                        const std::byte*& at) const {
  Int4Block block;
  if (shape_.mx) {
    block.scale = static_cast<uint16_t>(*at);
    if (block.scale == 255) {
      return CorruptScale(part, row);
    }
    at += 1;
  } else {
    const bool has_minimum = part.type() == DType::kQ4_1;
    std::memcpy(&block.scale, at, 2);
    if (has_minimum) {
      std::memcpy(&block.minimum, at + 2, 2);
    } else if (shape_.minima) {
      // A part with scales only beside one with minima: 8 steps below zero is its minimum.
      const std::optional<uint16_t> shifted = TimesMinusEight(block.scale);
      if (!shifted.has_value()) {
        return CorruptScale(part, row);
      }
      block.minimum = *shifted;
    }
    if (!HalfIsFinite(block.scale) || !HalfIsFinite(block.minimum)) {
      return CorruptScale(part, row);
    }
    at += has_minimum ? 4 : 2;
  }
  std::memcpy(block.digits, at, 16);
  at += 16;
  return block;
}

Result<> PackedMatrix::PackInt4Strip(std::span<const MatrixSource* const> parts, int64_t strip) {
  const StripPlace place = Place(strip);
  for (int64_t lane = 0; lane < kStrip; ++lane) {
    const int64_t r = strip * kStrip + lane;
    const PartRow at = r < shape_.rows ? Locate(parts, r) : PartRow{};
    const std::byte* next = at.part == nullptr ? nullptr : at.part->RawRow(at.row).data();
    std::byte* out = buffer_.data() + place.first;
    for (int64_t g = 0; g < shape_.groups(); ++g, out += place.group_stride) {
      Int4Block block;
      if (next != nullptr) {
        PENSTOCK_TRY_ASSIGN(block, TakeBlock(*at.part, at.row, next));
      }
      for (int64_t i = 0; i < 4; ++i) {
        std::memcpy(out + place.strip_in_panel * 256 + i * 64 + lane * 4, block.digits + 4 * i, 4);
      }
      std::byte* scales = out + place.width * 256;
      if (shape_.mx) {
        scales[place.strip_in_panel * kStrip + lane] = static_cast<std::byte>(block.scale);
        continue;
      }
      std::memcpy(scales + place.strip_in_panel * 32 + lane * 2, &block.scale, 2);
      if (shape_.minima) {
        std::memcpy(out + place.width * 288 + place.strip_in_panel * 32 + lane * 2, &block.minimum,
                    2);
      }
    }
  }
  return {};
}

void PackedMatrix::DequantizeRow(int64_t row, float scale, std::span<float> out) const {
  PENSTOCK_CHECK(row >= 0 && row < shape_.rows, "the row lies in the matrix");
  const StripPlace place = Place(row / kStrip);
  const int64_t lane = row % kStrip;
  const auto columns = static_cast<int64_t>(out.size());
  const std::byte* group = buffer_.data() + place.first;
  if (shape_.type != WeightType::kInt4) {
    const int64_t size = 4 / shape_.group_columns();
    const float row_scale = shape_.type == WeightType::kInt8 ? scales()[row] : 1.0F;
    group += place.strip_in_panel * 64 + lane * 4;
    for (int64_t c = 0; c < columns; group += place.group_stride) {
      for (int64_t j = 0; j < shape_.group_columns() && c < columns; ++j, ++c) {
        float value = 0;
        if (size == 4) {
          std::memcpy(&value, group, 4);
        } else if (size == 2) {
          std::memcpy(reinterpret_cast<std::byte*>(&value) + 2, group + j * 2, 2);
        } else {
          value = static_cast<float>(static_cast<int8_t>(group[j])) * row_scale;
        }
        out[static_cast<size_t>(c)] = value * scale;
      }
    }
    return;
  }
  for (int64_t c = 0; c < columns; c += kInt4Block, group += place.group_stride) {
    float step = 0;
    float minimum = 0;
    if (shape_.mx) {
      const auto exponent =
          static_cast<uint32_t>(group[place.width * 256 + place.strip_in_panel * kStrip + lane]);
      step = 0.5F * std::bit_cast<float>(exponent << 23);
      minimum = -static_cast<float>(kE2M1Offset) * step;
    } else {
      uint16_t half = 0;
      std::memcpy(&half, group + place.width * 256 + place.strip_in_panel * 32 + lane * 2, 2);
      step = FromHalf(half);
      minimum = -8.0F * step;
      if (shape_.minima) {
        std::memcpy(&half, group + place.width * 288 + place.strip_in_panel * 32 + lane * 2, 2);
        minimum = FromHalf(half);
      }
    }
    const auto digit = [this](uint32_t four) {
      return static_cast<float>(shape_.mx ? kTwiceE2M1Plus12[four] : four);
    };
    const std::byte* digits = group + place.strip_in_panel * 256 + lane * 4;
    for (int64_t j = 0; j < 16; ++j) {
      const auto both = static_cast<uint32_t>(digits[j / 4 * 64 + j % 4]);
      out[static_cast<size_t>(c + j)] = (digit(both & 15) * step + minimum) * scale;
      out[static_cast<size_t>(c + 16 + j)] = (digit(both >> 4) * step + minimum) * scale;
    }
  }
}

}  // namespace penstock::kernels
