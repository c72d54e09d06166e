#include "trace/activations.h"

#include <set>
#include <tuple>

namespace penstock::trace {
namespace {

using schedule::Action;
using schedule::OpKind;

using Part = std::tuple<int32_t, int32_t, int32_t, uint16_t>;  // step, stage, micro-batch, slice

Part PartOf(const Slice& slice) {
  return {slice.step, slice.action.stage.value(), slice.action.micro_batch.value(),
          slice.action.slice};
}

std::set<Part> RecomputedParts(const RankTimeline& rank) {
  std::set<Part> parts;
  for (const Slice& slice : rank.slices) {
    if (slice.action.kind == OpKind::kRecompute)
      parts.insert(PartOf(slice));
  }
  return parts;
}

}  // namespace

void AddActivationCounters(Timeline& timeline, const schedule::Schedule& schedule,
                           const std::vector<double>& stage_bytes) {
  const double share = 1.0 / (static_cast<double>(schedule.chunks()) * schedule.slices);
  for (RankTimeline& rank : timeline.ranks) {
    const std::set<Part> recomputed = RecomputedParts(rank);
    Counter counter{"activations", stage_bytes.empty() ? "micro-batches" : "bytes", {}};
    double held = 0;
    counter.samples.push_back({timeline.begin_s, 0});
    auto change = [&](double at_s, double amount) {
      held += amount;
      if (counter.samples.back().at_s >= at_s) {
        counter.samples.back().value = held;
      } else {
        counter.samples.push_back({at_s, held});
      }
    };
    for (const Slice& slice : rank.slices) {
      const Action& action = slice.action;
      if (!schedule::IsCompute(action.kind))
        continue;
      const auto stage = static_cast<size_t>(action.stage.value());
      const double amount =
          stage < stage_bytes.size() ? stage_bytes[stage] / schedule.slices : share;
      const bool again = action.kind == OpKind::kForward && !recomputed.empty() &&
                         recomputed.contains(PartOf(slice));
      if (action.kind == OpKind::kRecompute || (action.kind == OpKind::kForward && !again))
        change(slice.start_s, amount);
      if (action.kind == OpKind::kBackward || action.kind == OpKind::kBackwardWeight ||
          (schedule.forward_only && action.kind == OpKind::kForward && !again)) {
        change(slice.end_s, -amount);
      }
    }
    rank.counters.push_back(std::move(counter));
  }
}

}  // namespace penstock::trace
