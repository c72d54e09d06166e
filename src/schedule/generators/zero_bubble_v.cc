// ZB-V (Qi et al. 2024, arXiv 2405.15362): two stages per rank in a V, a = r and b = 2p-1-r, so
// that a micro-batch's backward starts on the rank that ends its forward. Peak activations p, equal
// on all ranks; no bubble between steps where F, I and W take the same time and nothing holds the
// steps apart. The program is stated for at least 2p-1 micro-batches.

#include <algorithm>

#include "schedule/generators/generators.h"

namespace penstock::schedule {

Result<Schedule> MakeZeroBubbleV(const GeneratorOptions& options) {
  const int p = options.ranks;
  const int m = std::max(options.micro_batches, 2 * p - 1);
  Schedule schedule = StartSchedule("zb-v", options, Placement::V(p));
  for (int r = 0; r < p; ++r) {
    ProgramWriter program(schedule, r, options.micro_batches);
    const int a = r;
    const int b = 2 * p - 1 - r;
    int fa = 0, fb = 0, ia = 0, ib = 0, wa = 0, wb = 0;
    for (int i = 0; i < 2 * (p - r) - 1; ++i)
      program.F(a, fa++);
    for (int i = 0; i < r; ++i) {
      program.F(b, fb++);
      program.F(a, fa++);
    }
    for (int i = 0; i < p - r; ++i) {
      program.F(b, fb++);
      program.I(b, ib++);
      program.W(b, wb++);
    }
    while (fa < m || fb < m) {
      if (fa < m)
        program.F(a, fa++);
      program.I(a, ia++);
      program.W(a, wa++);
      program.F(b, fb++);
      program.I(b, ib++);
      program.W(b, wb++);
    }
    for (int i = 0; i < r; ++i) {
      program.I(a, ia++);
      program.I(b, ib++);
    }
    for (int i = 0; i < p - r; ++i) {
      program.I(a, ia++);
      program.W(a, wa++);
    }
    while (wb < ib)
      program.W(b, wb++);
    while (wa < ia)
      program.W(a, wa++);
  }
  return schedule;
}

}  // namespace penstock::schedule
