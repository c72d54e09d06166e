// Scalar twins of the normalizations.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/ref/number.h"

namespace penstock::kernels::ref {

// Per group of `group` columns: out = x / sqrt(mean(x^2) + epsilon) * weight, or * (1 + weight)
// with add_one. weight [group]. (Zhang and Sennrich, Root Mean Square Layer Normalization, 2019.)
template <class T>
void RmsNorm(std::span<const T> x, std::span<const T> weight, double epsilon, bool add_one,
             int64_t group, std::span<T> out) {
  const auto width = static_cast<size_t>(group);
  for (size_t begin = 0; begin < x.size(); begin += width) {
    T squares = Number<T>(0);
    for (size_t i = 0; i < width; ++i) {
      squares += x[begin + i] * x[begin + i];
    }
    const T inverse = Number<T>(1) / std::sqrt(squares / Number<T>(static_cast<double>(group)) +
                                               Number<T>(epsilon));
    for (size_t i = 0; i < width; ++i) {
      const T w = add_one ? weight[i] + Number<T>(1) : weight[i];
      out[begin + i] = x[begin + i] * inverse * w;
    }
  }
}

// Softmax of one row.
template <class T>
void Softmax(std::span<const T> x, std::span<T> out) {
  Real<T> most = RealPart(x[0]);
  for (const T& value : x) {
    most = RealPart(value) > most ? RealPart(value) : most;
  }
  T sum = Number<T>(0);
  for (size_t i = 0; i < x.size(); ++i) {
    out[i] = std::exp(x[i] - T(most));
    sum += out[i];
  }
  for (T& value : out) {
    value /= sum;
  }
}

// Adds the gradients of RmsNorm's input and weight. dweight [group].
template <class T>
void RmsNormBackward(std::span<const T> x, std::span<const T> weight, double epsilon, bool add_one,
                     int64_t group, std::span<const T> dy, std::span<T> dx, std::span<T> dweight) {
  const auto width = static_cast<size_t>(group);
  for (size_t begin = 0; begin < x.size(); begin += width) {
    T squares = Number<T>(0);
    for (size_t i = 0; i < width; ++i) {
      squares += x[begin + i] * x[begin + i];
    }
    const T inverse = Number<T>(1) / std::sqrt(squares / Number<T>(static_cast<double>(group)) +
                                               Number<T>(epsilon));
    T mean = Number<T>(0);
    for (size_t i = 0; i < width; ++i) {
      const T w = add_one ? weight[i] + Number<T>(1) : weight[i];
      const T z = x[begin + i] * inverse;
      mean += dy[begin + i] * w * z;
      dweight[i] += dy[begin + i] * z;
    }
    mean /= Number<T>(static_cast<double>(group));
    for (size_t i = 0; i < width; ++i) {
      const T w = add_one ? weight[i] + Number<T>(1) : weight[i];
      dx[begin + i] += inverse * (dy[begin + i] * w - x[begin + i] * inverse * mean);
    }
  }
}

}  // namespace penstock::kernels::ref
