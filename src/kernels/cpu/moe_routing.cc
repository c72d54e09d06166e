#include "kernels/cpu/moe_routing.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cpu/vector_ops.h"

namespace penstock::kernels {
namespace {

// The groups with the greatest sums of their two best scores; ties go to the lower group.
template <class Biased>
std::vector<bool> ChooseGroups(const MoeParams& params, const Biased& biased) {
  const int64_t size = params.router.rows() / params.groups;
  std::vector<float> scores;
  for (int64_t g = 0; g < params.groups; ++g) {
    float best = -std::numeric_limits<float>::infinity();
    float second = best;
    for (int64_t e = g * size; e < (g + 1) * size; ++e) {
      const float score = biased(e);
      second = std::max(second, std::min(best, score));
      best = std::max(best, score);
    }
    scores.push_back(size > 1 ? best + second : best);
  }
  std::vector<bool> open(scores.size(), false);
  for (int64_t i = 0; i < params.chosen_groups; ++i) {
    int64_t best = -1;
    for (int64_t g = 0; g < params.groups; ++g) {
      const auto at = static_cast<size_t>(g);
      if (!open[at] && (best < 0 || scores[at] > scores[static_cast<size_t>(best)])) {
        best = g;
      }
    }
    open[static_cast<size_t>(best)] = true;
  }
  return open;
}

}  // namespace

void RouteRow(const MoeParams& params, float* logits, int32_t* chosen, float* weights) {
  const int64_t experts = params.router.rows();
  if (params.sigmoid) {
    for (int64_t e = 0; e < experts; ++e) {
      logits[e] = 1.0F / (1.0F + std::exp(-logits[e]));
    }
  } else {
    SoftmaxRows(Tensor(logits, DType::kF32, 1, experts), {0, 1});
  }
  const float* bias =
      params.router_bias.empty() ? nullptr : params.router_bias.Row<float>(0).data();
  const auto biased = [&](int64_t e) { return bias == nullptr ? logits[e] : logits[e] + bias[e]; };
  std::vector<bool> open;  // per group; empty: all
  if (params.groups > params.chosen_groups) {
    open = ChooseGroups(params, biased);
  }
  const int64_t group_size = experts / params.groups;
  float sum = params.sigmoid ? 1e-20F : 0.0F;
  for (int64_t i = 0; i < params.chosen; ++i) {
    int64_t best = -1;
    float best_score = 0;
    for (int64_t e = 0; e < experts; ++e) {
      if (!open.empty() && !open[static_cast<size_t>(e / group_size)]) {
        continue;
      }
      const float score = biased(e);
      const bool taken = std::find(chosen, chosen + i, static_cast<int32_t>(e)) != chosen + i;
      // The first free expert stands until a greater score comes: a NaN never wins over it.
      if (!taken && (best < 0 || score > best_score)) {
        best = e;
        best_score = score;
      }
    }
    chosen[i] = static_cast<int32_t>(best);
    weights[i] = logits[best];
    sum += weights[i];
  }
  for (int64_t i = 0; i < params.chosen; ++i) {
    weights[i] = (params.normalize ? weights[i] / sum : weights[i]) * params.weight_scale;
  }
}

int64_t ListSlots(const Routes& routes, int32_t expert, const ExpertSlots& to) {
  int64_t count = 0;
  for (int64_t i = 0; i < routes.rows * routes.per_row; ++i) {
    if (routes.chosen[i] != expert) {
      continue;
    }
    to.rows[count] = static_cast<int32_t>(i / routes.per_row);
    if (to.slots != nullptr) {
      to.slots[count] = static_cast<int32_t>(i);
    }
    to.weights[count++] = routes.weights[i];
  }
  return count;
}

}  // namespace penstock::kernels
