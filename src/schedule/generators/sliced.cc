// Sequence-sliced 1F1B (Seq1F1B, Sun et al. 2024, arXiv 2406.03488): a micro-batch is cut into K
// slices along the sequence. Forward slices ascend (attention is causal), backward slices descend
// inside a micro-batch, which needs all its forwards. Rank r runs p-2-r+K slice forwards first.
// Bubble about (p-1)(F+B)/K, peak activations (p-1-r+K)/K.

#include <algorithm>

#include "schedule/generators/generators.h"

namespace penstock::schedule {

Result<Schedule> MakeSliced(const GeneratorOptions& options) {
  const int p = options.ranks;
  const int slices = options.slices;
  const int total = options.micro_batches * slices;
  Schedule schedule = StartSchedule("sliced-1f1b", options, Placement::Loop(p, 1));
  for (int r = 0; r < p; ++r) {
    ProgramWriter program(schedule, r, options.micro_batches);
    auto forward = [&](int i) { program.F(r, i / slices, i % slices); };
    auto backward = [&](int i) { program.B(r, i / slices, slices - 1 - i % slices); };
    const int warm_up = std::min(p - 2 - r + slices, total);
    for (int i = 0; i < warm_up; ++i)
      forward(i);
    for (int i = warm_up; i < total; ++i) {
      forward(i);
      backward(i - warm_up);
    }
    for (int i = total - warm_up; i < total; ++i)
      backward(i);
  }
  return schedule;
}

}  // namespace penstock::schedule
