// ggml's tensor types by number. Source: gguf-py's constants (GGMLQuantizationType,
// GGML_QUANT_SIZES).

#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "tensor/dtype.h"

namespace penstock::weights {

struct GgmlType {
  uint32_t number;
  std::string_view name;
  int64_t block_elements;
  int64_t block_bytes;
  std::optional<DType> type;  // nothing: we can't load it
};

// Null when the number is not known.
const GgmlType* FindGgmlType(uint32_t number);

}  // namespace penstock::weights
