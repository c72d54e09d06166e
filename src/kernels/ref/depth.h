// Scalar twins of the reads over depth.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ref/norm.h"
#include "kernels/ref/number.h"

namespace penstock::kernels::ref {

// Attention over depth (arXiv 2603.15031): out = sum_j a_j s_j over the rows of `sources` (each
// [rows, columns]), a = softmax_j(sum_c query_c key_norm_c s_jc / sqrt(mean(s_j^2) + epsilon)).
// key_norm may be empty.
template <class T>
void DepthRead(const std::vector<std::span<const T>>& sources, std::span<const T> query,
               std::span<const T> key_norm, double epsilon, int64_t columns, std::span<T> out) {
  const auto width = static_cast<size_t>(columns);
  std::vector<T> scores(sources.size());
  std::vector<T> weights(sources.size());
  for (size_t begin = 0; begin < out.size(); begin += width) {
    for (size_t j = 0; j < sources.size(); ++j) {
      T squares = Number<T>(0);
      T dot = Number<T>(0);
      for (size_t c = 0; c < width; ++c) {
        const T s = sources[j][begin + c];
        squares += s * s;
        dot += s * query[c] * (key_norm.empty() ? Number<T>(1) : key_norm[c]);
      }
      scores[j] =
          dot / std::sqrt(squares / Number<T>(static_cast<double>(columns)) + Number<T>(epsilon));
    }
    Softmax<T>(scores, weights);
    for (size_t c = 0; c < width; ++c) {
      T sum = Number<T>(0);
      for (size_t j = 0; j < sources.size(); ++j) {
        sum += weights[j] * sources[j][begin + c];
      }
      out[begin + c] = sum;
    }
  }
}

// Coefficients of multi-stream residuals, of one row: x [streams * width] -> out [streams *
// (streams + 2)]. mix [streams + 2, width] may be empty, then norm and scale are not looked at.
template <class T>
void StreamWeights(int64_t streams, std::span<const T> base, std::span<const T> mix,
                   std::span<const T> norm, std::span<const T> scale, double epsilon,
                   std::span<const T> x, std::span<T> out) {
  const auto n = static_cast<size_t>(streams);
  const size_t width = x.size() / n;
  for (size_t k = 0; k < n; ++k) {
    T squares = Number<T>(0);
    for (size_t c = 0; c < width; ++c) {
      squares += x[k * width + c] * x[k * width + c];
    }
    const T root = std::sqrt(squares / Number<T>(static_cast<double>(width)) + Number<T>(epsilon));
    for (size_t j = 0; j < n + 2; ++j) {
      T& to = out[k * (n + 2) + j];
      to = base[k * (n + 2) + j];
      if (!mix.empty()) {
        T dot = Number<T>(0);
        for (size_t c = 0; c < width; ++c) {
          dot += mix[j * width + c] * norm[c] * x[k * width + c];
        }
        to += scale[j == n + 1 ? 1 : 0] * std::tanh(dot / root);
      }
    }
  }
}

// Of one row: out [width].
template <class T>
void StreamRead(int64_t streams, std::span<const T> x, std::span<const T> c, std::span<T> out) {
  const auto n = static_cast<size_t>(streams);
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = Number<T>(0);
    for (size_t k = 0; k < n; ++k) {
      out[i] += c[k * (n + 2)] * x[k * out.size() + i];
    }
  }
}

// Of one row: out [streams * width], y [width].
template <class T>
void StreamWrite(int64_t streams, std::span<const T> x, std::span<const T> c, std::span<const T> y,
                 std::span<T> out) {
  const auto n = static_cast<size_t>(streams);
  const size_t width = y.size();
  for (size_t j = 0; j < n; ++j) {
    for (size_t i = 0; i < width; ++i) {
      T sum = c[j * (n + 2) + n + 1] * y[i];
      for (size_t k = 0; k < n; ++k) {
        sum += c[k * (n + 2) + j + 1] * x[k * width + i];
      }
      out[j * width + i] = sum;
    }
  }
}

}  // namespace penstock::kernels::ref
