#include "schedule/dataflow.h"

namespace penstock::schedule {
namespace {

constexpr uint8_t kForwardBit = 1;
constexpr uint8_t kInputBit = 2;
constexpr uint8_t kWeightBit = 4;

uint8_t BitsOf(OpKind kind) {
  switch (kind) {
    case OpKind::kForward:
      return kForwardBit;
    case OpKind::kBackward:
      return kInputBit | kWeightBit;
    case OpKind::kBackwardInput:
      return kInputBit;
    case OpKind::kBackwardWeight:
      return kWeightBit;
    default:
      return 0;
  }
}

}  // namespace

DataFlow::DataFlow(const Schedule& schedule)
    : schedule_(schedule),
      stages_(schedule.num_stages()),
      micro_batches_(schedule.total_micro_batches()),
      slices_(schedule.slices),
      done_(static_cast<size_t>(stages_) * static_cast<size_t>(micro_batches_) *
                static_cast<size_t>(slices_),
            0) {}

bool DataFlow::IsDone(OpKind kind, int stage, int micro_batch, int slice) const {
  const uint8_t bits = BitsOf(kind);
  return (done_[IndexOf(stage, micro_batch, slice)] & bits) == bits;
}

void DataFlow::MarkDone(const Action& action) {
  done_[IndexOf(action.stage.value(), action.micro_batch.value(), action.slice)] |=
      BitsOf(action.kind);
}

bool DataFlow::ForwardReady(int stage, int micro_batch, int slice) const {
  if (slice > 0 && !IsDone(OpKind::kForward, stage, micro_batch, slice - 1))
    return false;
  if (stage > 0)
    return IsDone(OpKind::kForward, stage - 1, micro_batch, slice);
  return !schedule_.ring || micro_batch < schedule_.micro_batches ||
         IsDone(OpKind::kForward, stages_ - 1, micro_batch - schedule_.micro_batches, slice);
}

bool DataFlow::BackwardReady(int stage, int micro_batch, int slice) const {
  if (!IsDone(OpKind::kForward, stage, micro_batch, slices_ - 1))
    return false;
  if (slice + 1 < slices_ && !IsDone(OpKind::kBackwardInput, stage, micro_batch, slice + 1))
    return false;
  return stage + 1 == stages_ || IsDone(OpKind::kBackwardInput, stage + 1, micro_batch, slice);
}

bool DataFlow::WeightReady(int stage, int micro_batch, int slice) const {
  if (!IsDone(OpKind::kBackwardInput, stage, micro_batch, slice))
    return false;
  const int previous = micro_batch - 1;
  if (previous < 0 || schedule_.DirectionOf(MicroBatchId(previous)) !=
                          schedule_.DirectionOf(MicroBatchId(micro_batch))) {
    return true;
  }
  return IsDone(OpKind::kBackwardWeight, stage, previous, slice);
}

bool DataFlow::Ready(const Action& action) const {
  const int stage = action.stage.value();
  const int micro_batch = action.micro_batch.value();
  switch (action.kind) {
    case OpKind::kForward:
      return ForwardReady(stage, micro_batch, action.slice);
    case OpKind::kBackward:
    case OpKind::kBackwardInput:
      return BackwardReady(stage, micro_batch, action.slice);
    case OpKind::kBackwardWeight:
      return WeightReady(stage, micro_batch, action.slice);
    case OpKind::kRecompute:
      return IsDone(OpKind::kForward, stage, micro_batch, action.slice);
    default:
      return true;
  }
}

}  // namespace penstock::schedule
