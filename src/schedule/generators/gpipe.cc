// GPipe (Huang et al. 2019, arXiv 1811.06965): every forward, then every backward. With several
// chunks per rank the forwards go chunk by chunk, which is the looped breadth-first schedule.
// Bubble (p-1)(F+B)/v, peak activations m.

#include "schedule/generators/generators.h"

namespace penstock::schedule {

Result<Schedule> MakeGpipe(const GeneratorOptions& options) {
  Schedule schedule =
      StartSchedule("gpipe", options, Placement::Loop(options.ranks, options.chunks));
  const int p = options.ranks;
  for (int r = 0; r < p; ++r) {
    ProgramWriter program(schedule, r, options.micro_batches);
    for (int c = 0; c < options.chunks; ++c) {
      for (int j = 0; j < options.micro_batches; ++j)
        program.F(c * p + r, j);
    }
    for (int c = options.chunks - 1; c >= 0; --c) {
      for (int j = 0; j < options.micro_batches; ++j)
        program.B(c * p + r, j);
    }
  }
  return schedule;
}

}  // namespace penstock::schedule
