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

}  // namespace penstock::kernels::ref
