#include "weights/gguf_types.h"

#include <algorithm>
#include <array>
#include <iterator>

namespace penstock::weights {
namespace {

constexpr std::optional<DType> kNone = std::nullopt;

constexpr std::array kTypes = {
    GgmlType{0, "F32", 1, 4, DType::kF32},        GgmlType{1, "F16", 1, 2, DType::kF16},
    GgmlType{2, "Q4_0", 32, 18, DType::kQ4_0},    GgmlType{3, "Q4_1", 32, 20, DType::kQ4_1},
    GgmlType{6, "Q5_0", 32, 22, DType::kQ5_0},    GgmlType{7, "Q5_1", 32, 24, DType::kQ5_1},
    GgmlType{8, "Q8_0", 32, 34, DType::kQ8_0},    GgmlType{9, "Q8_1", 32, 40, kNone},
    GgmlType{10, "Q2_K", 256, 84, DType::kQ2_K},  GgmlType{11, "Q3_K", 256, 110, DType::kQ3_K},
    GgmlType{12, "Q4_K", 256, 144, DType::kQ4_K}, GgmlType{13, "Q5_K", 256, 176, DType::kQ5_K},
    GgmlType{14, "Q6_K", 256, 210, DType::kQ6_K}, GgmlType{15, "Q8_K", 256, 292, kNone},
    GgmlType{16, "IQ2_XXS", 256, 66, kNone},      GgmlType{17, "IQ2_XS", 256, 74, kNone},
    GgmlType{18, "IQ3_XXS", 256, 98, kNone},      GgmlType{19, "IQ1_S", 256, 50, kNone},
    GgmlType{20, "IQ4_NL", 32, 18, kNone},        GgmlType{21, "IQ3_S", 256, 110, kNone},
    GgmlType{22, "IQ2_S", 256, 82, kNone},        GgmlType{23, "IQ4_XS", 256, 136, kNone},
    GgmlType{24, "I8", 1, 1, DType::kI8},         GgmlType{25, "I16", 1, 2, DType::kI16},
    GgmlType{26, "I32", 1, 4, DType::kI32},       GgmlType{27, "I64", 1, 8, DType::kI64},
    GgmlType{28, "F64", 1, 8, DType::kF64},       GgmlType{29, "IQ1_M", 256, 56, kNone},
    GgmlType{30, "BF16", 1, 2, DType::kBF16},     GgmlType{34, "TQ1_0", 256, 54, kNone},
    GgmlType{35, "TQ2_0", 256, 66, kNone},        GgmlType{39, "MXFP4", 32, 17, DType::kMXFP4},
    GgmlType{40, "NVFP4", 64, 36, kNone},         GgmlType{41, "Q1_0", 128, 18, kNone},
};

}  // namespace

const GgmlType* FindGgmlType(uint32_t number) {
  const auto* const found =
      std::find_if(kTypes.begin(), kTypes.end(),
                   [number](const GgmlType& type) { return type.number == number; });
  return found == kTypes.end() ? nullptr : &*found;
}

}  // namespace penstock::weights
