// The generators, one file each, and what they share. Everybody else goes through registry.h.

#pragma once

#include <string_view>
#include <vector>

#include "base/result.h"
#include "schedule/registry.h"
#include "schedule/schedule.h"

namespace penstock::schedule {

// REQUIRES (all): options checked by Generate, chunks and slices filled in.
Result<Schedule> MakeGpipe(const GeneratorOptions& options);
Result<Schedule> MakeOneForwardOneBackward(const GeneratorOptions& options);
Result<Schedule> MakeInterleaved(const GeneratorOptions& options);
Result<Schedule> MakeLoopedBfs(const GeneratorOptions& options);
Result<Schedule> MakeZeroBubbleH1(const GeneratorOptions& options);
Result<Schedule> MakeZeroBubbleH2(const GeneratorOptions& options);
Result<Schedule> MakeInterleavedZeroBubble(const GeneratorOptions& options);
Result<Schedule> MakeZeroBubbleV(const GeneratorOptions& options);
Result<Schedule> MakeVHalf(const GeneratorOptions& options);
Result<Schedule> MakeVMin(const GeneratorOptions& options);
Result<Schedule> MakeDualPipe(const GeneratorOptions& options);
Result<Schedule> MakeDualPipeV(const GeneratorOptions& options);
Result<Schedule> MakeSliced(const GeneratorOptions& options);
Result<Schedule> MakeHanayo(const GeneratorOptions& options);
Result<Schedule> MakeChimera(const GeneratorOptions& options);
Result<Schedule> MakeForward(const GeneratorOptions& options);
Result<Schedule> MakeDecodeRing(const GeneratorOptions& options);

// An empty schedule with its header filled in.
Schedule StartSchedule(std::string_view name, const GeneratorOptions& options, Placement placement);

// Appends cells to one rank's program. Micro-batches at or above `limit` are left out: a generator
// whose formula needs some least number of micro-batches makes the program for that many and drops
// the rest, which keeps every dependence.
class ProgramWriter {
 public:
  ProgramWriter(Schedule& schedule, int rank, int limit)
      : program_(schedule.ranks[static_cast<size_t>(rank)]), limit_(limit) {}

  void F(int stage, int micro_batch, int slice = 0) {
    Add(OpKind::kForward, stage, micro_batch, slice);
  }

  void B(int stage, int micro_batch, int slice = 0) {
    Add(OpKind::kBackward, stage, micro_batch, slice);
  }

  void I(int stage, int micro_batch) { Add(OpKind::kBackwardInput, stage, micro_batch, 0); }

  void W(int stage, int micro_batch) { Add(OpKind::kBackwardWeight, stage, micro_batch, 0); }

 private:
  void Add(OpKind kind, int stage, int micro_batch, int slice) {
    if (micro_batch < limit_) {
      program_.push_back(MakeAction(kind, StageId(stage), MicroBatchId(micro_batch), slice));
    }
  }

  std::vector<Action>& program_;
  int limit_;
};

}  // namespace penstock::schedule
