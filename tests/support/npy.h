// Reads the .npy files of the goldens: little-endian float32, C order, one or two dimensions.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace penstock::testing {

// A matrix; a file of one dimension is one row.
struct Npy {
  int64_t rows = 0;
  int64_t columns = 0;
  std::vector<float> values;  // row-major

  const float* row(int64_t r) const { return values.data() + r * columns; }
};

// Errors: kNotFound; kCorruptData for another type or order, or a size that is not the header's.
Result<Npy> ReadNpy(const std::string& path);

// ||got - want|| / ||want|| in L2 over all elements; infinity for another shape or a value that is
// not finite.
double RelativeError(const Npy& got, const Npy& want);

// Largest difference over largest value of `want`; infinity as above.
double LargestError(const Npy& got, const Npy& want);

}  // namespace penstock::testing
