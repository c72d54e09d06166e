// DualPipe (DeepSeek-V3, arXiv 2412.19437; deepseek-ai/DualPipe): two copies of the weights, one
// half of the micro-batches flows down from rank 0, the other up from rank p-1; forward of one and
// backward of the other overlap. The steps are stated for even p, even m and m >= 2p. With odd p
// the two middle ranks are one, which skips a hop and keeps every dependence; for other m the
// program is made for enough micro-batches and those that do not exist are left out. Bubble
// (p/2-1)(F&B + B - 3W), peak activations p+1 stages, two copies of the weights.

#include <algorithm>

#include "schedule/generators/dualpipe_steps.h"
#include "schedule/generators/generators.h"

namespace penstock::schedule {

Result<Schedule> MakeDualPipe(const GeneratorOptions& options) {
  const int p = options.ranks;
  Schedule schedule = StartSchedule("dualpipe", options, Placement::Mirrored(p));
  const int depth = (p + 1) / 2;
  const int split = schedule.direction_split();
  const int count[2] = {split, options.micro_batches - split};
  const int per_stream = std::max(split, 2 * depth);
  for (int r = 0; r < p; ++r) {
    const int position = std::min(r, p - 1 - r);
    const int near = r < depth ? 0 : 1;  // the direction that enters near this rank
    const int far = 1 - near;
    const int stage_of[2] = {r, p - 1 - r};
    const int first[2] = {0, split};
    WriteDualPipe(
        schedule, r, depth, position, per_stream,
        {{stage_of[near], stage_of[far]}, {first[near], first[far]}, {count[near], count[far]}});
  }
  return schedule;
}

}  // namespace penstock::schedule
