// Forward only: a prompt's chunks, an evaluation, any work without backward. Groups of
// micro-batches go through a rank's chunks in turn. Makespan with one chunk: p + m - 1 forwards and
// p - 1 hops.

#include "schedule/generators/generators.h"
#include "schedule/generators/interleave.h"

namespace penstock::schedule {

Result<Schedule> MakeForward(const GeneratorOptions& options) {
  const int p = options.ranks;
  Schedule schedule = StartSchedule("forward", options, Placement::Loop(p, options.chunks));
  schedule.forward_only = true;
  const std::vector<ChunkStep> order = ForwardOrder(p, options.micro_batches, options.chunks);
  for (int r = 0; r < p; ++r) {
    ProgramWriter program(schedule, r, options.micro_batches);
    for (const ChunkStep& step : order)
      program.F(step.chunk * p + r, step.micro_batch);
  }
  return schedule;
}

}  // namespace penstock::schedule
