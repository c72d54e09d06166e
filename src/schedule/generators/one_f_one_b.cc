// 1F1B with flush (PipeDream-flush; Narayanan et al. 2021, arXiv 2006.09503): rank r runs w =
// min(p-1-r, m) forwards, then forward and backward in turn, then the w backwards that are left.
// Bubble (p-1)(F+B), peak activations min(p-r, m).

#include <algorithm>

#include "schedule/generators/generators.h"

namespace penstock::schedule {

Result<Schedule> MakeOneForwardOneBackward(const GeneratorOptions& options) {
  Schedule schedule = StartSchedule("1f1b", options, Placement::Loop(options.ranks, 1));
  const int m = options.micro_batches;
  for (int r = 0; r < options.ranks; ++r) {
    ProgramWriter program(schedule, r, m);
    const int warm_up = std::min(options.ranks - 1 - r, m);
    for (int j = 0; j < warm_up; ++j)
      program.F(r, j);
    for (int j = warm_up; j < m; ++j) {
      program.F(r, j);
      program.B(r, j - warm_up);
    }
    for (int j = m - warm_up; j < m; ++j)
      program.B(r, j);
  }
  return schedule;
}

}  // namespace penstock::schedule
