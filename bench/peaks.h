// The limits of one core: what the benchmarks of kernels are held against.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock::bench {

struct Peak {
  const char* name;
  double operations;  // of one call
  void (*run)();
};

// Loops of independent multiply-adds in registers that this processor has: float32 FMA with AVX2
// and AVX-512, bf16 pairs, 8-bit products.
std::span<const Peak> Peaks();

// Reads all bytes once, in order, and returns something that depends on them.
int64_t ReadAll(std::span<const std::byte> bytes);

}  // namespace penstock::bench
