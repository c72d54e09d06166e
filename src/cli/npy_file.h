// Writing NumPy's .npy files (format version 1.0, numpy.lib.format).

#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"

namespace penstock::cli {

// A float32 matrix [rows, columns], row-major, little-endian. "-" is standard output.
Result<> WriteNpy(const std::string& path, std::span<const float> values, int64_t rows,
                  int64_t columns);

}  // namespace penstock::cli
