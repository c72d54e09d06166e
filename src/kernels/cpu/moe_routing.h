// Which experts a row goes to, and with which weights.

#pragma once

#include <cstdint>

#include "kernels/device.h"

namespace penstock::kernels {

// From logits [experts] of one row (changed in place): chosen and weights, [params.chosen], in
// descending order of score; ties go to the lower index. Softmax over all experts, or sigmoid;
// the router's bias counts for the choice only; then normalization and the weight scale.
void RouteRow(const MoeParams& params, float* logits, int32_t* chosen, float* weights);

// What RouteRow gave for all rows: [rows, per_row] each.
struct Routes {
  const int32_t* chosen = nullptr;
  const float* weights = nullptr;
  int64_t rows = 0;
  int64_t per_row = 0;
};

// Room for `rows` numbers each.
struct ExpertSlots {
  int32_t* rows = nullptr;
  int32_t* slots = nullptr;  // row * per_row + place in the row; may be null
  float* weights = nullptr;
};

// The rows that chose one expert, ascending, and with which weight; returns how many.
int64_t ListSlots(const Routes& routes, int32_t expert, const ExpertSlots& to);

}  // namespace penstock::kernels
