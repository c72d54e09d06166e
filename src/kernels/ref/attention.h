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

// Adds the gradients of Attention's inputs. dout has the shape of out, the others those of their
// inputs.
template <class T>
void AttentionBackward(const AttentionParams& params, std::span<const T> q, std::span<const T> k,
                       std::span<const T> v, int64_t rows, int64_t first_position,
                       std::span<const T> dout, std::span<T> dq, std::span<T> dk, std::span<T> dv) {
  const int64_t group = params.heads / params.kv_heads;
  const T scale = Number<T>(params.scale);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t position = first_position + r;
    const int64_t first =
        params.window > 0 ? std::max<int64_t>(0, position - params.window + 1) : 0;
    for (int64_t h = 0; h < params.heads; ++h) {
      const auto n = static_cast<size_t>(position + 1 - first);
      std::vector<T> weights(n);
      std::vector<T> slopes(n, scale);
      const auto q_at = static_cast<size_t>((r * params.heads + h) * params.head_dim);
      const auto out_at = static_cast<size_t>((r * params.heads + h) * params.value_dim);
      const auto key_at = [&](size_t i, int64_t dim) {
        return static_cast<size_t>(
            ((first + static_cast<int64_t>(i)) * params.kv_heads + h / group) * dim);
      };
      const auto head_dim = static_cast<size_t>(params.head_dim);
      const auto value_dim = static_cast<size_t>(params.value_dim);
      for (size_t i = 0; i < n; ++i) {
        T score = Number<T>(0);
        for (size_t c = 0; c < head_dim; ++c) {
          score += q[q_at + c] * k[key_at(i, params.head_dim) + c];
        }
        score *= scale;
        if (params.soft_cap > 0) {
          const T t = std::tanh(score / Number<T>(params.soft_cap));
          score = Number<T>(params.soft_cap) * t;
          slopes[i] *= Number<T>(1) - t * t;
        }
        weights[i] = score;
      }
      Softmax<T>(weights, weights);
      std::vector<T> dweights(n, Number<T>(0));
      T mean = Number<T>(0);
      for (size_t i = 0; i < n; ++i) {
        const size_t at = key_at(i, params.value_dim);
        for (size_t c = 0; c < value_dim; ++c) {
          dweights[i] += dout[out_at + c] * v[at + c];
          dv[at + c] += weights[i] * dout[out_at + c];
        }
        mean += weights[i] * dweights[i];
      }
      for (size_t i = 0; i < n; ++i) {
        const T slope = weights[i] * (dweights[i] - mean) * slopes[i];
        const size_t at = key_at(i, params.head_dim);
        for (size_t c = 0; c < head_dim; ++c) {
          dq[q_at + c] += slope * k[at + c];
          dk[at + c] += slope * q[q_at + c];
        }
      }
    }
  }
}

}  // namespace penstock::kernels::ref
