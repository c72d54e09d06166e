// Decode ring: m groups of sequences circulate through the stages; one step is one lap, in which
// every group gets one token. A group's next lap needs the token that the last stage sampled, so
// the period is max(p(F + C), mF): with m >= p groups no stage waits, with fewer the ring's latency
// shows.

#include "schedule/generators/generators.h"

namespace penstock::schedule {

Result<Schedule> MakeDecodeRing(const GeneratorOptions& options) {
  auto schedule = MakeForward(options);
  if (schedule.ok()) {
    schedule.value().name = "decode-ring";
    schedule.value().ring = true;
  }
  return schedule;
}

}  // namespace penstock::schedule
