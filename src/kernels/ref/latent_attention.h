// Scalar twin of multi-head latent attention (DeepSeek-V2, arXiv 2405.04434), one sequence from
// position 0 on, in both forms.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/device.h"
#include "kernels/ref/norm.h"
#include "kernels/ref/number.h"

namespace penstock::kernels::ref {

// q [rows, heads * (nope + rope)] at positions 0, ...; latent [rows, latent]; key [rows, rope];
// expand [heads * (nope + value_dim), latent]; out [rows, heads * value_dim]. `params.absorbed`
// decides the order of the products.
template <class T>
void LatentAttention(const LatentAttentionParams& params, std::span<const T> q,
                     std::span<const T> latent, std::span<const T> key, std::span<const T> expand,
                     int64_t rows, std::span<T> out) {
  const int64_t head_dim = params.nope + params.rope;
  const int64_t head_rows = params.nope + params.value_dim;
  const auto at = [](std::span<const T> m, int64_t row, int64_t columns, int64_t c) {
    return m[static_cast<size_t>(row * columns + c)];
  };
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t h = 0; h < params.heads; ++h) {
      const auto query = [&](int64_t i) { return at(q, r * params.heads + h, head_dim, i); };
      const auto weight = [&](int64_t i, int64_t c) {
        return at(expand, h * head_rows + i, params.latent, c);
      };
      std::vector<T> absorbed(static_cast<size_t>(params.latent), Number<T>(0));
      for (int64_t c = 0; c < params.latent; ++c) {
        for (int64_t i = 0; i < params.nope; ++i) {
          absorbed[static_cast<size_t>(c)] += query(i) * weight(i, c);
        }
      }
      std::vector<T> scores(static_cast<size_t>(r) + 1, Number<T>(0));
      for (int64_t p = 0; p <= r; ++p) {
        T score = Number<T>(0);
        if (params.absorbed) {
          for (int64_t c = 0; c < params.latent; ++c) {
            score += absorbed[static_cast<size_t>(c)] * at(latent, p, params.latent, c);
          }
        } else {
          for (int64_t i = 0; i < params.nope; ++i) {
            T k = Number<T>(0);
            for (int64_t c = 0; c < params.latent; ++c) {
              k += weight(i, c) * at(latent, p, params.latent, c);
            }
            score += query(i) * k;
          }
        }
        for (int64_t i = 0; i < params.rope; ++i) {
          score += query(params.nope + i) * at(key, p, params.rope, i);
        }
        scores[static_cast<size_t>(p)] = score * Number<T>(params.scale);
      }
      Softmax<T>(scores, scores);
      std::vector<T> sum(static_cast<size_t>(params.latent), Number<T>(0));
      for (int64_t c = 0; c < params.latent; ++c) {
        for (int64_t p = 0; p <= r; ++p) {
          sum[static_cast<size_t>(c)] +=
              scores[static_cast<size_t>(p)] * at(latent, p, params.latent, c);
        }
      }
      for (int64_t v = 0; v < params.value_dim; ++v) {
        T o = Number<T>(0);
        for (int64_t c = 0; c < params.latent; ++c) {
          o += weight(params.nope + v, c) * sum[static_cast<size_t>(c)];
        }
        out[static_cast<size_t>((r * params.heads + h) * params.value_dim + v)] = o;
      }
    }
  }
}

}  // namespace penstock::kernels::ref
