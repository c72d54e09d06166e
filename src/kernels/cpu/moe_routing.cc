#include "kernels/cpu/moe_routing.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/vector_ops.h"

namespace penstock::kernels {

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
  float sum = 0;
  for (int64_t i = 0; i < params.chosen; ++i) {
    int64_t best = -1;
    float best_score = 0;
    for (int64_t e = 0; e < experts; ++e) {
      const float score = bias == nullptr ? logits[e] : logits[e] + bias[e];
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

}  // namespace penstock::kernels
