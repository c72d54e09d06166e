#include "runtime/quantize.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

namespace penstock::runtime {
namespace {

constexpr int64_t kBlock = 32;
constexpr int64_t kBlockBytes = 20;

// Nearest f16, ties to even. Finite input.
uint16_t ToHalf(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000U;
  const uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude >= 0x477FF000U) {
    return static_cast<uint16_t>(sign |
                                 0x7BFFU);  // largest finite: a scale must not become infinite
  }
  if (magnitude < 0x38800000U) {
    const float scaled = std::bit_cast<float>(magnitude) * 0x1p24F;
    return static_cast<uint16_t>(sign | static_cast<uint32_t>(std::nearbyint(scaled)));
  }
  const uint32_t rounded = magnitude + 0x0FFFU + (magnitude >> 13 & 1U);
  return static_cast<uint16_t>(sign | (rounded - 0x38000000U) >> 13);
}

float FromHalf(uint16_t half) {
  const uint32_t exponent = half >> 10 & 0x1FU;
  const uint32_t mantissa = half & 0x3FFU;
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                                        : std::ldexp(static_cast<float>(mantissa | 0x400U),
                                                     static_cast<int>(exponent) - 25);
  return (half & 0x8000U) != 0 ? -magnitude : magnitude;
}

void QuantizeBlock(const float* values, std::byte* block) {
  const auto [low, high] = std::minmax_element(values, values + kBlock);
  const uint16_t scale = ToHalf((*high - *low) / 15.0F);
  const uint16_t minimum = ToHalf(*low);
  const float step = FromHalf(scale);
  const float base = FromHalf(minimum);
  std::memcpy(block, &scale, 2);
  std::memcpy(block + 2, &minimum, 2);
  const auto level = [&](float value) {
    return step == 0.0F ? 0U
                        : static_cast<unsigned>(
                              std::clamp(std::nearbyint((value - base) / step), 0.0F, 15.0F));
  };
  for (int64_t i = 0; i < kBlock / 2; ++i) {
    block[4 + i] = static_cast<std::byte>(level(values[i]) | level(values[i + kBlock / 2]) << 4);
  }
}

}  // namespace

Q41Source::Q41Source(std::unique_ptr<MatrixSource> inner) : inner_(std::move(inner)) {
  PENSTOCK_CHECK(inner_->columns() % kBlock == 0, "whole blocks");
}

Result<> Q41Source::ReadRows(int64_t begin, int64_t count, std::span<float> out) const {
  // Checks the values (NaN) and gives what the blocks hold.
  PENSTOCK_TRY(inner_->ReadRows(begin, count, out));
  const int64_t columns = inner_->columns();
  for (int64_t row = 0; row < count; ++row) {
    const std::span<const std::byte> raw = RawRow(begin + row);
    for (int64_t column = 0; column < columns; ++column) {
      const std::byte* block = raw.data() + column / kBlock * kBlockBytes;
      uint16_t scale = 0;
      uint16_t minimum = 0;
      std::memcpy(&scale, block, 2);
      std::memcpy(&minimum, block + 2, 2);
      const int64_t place = column % kBlock;
      const auto pair = static_cast<unsigned>(block[4 + place % (kBlock / 2)]);
      const unsigned level = place < kBlock / 2 ? pair & 15U : pair >> 4;
      out[static_cast<size_t>(row * columns + column)] =
          static_cast<float>(level) * FromHalf(scale) + FromHalf(minimum);
    }
  }
  return {};
}

std::span<const std::byte> Q41Source::RawRow(int64_t row) const {
  thread_local std::vector<float> values;
  thread_local std::vector<std::byte> blocks;
  values.resize(static_cast<size_t>(inner_->columns()));
  blocks.resize(static_cast<size_t>(inner_->columns() / kBlock * kBlockBytes));
  // A row that can't be read (a NaN) was refused by ReadRows, or keeps what was there: the caller
  // checks rows first.
  if (inner_->ReadRows(row, 1, values).ok()) {
    for (int64_t b = 0; b < inner_->columns() / kBlock; ++b) {
      QuantizeBlock(values.data() + b * kBlock, blocks.data() + b * kBlockBytes);
    }
  } else {
    const uint16_t nan = 0x7E00;  // both scales NaN, so that the loader sees it
    for (int64_t b = 0; b < inner_->columns() / kBlock; ++b) {
      std::memcpy(blocks.data() + b * kBlockBytes, &nan, 2);
    }
  }
  return blocks;
}

}  // namespace penstock::runtime
