// Counter-based random numbers: a draw is a pure function of a key and a counter, so it does not
// depend on who draws it, in which order, or how the model is cut.
//
// Philox4x32-10: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.

#pragma once

#include <array>
#include <cstdint>

namespace penstock {

// Four 32-bit words from a 128-bit counter under a 64-bit key. About 15 ns. Thread-safe (pure).
std::array<uint32_t, 4> Philox(const std::array<uint32_t, 4>& counter, uint64_t key);

// Uniform in [0, 1) with 24 bits.
constexpr float UniformFloat(uint32_t word) {
  return static_cast<float>(word >> 8) * 0x1p-24f;
}

// Uniform in [0, 1) with 53 bits.
constexpr double UniformDouble(uint32_t high, uint32_t low) {
  return static_cast<double>(((static_cast<uint64_t>(high) << 32 | low) >> 11)) * 0x1p-53;
}

// Two independent standard normal draws from two words (Box and Muller).
std::array<float, 2> NormalPair(uint32_t first, uint32_t second);

// Mixes a value into a 64-bit key (SplitMix64 finalizer), for keys that are made of several
// numbers.
uint64_t MixKey(uint64_t key, uint64_t value);

}  // namespace penstock
