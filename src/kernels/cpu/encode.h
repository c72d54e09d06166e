// float32 as the element type of a cache.

#pragma once

#include <bit>
#include <cstdint>

namespace penstock::kernels {

inline void Encode(float x, float& out) {
  out = x;
}

// Rounds to bf16, nearest, ties to even; NaN stays NaN.
inline void Encode(float x, uint16_t& out) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const bool number = x == x;
  out = static_cast<uint16_t>((number ? bits + 0x7fff + ((bits >> 16) & 1) : bits | 0x00400000) >>
                              16);
}

inline float Decode(float x) {
  return x;
}

inline float Decode(uint16_t x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x) << 16);
}

}  // namespace penstock::kernels
