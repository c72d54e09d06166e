// ZB-H1 (Qi et al. 2023, arXiv 2401.10241): 1F1B whose backward is split; W lags so that no rank
// keeps more than p micro-batches. Rank r runs p-1-r forwards, then F_x, I_{x-(p-1-r)} and, from x
// = p-1 on, W_{x-(p-1)}; at the end I and W in turn. Bubble (p-1)(F+I-W), peak activations at most
// p.

#include <algorithm>

#include "schedule/generators/generators.h"

namespace penstock::schedule {

Result<Schedule> MakeZeroBubbleH1(const GeneratorOptions& options) {
  const int p = options.ranks;
  const int m = options.micro_batches;
  Schedule schedule = StartSchedule("zb-h1", options, Placement::Loop(p, 1));
  for (int r = 0; r < p; ++r) {
    ProgramWriter program(schedule, r, m);
    const int warm_up = std::min(p - 1 - r, m);
    int weights = 0;
    for (int j = 0; j < warm_up; ++j)
      program.F(r, j);
    for (int j = 0; j < m; ++j) {
      if (warm_up + j < m)
        program.F(r, warm_up + j);
      program.I(r, j);
      if (j >= r)
        program.W(r, weights++);
    }
    while (weights < m)
      program.W(r, weights++);
  }
  return schedule;
}

}  // namespace penstock::schedule
