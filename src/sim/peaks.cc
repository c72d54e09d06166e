#include "sim/peaks.h"

#include <algorithm>

namespace penstock::sim {
namespace {

using schedule::Action;
using schedule::OpKind;
using schedule::Schedule;

class Counter {
 public:
  Counter(const Schedule& schedule, const cost::CostModel& costs)
      : schedule_(schedule), costs_(costs) {}

  Peak Run(const std::vector<Action>& program) {
    FindRecomputed(program);
    peak_ = Peak();
    count_ = 0;
    bytes_ = 0;
    for (size_t i = 0; i < program.size();) {
      size_t end = i + 1;
      while (end < program.size() && program[end].joined)
        ++end;
      for (size_t k = i; k < end; ++k)
        Take(program[k], k);
      for (size_t k = i; k < end; ++k)
        Free(program[k]);
      i = end;
    }
    peak_.shares = static_cast<double>(peak_.count) /
                   (static_cast<double>(schedule_.chunks()) * schedule_.slices);
    return peak_;
  }

 private:
  size_t IndexOf(const Action& action) const {
    return (static_cast<size_t>(action.stage.value()) *
                static_cast<size_t>(schedule_.total_micro_batches()) +
            static_cast<size_t>(action.micro_batch.value())) *
               static_cast<size_t>(schedule_.slices) +
           action.slice;
  }

  void FindRecomputed(const std::vector<Action>& program) {
    for (const Action& action : program) {
      if (action.kind != OpKind::kRecompute)
        continue;
      recomputed_.resize(static_cast<size_t>(schedule_.num_stages()) *
                         static_cast<size_t>(schedule_.total_micro_batches()) *
                         static_cast<size_t>(schedule_.slices));
      recomputed_[IndexOf(action)] = true;
    }
  }

  bool IsRecomputed(const Action& action) const {
    return !recomputed_.empty() && recomputed_[IndexOf(action)];
  }

  int64_t BytesOf(const Action& action) const {
    return costs_.stages[static_cast<size_t>(action.stage.value())].activation_bytes /
           schedule_.slices;
  }

  void Take(const Action& action, size_t position) {
    const bool takes = action.kind == OpKind::kRecompute ||
                       (action.kind == OpKind::kForward && !IsRecomputed(action));
    if (!takes)
      return;
    bytes_ += BytesOf(action);
    peak_.bytes = std::max(peak_.bytes, bytes_);
    if (++count_ > peak_.count) {
      peak_.count = count_;
      peak_.position = position;
    }
  }

  void Free(const Action& action) {
    const bool frees =
        action.kind == OpKind::kBackward || action.kind == OpKind::kBackwardWeight ||
        (schedule_.forward_only && action.kind == OpKind::kForward && !IsRecomputed(action));
    if (!frees)
      return;
    bytes_ -= BytesOf(action);
    --count_;
  }

  const Schedule& schedule_;
  const cost::CostModel& costs_;
  std::vector<bool> recomputed_;
  Peak peak_;
  int64_t count_ = 0;
  int64_t bytes_ = 0;
};

}  // namespace

std::vector<Peak> ActivationPeaks(const Schedule& schedule, const cost::CostModel& costs) {
  Counter counter(schedule, costs);
  std::vector<Peak> peaks;
  for (const auto& program : schedule.ranks)
    peaks.push_back(counter.Run(program));
  return peaks;
}

}  // namespace penstock::sim
