// Prefill in chunks of equal cost: a row that looks back over a longer prefix costs more, so later
// chunks of a prompt are shorter. The one place of this arithmetic; the engine's decider and the
// planner's forecast of it both use it.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace penstock::plan {

// Cost of `rows` rows behind `prefix` positions, in rows that look back at nothing.
// `attention_share`: cost of one row looking back one position, over the rest of the row's cost.
inline double ChunkCost(double attention_share, int64_t prefix, int64_t rows) {
  const auto n = static_cast<double>(rows);
  return n + attention_share * n * (static_cast<double>(prefix) + n / 2);
}

// The rows, at least 1, that cost `cost` behind `prefix` positions: ChunkCost solved for n.
inline int64_t ChunkRows(double attention_share, int64_t prefix, double cost) {
  const double r = attention_share;
  const double b = 1 + r * static_cast<double>(prefix);
  const double n = r <= 0 ? cost : (std::sqrt(b * b + 2 * r * cost) - b) / r;
  return std::max<int64_t>(1, static_cast<int64_t>(n + 0.5));
}

}  // namespace penstock::plan
