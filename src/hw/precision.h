// Number formats that hardware multiplies and memory holds.

#pragma once

#include <array>
#include <string_view>

#include "base/result.h"

namespace penstock::hw {

enum class Precision { kFp32, kBf16, kFp16, kFp8, kInt8, kInt4, kFp4 };

inline constexpr std::array<Precision, 7> kPrecisions = {
    Precision::kFp32, Precision::kBf16, Precision::kFp16, Precision::kFp8,
    Precision::kInt8, Precision::kInt4, Precision::kFp4};

// "bf16".
std::string_view PrecisionName(Precision precision);

// Bytes of one number: 4, 2, 1 or 0.5. Scales of block formats come on top (BlockScaleBytes).
double PrecisionBytes(Precision precision);

// Bytes per number that the scales of a weight format take: fp4 one byte per 32 (OCP MX), int4 two
// bytes per 32, int8 and fp8 a scale per row or tile, which is nothing that counts.
double BlockScaleBytes(Precision precision);

// Errors: kInvalidArgument that lists the names.
Result<Precision> ParsePrecision(std::string_view name);

}  // namespace penstock::hw
