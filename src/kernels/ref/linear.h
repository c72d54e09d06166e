// Scalar twin of the matrix product.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/ref/number.h"

namespace penstock::kernels::ref {

// out [rows, out_features] = x [rows, in_features] weight [out_features, in_features]^T + bias
// [out_features] (or empty). Nothing is rounded on the way in.
template <class T>
void Linear(std::span<const T> weight, std::span<const T> x, std::span<const T> bias, int64_t rows,
            int64_t in_features, int64_t out_features, std::span<T> out) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t n = 0; n < out_features; ++n) {
      T sum = Number<T>(0);
      for (int64_t k = 0; k < in_features; ++k) {
        sum += x[static_cast<size_t>(r * in_features + k)] *
               weight[static_cast<size_t>(n * in_features + k)];
      }
      out[static_cast<size_t>(r * out_features + n)] =
          bias.empty() ? sum : sum + bias[static_cast<size_t>(n)];
    }
  }
}

// Adds dy weight to dx, and dy^T x to dweight; either may be empty.
template <class T>
void LinearBackward(std::span<const T> weight, std::span<const T> x, std::span<const T> dy,
                    int64_t rows, int64_t in_features, int64_t out_features, std::span<T> dx,
                    std::span<T> dweight) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t n = 0; n < out_features; ++n) {
      const T slope = dy[static_cast<size_t>(r * out_features + n)];
      for (int64_t k = 0; k < in_features; ++k) {
        const auto at = static_cast<size_t>(r * in_features + k);
        const auto element = static_cast<size_t>(n * in_features + k);
        if (!dx.empty()) {
          dx[at] += slope * weight[element];
        }
        if (!dweight.empty()) {
          dweight[element] += slope * x[at];
        }
      }
    }
  }
}

}  // namespace penstock::kernels::ref
