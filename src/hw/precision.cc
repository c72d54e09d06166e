#include "hw/precision.h"

#include "base/units.h"

namespace penstock::hw {

namespace {

constexpr std::array<std::string_view, 7> kNames = {"fp32", "bf16", "fp16", "fp8",
                                                    "int8", "int4", "fp4"};

}  // namespace

std::string_view PrecisionName(Precision precision) {
  return kNames[static_cast<size_t>(precision)];
}

double PrecisionBytes(Precision precision) {
  switch (precision) {
    case Precision::kFp32:
      return 4;
    case Precision::kBf16:
    case Precision::kFp16:
      return 2;
    case Precision::kFp8:
    case Precision::kInt8:
      return 1;
    case Precision::kInt4:
    case Precision::kFp4:
      return 0.5;
  }
  return 0;
}

double BlockScaleBytes(Precision precision) {
  switch (precision) {
    case Precision::kFp4:
      return 1.0 / 32;
    case Precision::kInt4:
      return 2.0 / 32;
    default:
      return 0;
  }
}

Result<Precision> ParsePrecision(std::string_view name) {
  for (const Precision precision : kPrecisions) {
    if (PrecisionName(precision) == name) {
      return Precision{precision};
    }
  }
  const std::string near = NearestName(name, kNames);
  return MakeError(ErrorCode::kInvalidArgument, "[hw.precision] got '{}', wanted one of {}{}", name,
                   fmt::join(kNames, ", "), near.empty() ? "" : " ('" + near + "'?)");
}

}  // namespace penstock::hw
