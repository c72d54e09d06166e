// Scalar twin of a mixture of experts.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "kernels/ref/activation.h"
#include "kernels/ref/linear.h"
#include "kernels/ref/norm.h"
#include "kernels/ref/number.h"

namespace penstock::kernels::ref {

template <class T>
struct MoeWeights {
  std::span<const T> router;                // [experts, width]
  std::span<const T> router_bias;           // [experts] or empty
  std::vector<std::span<const T>> gate_up;  // [2 * ffn, width]
  std::vector<std::span<const T>> down;     // [width, ffn]
};

struct MoeChoice {
  bool sigmoid = false;
  bool normalize = false;
  int64_t chosen = 0;
  double weight_scale = 1;
};

// Weight of every expert for one row, zero where it is not chosen. Ties go to the lower index.
template <class T>
std::vector<T> RouterWeights(const MoeWeights<T>& weights, const MoeChoice& choice,
                             std::span<const T> x) {
  const auto experts = static_cast<int64_t>(weights.gate_up.size());
  const auto width = static_cast<int64_t>(x.size());
  std::vector<T> scores(static_cast<size_t>(experts));
  Linear<T>(weights.router, x, {}, 1, width, experts, scores);
  if (choice.sigmoid) {
    for (T& score : scores) {
      score = Sigmoid(score);
    }
  } else {
    Softmax<T>(scores, scores);
  }
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const auto key = [&](size_t e) {
      return weights.router_bias.empty() ? RealPart(scores[e])
                                         : RealPart(scores[e]) + RealPart(weights.router_bias[e]);
    };
    return key(a) > key(b);
  });
  T sum = Number<T>(0);
  std::vector<T> result(scores.size(), Number<T>(0));
  for (int64_t i = 0; i < choice.chosen; ++i) {
    sum += scores[order[static_cast<size_t>(i)]];
  }
  for (int64_t i = 0; i < choice.chosen; ++i) {
    const size_t e = order[static_cast<size_t>(i)];
    result[e] = (choice.normalize ? scores[e] / sum : scores[e]) * Number<T>(choice.weight_scale);
  }
  return result;
}

// out [width] of one row x [width]: the chosen experts' results, by ascending expert.
template <class T>
void Moe(const MoeWeights<T>& weights, const MoeChoice& choice, Activation activation, int64_t ffn,
         std::span<const T> x, std::span<T> out) {
  const auto width = static_cast<int64_t>(x.size());
  const std::vector<T> router = RouterWeights(weights, choice, x);
  std::ranges::fill(out, Number<T>(0));
  const auto inner = static_cast<size_t>(ffn);
  std::vector<T> both(2 * inner);
  std::vector<T> down(x.size());
  for (size_t e = 0; e < router.size(); ++e) {
    if (RealPart(router[e]) == 0) {
      continue;
    }
    Linear<T>(weights.gate_up[e], x, {}, 1, width, 2 * ffn, both);
    const std::span<T> gate(both.data(), inner);
    const std::span<const T> up(both.data() + inner, inner);
    Gated<T>(activation, gate, up, gate);
    Linear<T>(weights.down[e], gate, {}, 1, ffn, width, down);
    for (size_t c = 0; c < out.size(); ++c) {
      out[c] += router[e] * down[c];
    }
  }
}

}  // namespace penstock::kernels::ref
