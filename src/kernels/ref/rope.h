// Scalar twin of rotary position embedding (Su et al., RoFormer, 2021).

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/ref/number.h"

namespace penstock::kernels::ref {

// Rotates one head x [head_dim] at `position`. Pair i is (x[i], x[i + n]) or, interleaved,
// (x[2 i], x[2 i + 1]), with n = inverse_frequencies.size(); columns from 2 n on stay. The angle is
// formed in float32 as position * inverse frequency; cosine and sine are multiplied with `scale`.
template <class T>
void Rope(std::span<const T> x, int64_t position, std::span<const float> inverse_frequencies,
          bool interleaved, double scale, std::span<T> out) {
  const size_t n = inverse_frequencies.size();
  for (size_t i = 0; i < n; ++i) {
    const float angle = static_cast<float>(position) * inverse_frequencies[i];
    const T c = Number<T>(std::cos(static_cast<double>(angle)) * scale);
    const T s = Number<T>(std::sin(static_cast<double>(angle)) * scale);
    const size_t first = interleaved ? 2 * i : i;
    const size_t second = interleaved ? 2 * i + 1 : i + n;
    const T a = x[first];
    const T b = x[second];
    out[first] = a * c - b * s;
    out[second] = b * c + a * s;
  }
  for (size_t i = 2 * n; i < x.size(); ++i) {
    out[i] = x[i];
  }
}

// Adds the gradient of Rope's input: the transposed rotation.
template <class T>
void RopeBackward(std::span<const T> dy, int64_t position,
                  std::span<const float> inverse_frequencies, bool interleaved, double scale,
                  std::span<T> dx) {
  const size_t n = inverse_frequencies.size();
  for (size_t i = 0; i < n; ++i) {
    const float angle = static_cast<float>(position) * inverse_frequencies[i];
    const T c = Number<T>(std::cos(static_cast<double>(angle)) * scale);
    const T s = Number<T>(std::sin(static_cast<double>(angle)) * scale);
    const size_t first = interleaved ? 2 * i : i;
    const size_t second = interleaved ? 2 * i + 1 : i + n;
    dx[first] += dy[first] * c + dy[second] * s;
    dx[second] += dy[second] * c - dy[first] * s;
  }
  for (size_t i = 2 * n; i < dy.size(); ++i) {
    dx[i] += dy[i];
  }
}

}  // namespace penstock::kernels::ref
