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
  int64_t groups = 1;
  int64_t chosen_groups = 1;
};

// Groups that experts may be chosen from: those with the greatest sums of their two best keys.
inline std::vector<bool> OpenGroups(const MoeChoice& choice, const std::vector<double>& keys) {
  const size_t size = keys.size() / static_cast<size_t>(choice.groups);
  std::vector<double> scores;
  for (int64_t g = 0; g < choice.groups; ++g) {
    std::vector<double> group(keys.begin() + static_cast<int64_t>(size) * g,
                              keys.begin() + static_cast<int64_t>(size) * (g + 1));
    std::sort(group.rbegin(), group.rend());
    scores.push_back(group[0] + (size > 1 ? group[1] : 0.0));
  }
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return scores[a] > scores[b]; });
  std::vector<bool> open(scores.size(), false);
  for (int64_t i = 0; i < choice.chosen_groups; ++i) {
    open[order[static_cast<size_t>(i)]] = true;
  }
  return open;
}

// Weight of every expert for one row, zero where it is not chosen. Ties go to the lower index. `x`
// is what the router reads.
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
  std::vector<double> keys;
  for (size_t e = 0; e < scores.size(); ++e) {
    const double bias = weights.router_bias.empty() ? 0.0 : RealPart(weights.router_bias[e]);
    keys.push_back(static_cast<double>(RealPart(scores[e])) + bias);
  }
  const std::vector<bool> open = OpenGroups(choice, keys);
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const size_t group_size = scores.size() / open.size();
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const bool open_a = open[a / group_size];
    return open_a != open[b / group_size] ? open_a : keys[a] > keys[b];
  });
  T sum = Number<T>(choice.sigmoid ? 1e-20 : 0);
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

// out [width] of one row x [width] (and what the router reads, if not x): the chosen experts'
// results, by ascending expert.
template <class T>
void Moe(const MoeWeights<T>& weights, const MoeChoice& choice, Activation activation, int64_t ffn,
         std::span<const T> x, std::span<T> out, std::span<const T> router_input = {}) {
  const auto width = static_cast<int64_t>(x.size());
  const std::vector<T> router =
      RouterWeights(weights, choice, router_input.empty() ? x : router_input);
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

template <class T>
struct MoeGradients {
  std::vector<T> router;  // as MoeWeights
  std::vector<std::vector<T>> gate_up;
  std::vector<std::vector<T>> down;
};

// Gradient of one row's logits from that of its experts' weights. `chosen` are those whose weight
// is not zero.
template <class T>
std::vector<T> RouterBackward(const MoeWeights<T>& weights, const MoeChoice& choice,
                              std::span<const T> x, std::span<const T> router,
                              std::span<const T> dweights) {
  const size_t experts = router.size();
  std::vector<T> scores(experts);
  Linear<T>(weights.router, x, {}, 1, static_cast<int64_t>(x.size()), static_cast<int64_t>(experts),
            scores);
  if (choice.sigmoid) {
    for (T& score : scores) {
      score = Sigmoid(score);
    }
  } else {
    Softmax<T>(scores, scores);
  }
  T sum = Number<T>(0);
  T mean = Number<T>(0);
  for (size_t e = 0; e < experts; ++e) {
    if (RealPart(router[e]) != 0) {
      sum += scores[e];
      mean += scores[e] * dweights[e];
    }
  }
  mean /= sum;
  std::vector<T> slopes(experts, Number<T>(0));
  T under_softmax = Number<T>(0);
  for (size_t e = 0; e < experts; ++e) {
    if (RealPart(router[e]) != 0) {
      slopes[e] = (choice.normalize ? (dweights[e] - mean) / sum : dweights[e]) *
                  Number<T>(choice.weight_scale);
      under_softmax += scores[e] * slopes[e];
    }
  }
  for (size_t e = 0; e < experts; ++e) {
    slopes[e] = choice.sigmoid ? scores[e] * (Number<T>(1) - scores[e]) * slopes[e]
                               : scores[e] * (slopes[e] - under_softmax);
  }
  return slopes;
}

// Adds the gradients of Moe's inputs and weights for one row; the choice of experts is held fixed.
// The router reads `routed` and its gradient goes to `drouted`, which may be x and dx.
template <class T>
void MoeBackward(const MoeWeights<T>& weights, const MoeChoice& choice, Activation activation,
                 int64_t ffn, std::span<const T> x, std::span<const T> routed,
                 std::span<const T> dy, std::span<T> dx, std::span<T> drouted,
                 MoeGradients<T>& gradients) {
  const auto width = static_cast<int64_t>(x.size());
  const std::vector<T> router = RouterWeights(weights, choice, routed);
  const auto inner = static_cast<size_t>(ffn);
  std::vector<T> dweights(router.size(), Number<T>(0));
  for (size_t e = 0; e < router.size(); ++e) {
    if (RealPart(router[e]) == 0) {
      continue;
    }
    std::vector<T> both(2 * inner);
    std::vector<T> product(inner);
    std::vector<T> down(x.size());
    Linear<T>(weights.gate_up[e], x, {}, 1, width, 2 * ffn, both);
    const std::span<const T> gate(both.data(), inner);
    const std::span<const T> up(both.data() + inner, inner);
    Gated<T>(activation, gate, up, product);
    Linear<T>(weights.down[e], product, {}, 1, ffn, width, down);
    std::vector<T> ddown(x.size());
    for (size_t c = 0; c < x.size(); ++c) {
      dweights[e] += dy[c] * down[c];
      ddown[c] = dy[c] * router[e];
    }
    std::vector<T> dproduct(inner, Number<T>(0));
    LinearBackward<T>(weights.down[e], product, ddown, 1, ffn, width, dproduct, gradients.down[e]);
    std::vector<T> dboth(2 * inner, Number<T>(0));
    GatedBackward<T>(activation, gate, up, dproduct, std::span(dboth).first(inner),
                     std::span(dboth).last(inner));
    LinearBackward<T>(weights.gate_up[e], x, dboth, 1, width, 2 * ffn, dx, gradients.gate_up[e]);
  }
  const std::vector<T> dlogits = RouterBackward<T>(weights, choice, routed, router, dweights);
  LinearBackward<T>(weights.router, routed, dlogits, 1, static_cast<int64_t>(routed.size()),
                    static_cast<int64_t>(router.size()), drouted, gradients.router);
}

}  // namespace penstock::kernels::ref
