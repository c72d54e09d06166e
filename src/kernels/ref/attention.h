// Scalar twin of causal attention over the keys and values of one sequence.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/device.h"
#include "kernels/ref/norm.h"
#include "kernels/ref/number.h"

namespace penstock::kernels::ref {

// q [rows, heads * head_dim] at positions first_position, ...; k [positions, kv_heads * head_dim]
// and v [positions, kv_heads * value_dim] from position 0 on; out [rows, heads * value_dim].
// A row sees positions (own - window, own], or all up to its own if window is 0.
template <class T>
void Attention(const AttentionParams& params, std::span<const T> q, std::span<const T> k,
               std::span<const T> v, int64_t rows, int64_t first_position, std::span<T> out) {
  const int64_t group = params.heads / params.kv_heads;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t position = first_position + r;
    const int64_t first =
        params.window > 0 ? std::max<int64_t>(0, position - params.window + 1) : 0;
    for (int64_t h = 0; h < params.heads; ++h) {
      std::vector<T> weights(static_cast<size_t>(position + 1 - first));
      for (int64_t p = first; p <= position; ++p) {
        T score = Number<T>(0);
        for (int64_t i = 0; i < params.head_dim; ++i) {
          score += q[static_cast<size_t>((r * params.heads + h) * params.head_dim + i)] *
                   k[static_cast<size_t>((p * params.kv_heads + h / group) * params.head_dim + i)];
        }
        score *= Number<T>(params.scale);
        if (params.soft_cap > 0) {
          score = Number<T>(params.soft_cap) * std::tanh(score / Number<T>(params.soft_cap));
        }
        weights[static_cast<size_t>(p - first)] = score;
      }
      Softmax<T>(weights, weights);
      for (int64_t c = 0; c < params.value_dim; ++c) {
        T sum = Number<T>(0);
        for (int64_t p = first; p <= position; ++p) {
          sum += weights[static_cast<size_t>(p - first)] *
                 v[static_cast<size_t>((p * params.kv_heads + h / group) * params.value_dim + c)];
        }
        out[static_cast<size_t>((r * params.heads + h) * params.value_dim + c)] = sum;
      }
    }
  }
}

}  // namespace penstock::kernels::ref
