#include "schedule/generators/interleave.h"

#include <algorithm>
#include <cstddef>

namespace penstock::schedule {

std::vector<int> GroupSizes(int ranks, int micro_batches) {
  std::vector<int> sizes(static_cast<size_t>(std::max(1, micro_batches / ranks)), ranks);
  sizes.back() = micro_batches - ranks * (static_cast<int>(sizes.size()) - 1);
  return sizes;
}

std::vector<ChunkStep> ForwardOrder(int ranks, int micro_batches, int chunks) {
  std::vector<ChunkStep> order;
  order.reserve(static_cast<size_t>(micro_batches) * static_cast<size_t>(chunks));
  int first = 0;
  for (const int size : GroupSizes(ranks, micro_batches)) {
    for (int c = 0; c < chunks; ++c) {
      for (int j = first; j < first + size; ++j)
        order.push_back({c, j});
    }
    first += size;
  }
  return order;
}

}  // namespace penstock::schedule
