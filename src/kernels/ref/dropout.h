// Scalar twin of dropout (Srivastava et al., 2014): the mask as a function of its key and index.

#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "base/rng.h"
#include "kernels/training.h"

namespace penstock::kernels::ref {

// What element (row, column) is multiplied with: 0 or 1 / (1 - rate). Kept where a uniform number
// of 24 bits is at least `rate`.
inline double DropoutFactor(const DropoutKey& key, float rate, int64_t row, int64_t column) {
  const std::array<uint32_t, 4> counter = {static_cast<uint32_t>(column / 4),
                                           key.first_row + static_cast<uint32_t>(row), key.op,
                                           key.micro_batch};
  const std::array<uint32_t, 4> draw = Philox(counter, MixKey(key.seed, key.step));
  const bool keep = UniformFloat(draw[static_cast<size_t>(column % 4)]) >= rate;
  return keep ? 1.0 / (1.0 - static_cast<double>(rate)) : 0.0;
}

}  // namespace penstock::kernels::ref
