// ZB-H2 (Qi et al. 2023, arXiv 2401.10241): twice the warm-up of ZB-H1, so that steps that follow
// each other without a barrier leave no bubble. Rank r runs 2(p-r)-1 forwards, then I and F in
// turn, with W from the (2p-1)-th forward on; at the end I and W. Bubble (p-1)(F+I-2W) without a
// barrier, peak activations at most 2p-1.

#include <algorithm>

#include "schedule/generators/generators.h"

namespace penstock::schedule {

Result<Schedule> MakeZeroBubbleH2(const GeneratorOptions& options) {
  const int p = options.ranks;
  const int m = options.micro_batches;
  Schedule schedule = StartSchedule("zb-h2", options, Placement::Loop(p, 1));
  for (int r = 0; r < p; ++r) {
    ProgramWriter program(schedule, r, m);
    const int warm_up = std::min(2 * (p - r) - 1, m);
    int inputs = 0;
    int weights = 0;
    for (int j = 0; j < warm_up; ++j)
      program.F(r, j);
    for (int j = warm_up; j < m; ++j) {
      program.I(r, inputs++);
      if (j >= 2 * p - 1)
        program.W(r, weights++);
      program.F(r, j);
    }
    while (inputs < m) {
      program.I(r, inputs++);
      program.W(r, weights++);
    }
    while (weights < m)
      program.W(r, weights++);
  }
  return schedule;
}

}  // namespace penstock::schedule
