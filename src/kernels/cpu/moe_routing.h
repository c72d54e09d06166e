// Which experts a row goes to, and with which weights.

#pragma once

#include <cstdint>

#include "kernels/device.h"

namespace penstock::kernels {

// From logits [experts] of one row (changed in place): chosen and weights, [params.chosen], in
// descending order of score; ties go to the lower index. Softmax over all experts, or sigmoid;
// the router's bias counts for the choice only; then normalization and the weight scale.
void RouteRow(const MoeParams& params, float* logits, int32_t* chosen, float* weights);

}  // namespace penstock::kernels
