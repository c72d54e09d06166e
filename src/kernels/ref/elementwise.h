// Scalar twins of what works element by element or row by row without arithmetic of its own.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/ref/number.h"

namespace penstock::kernels::ref {

template <class T>
void Add(std::span<const T> a, std::span<const T> b, std::span<T> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = a[i] + b[i];
  }
}

template <class T>
void Scale(std::span<const T> x, double factor, std::span<T> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = x[i] * Number<T>(factor);
  }
}

// out [ids.size(), columns] = rows of table [any, columns], times scale.
template <class T>
void Embed(std::span<const T> table, int64_t columns, std::span<const int32_t> ids, double scale,
           std::span<T> out) {
  const auto width = static_cast<size_t>(columns);
  for (size_t r = 0; r < ids.size(); ++r) {
    for (size_t c = 0; c < width; ++c) {
      out[r * width + c] = table[static_cast<size_t>(ids[r]) * width + c] * Number<T>(scale);
    }
  }
}

// Adds the gradient of Embed's table.
template <class T>
void EmbedBackward(std::span<const int32_t> ids, int64_t columns, double scale,
                   std::span<const T> dy, std::span<T> dtable) {
  const auto width = static_cast<size_t>(columns);
  for (size_t r = 0; r < ids.size(); ++r) {
    for (size_t c = 0; c < width; ++c) {
      dtable[static_cast<size_t>(ids[r]) * width + c] += dy[r * width + c] * Number<T>(scale);
    }
  }
}

}  // namespace penstock::kernels::ref
