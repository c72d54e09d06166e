// Element types, and the block formats of quantized files.
//
// A block type stores `block_elements` consecutive elements of a row in `block_bytes` bytes (GGUF's
// layouts, little-endian). Source of the block layouts: the GGUF specification and ggml's type
// table.

#pragma once

#include <cstdint>
#include <string_view>

namespace penstock {

enum class DType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kF64,
  kI8,
  kU8,
  kI16,
  kI32,
  kI64,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kMXFP4,  // E8M0 scale, 32 numbers in E2M1 (OCP microscaling formats)
};

struct DTypeTraits {
  std::string_view name;   // "f32", "q4_1"
  int32_t block_elements;  // 1 for plain types
  int32_t block_bytes;
  bool quantized;
};

const DTypeTraits& Traits(DType type);

// Bytes of one row of `elements` elements. REQUIRES: elements is a multiple of block_elements.
int64_t RowBytes(DType type, int64_t elements);

inline std::string_view DTypeName(DType type) {
  return Traits(type).name;
}

}  // namespace penstock
