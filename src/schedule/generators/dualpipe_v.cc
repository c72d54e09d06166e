// DualPipeV (deepseek-ai/DualPipe; "cut in half" by Sea AI Lab): the steps of DualPipe on a V of
// two stages per rank, so that one copy of the weights suffices. Stated for m >= 2p; for fewer
// micro-batches those that do not exist are left out. Bubble (p-1)(F&B + B - 3W) with stages of
// half a rank, peak activations p + 1/2.

#include <algorithm>

#include "schedule/generators/dualpipe_steps.h"
#include "schedule/generators/generators.h"

namespace penstock::schedule {

Result<Schedule> MakeDualPipeV(const GeneratorOptions& options) {
  const int p = options.ranks;
  const int m = options.micro_batches;
  Schedule schedule = StartSchedule("dualpipe-v", options, Placement::V(p));
  for (int r = 0; r < p; ++r) {
    WriteDualPipe(schedule, r, p, r, std::max(m, 2 * p), {{r, 2 * p - 1 - r}, {0, 0}, {m, m}});
  }
  return schedule;
}

}  // namespace penstock::schedule
