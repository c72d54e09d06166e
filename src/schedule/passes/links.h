// Which messages a schedule's placement and edges ask for.

#pragma once

#include <vector>

#include "schedule/passes.h"
#include "schedule/schedule.h"

namespace penstock::schedule {

// One edge and direction on one copy of the weights: carries one message per micro-batch and slice.
struct Link {
  bool forward = true;
  uint16_t value = 0;  // as in Action
  int from = 0;        // stages
  int to = 0;
  int direction = 0;  // copy of the weights
};

struct LinkTable {
  std::vector<Link> links;
  // By copy of the weights and stage: links whose messages a computation needs, and those that it
  // feeds.
  std::vector<std::vector<int>> before_forward[2];
  std::vector<std::vector<int>> after_forward[2];
  std::vector<std::vector<int>> before_backward[2];
  std::vector<std::vector<int>> after_backward[2];
};

// Chain links first, then long values in the order of the edges. O(links).
LinkTable FindLinks(const Schedule& schedule, const LowerOptions& options);

}  // namespace penstock::schedule
