// Interleaved 1F1B (Narayanan et al. 2021, arXiv 2104.04473; Megatron-LM): v chunks per rank in a
// loop; groups of micro-batches go through one chunk after another. Rank r runs 2(p-1-r) + (v-1)G
// chunk forwards first (G: size of the first group), then forward and backward in turn. With one
// chunk it is 1F1B, whose shorter warm-up needs less memory for the same time. Bubble (p-1)(F+B)/v,
// peak activations (2(p-1) + (v-1)p + 1)/v on rank 0.

#include <algorithm>

#include "schedule/generators/generators.h"
#include "schedule/generators/interleave.h"
#include "schedule/repair.h"

namespace penstock::schedule {

Result<Schedule> MakeInterleaved(const GeneratorOptions& options) {
  const int p = options.ranks;
  const int v = options.chunks;
  Schedule schedule = StartSchedule("interleaved-1f1b", options, Placement::Loop(p, v));
  const std::vector<ChunkStep> order = ForwardOrder(p, options.micro_batches, v);
  const auto total = static_cast<int>(order.size());
  const int group = GroupSizes(p, options.micro_batches)[0];
  for (int r = 0; r < p; ++r) {
    ProgramWriter program(schedule, r, options.micro_batches);
    auto forward = [&](int i) {
      program.F(order[static_cast<size_t>(i)].chunk * p + r,
                order[static_cast<size_t>(i)].micro_batch);
    };
    auto backward = [&](int i) {
      program.B((v - 1 - order[static_cast<size_t>(i)].chunk) * p + r,
                order[static_cast<size_t>(i)].micro_batch);
    };
    const int warm_up = std::min(total, (v == 1 ? 1 : 2) * (p - 1 - r) + (v - 1) * group);
    for (int i = 0; i < warm_up; ++i)
      forward(i);
    for (int i = warm_up; i < total; ++i) {
      forward(i);
      backward(i - warm_up);
    }
    for (int i = total - warm_up; i < total; ++i)
      backward(i);
  }
  return RepairOrder(std::move(schedule));
}

}  // namespace penstock::schedule
