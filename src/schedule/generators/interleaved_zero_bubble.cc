// Interleaved zero bubble (PyTorch's ScheduleInterleavedZeroBubble, after Qi et al. 2023):
// interleaved 1F1B with a warm-up of (p-1-r) + (v-1)G chunk forwards, the backward split, and W r
// steps behind I. With one chunk it is ZB-H1. Peak activations p.

#include <algorithm>

#include "schedule/generators/generators.h"
#include "schedule/generators/interleave.h"
#include "schedule/repair.h"

namespace penstock::schedule {

Result<Schedule> MakeInterleavedZeroBubble(const GeneratorOptions& options) {
  const int p = options.ranks;
  const int v = options.chunks;
  Schedule schedule = StartSchedule("interleaved-zb", options, Placement::Loop(p, v));
  const std::vector<ChunkStep> order = ForwardOrder(p, options.micro_batches, v);
  const auto total = static_cast<int>(order.size());
  const int group = GroupSizes(p, options.micro_batches)[0];
  for (int r = 0; r < p; ++r) {
    ProgramWriter program(schedule, r, options.micro_batches);
    auto stage_back = [&](int i) { return (v - 1 - order[static_cast<size_t>(i)].chunk) * p + r; };
    auto micro_batch = [&](int i) { return order[static_cast<size_t>(i)].micro_batch; };
    auto forward = [&](int i) {
      program.F(order[static_cast<size_t>(i)].chunk * p + r, micro_batch(i));
    };
    int weights = 0;
    auto backward = [&](int i) {
      program.I(stage_back(i), micro_batch(i));
      if (i >= r) {
        program.W(stage_back(weights), micro_batch(weights));
        ++weights;
      }
    };
    const int warm_up = std::min(total, p - 1 - r + (v - 1) * group);
    for (int i = 0; i < warm_up; ++i)
      forward(i);
    for (int i = warm_up; i < total; ++i) {
      forward(i);
      backward(i - warm_up);
    }
    for (int i = total - warm_up; i < total; ++i)
      backward(i);
    for (; weights < total; ++weights)
      program.W(stage_back(weights), micro_batch(weights));
  }
  return RepairOrder(std::move(schedule));
}

}  // namespace penstock::schedule
