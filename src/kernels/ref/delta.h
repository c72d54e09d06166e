// Scalar twins of the short convolution and of Kimi delta attention as a recurrence (Kimi Linear,
// arXiv 2510.26692), one sequence from position 0 on.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ref/activation.h"
#include "kernels/ref/number.h"

namespace penstock::kernels::ref {

// x, out [rows, width]; weight [width, taps], the last tap meets the present row.
template <class T>
void ShortConv(std::span<const T> x, std::span<const T> weight, int64_t rows, int64_t width,
               int64_t taps, Activation activation, std::span<T> out) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < width; ++c) {
      T sum = Number<T>(0);
      for (int64_t j = 0; j < taps; ++j) {
        const int64_t from = r - taps + 1 + j;
        if (from >= 0) {
          sum +=
              weight[static_cast<size_t>(c * taps + j)] * x[static_cast<size_t>(from * width + c)];
        }
      }
      out[static_cast<size_t>(r * width + c)] = Activate(activation, sum);
    }
  }
}

struct DeltaShape {
  int64_t heads = 0;
  int64_t dim = 0;
  bool bounded = false;
  double lower_bound = -5;
};

// Decay of one key column.
template <class T>
T DeltaDecay(const DeltaShape& shape, const T& a_log, const T& z) {
  const T a = std::exp(a_log);
  if (shape.bounded) {
    return Number<T>(shape.lower_bound) * Sigmoid(a * z);
  }
  const T softplus = RealPart(z) > 0 ? z + std::log(Number<T>(1) + std::exp(-z))
                                     : std::log(Number<T>(1) + std::exp(z));
  return -a * softplus;
}

// q, k, v, f, out [rows, heads * dim]; b [rows, heads]; a_log [heads]; dt_bias [heads * dim].
template <class T>
void DeltaAttention(const DeltaShape& shape, std::span<const T> q, std::span<const T> k,
                    std::span<const T> v, std::span<const T> f, std::span<const T> b,
                    std::span<const T> a_log, std::span<const T> dt_bias, int64_t rows,
                    std::span<T> out) {
  const auto dim = static_cast<size_t>(shape.dim);
  const auto heads = static_cast<size_t>(shape.heads);
  const auto unit = [&](std::span<const T> x, double factor) {
    T sum = Number<T>(1e-6);
    for (const T& value : x) {
      sum += value * value;
    }
    std::vector<T> result(x.begin(), x.end());
    for (T& value : result) {
      value *= Number<T>(factor) / std::sqrt(sum);
    }
    return result;
  };
  for (size_t h = 0; h < heads; ++h) {
    std::vector<T> state(dim * dim, Number<T>(0));  // [keys, values]
    for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
      const size_t at = (r * heads + h) * dim;
      const std::vector<T> query =
          unit(q.subspan(at, dim), 1 / std::sqrt(static_cast<double>(shape.dim)));
      const std::vector<T> key = unit(k.subspan(at, dim), 1);
      const T beta = Sigmoid(b[r * heads + h]);
      for (size_t c = 0; c < dim; ++c) {
        const T g = DeltaDecay(shape, a_log[h], f[at + c] + dt_bias[h * dim + c]);
        for (size_t i = 0; i < dim; ++i) {
          state[c * dim + i] *= std::exp(g);
        }
      }
      for (size_t i = 0; i < dim; ++i) {
        T error = v[at + i];
        for (size_t c = 0; c < dim; ++c) {
          error -= state[c * dim + i] * key[c];
        }
        T result = Number<T>(0);
        for (size_t c = 0; c < dim; ++c) {
          state[c * dim + i] += beta * key[c] * error;
          result += state[c * dim + i] * query[c];
        }
        out[at + i] = result;
      }
    }
  }
}

}  // namespace penstock::kernels::ref
