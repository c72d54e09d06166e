// Stored elements to float32, bit for bit as gguf-py's `gguf.quants.dequantize` gives them.
//
// Each format is a scale (and a minimum) per group of elements; every product and sum below is one
// float32 operation, never contracted. Source of the layouts: the GGUF specification and ggml's
// block structures.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tensor/dtype.h"

namespace penstock::weights {

// True for types that DequantizeRow takes: f32, f16, bf16, f64 and every block format.
bool CanDequantize(DType type);

// "f32, f16, ..., q6_k": for error messages.
const char* DequantizableTypes();

// Writes out.size() elements. `bytes` needs no alignment. f64 is rounded to the nearest float32.
// REQUIRES: CanDequantize(type); out.size() holds whole blocks and is that of `bytes`.
// Thread-safe. Cost: 0.03 (f32) to 0.27 ns per element on one core with AVX-512, rows in cache.
void DequantizeRow(DType type, std::span<const std::byte> bytes, std::span<float> out);

// True when no element is NaN or infinite. One pass without branches.
bool AllFinite(std::span<const float> values);

// IEEE binary16 to float32, exact.
float HalfToFloat(uint16_t half);

}  // namespace penstock::weights
