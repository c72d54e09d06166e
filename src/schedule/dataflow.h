// What must be done before an action, by data flow alone: used by what builds orders (generators,
// repair, lowering). The proof in validate.h shares no code with it.

#pragma once

#include <cstdint>
#include <vector>

#include "schedule/schedule.h"

namespace penstock::schedule {

// Tracks which F, input gradients and weight gradients of a schedule's (stage, micro-batch, slice)
// triples are done. REQUIRES of every action passed in: compute kind, all indices in range.
class DataFlow {
 public:
  // Keeps a reference. Memory: one byte per triple.
  explicit DataFlow(const Schedule& schedule);

  // All inputs are done: F needs the stage before and the slice before; B and I need the forwards
  // of the whole micro-batch, the stage after and the slice after; W needs its I and, so that
  // gradients add up in order, the W (or B) of the micro-batch before on the same copy of the
  // weights; R needs its F.
  bool Ready(const Action& action) const;
  void MarkDone(const Action& action);
  bool IsDone(OpKind kind, int stage, int micro_batch, int slice) const;

 private:
  size_t IndexOf(int stage, int micro_batch, int slice) const {
    return (static_cast<size_t>(stage) * static_cast<size_t>(micro_batches_) +
            static_cast<size_t>(micro_batch)) *
               static_cast<size_t>(slices_) +
           static_cast<size_t>(slice);
  }

  bool ForwardReady(int stage, int micro_batch, int slice) const;
  bool BackwardReady(int stage, int micro_batch, int slice) const;
  bool WeightReady(int stage, int micro_batch, int slice) const;

  const Schedule& schedule_;
  int stages_;
  int micro_batches_;
  int slices_;
  std::vector<uint8_t> done_;  // bit per kind
};

}  // namespace penstock::schedule
