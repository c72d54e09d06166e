#include "trace/timeline.h"

#include <fmt/format.h>

#include <limits>
#include <utility>

#include "base/check.h"

namespace penstock::trace {

std::string_view WaitCauseText(WaitCause cause) {
  switch (cause) {
    case WaitCause::kImbalance:
      return "imbalance";
    case WaitCause::kCommunication:
      return "communication";
    case WaitCause::kBarrier:
      return "barrier";
    case WaitCause::kOther:
      break;
  }
  return "other";
}

int64_t Timeline::CountSlices() const {
  int64_t count = 0;
  for (const RankTimeline& rank : ranks)
    count += static_cast<int64_t>(rank.slices.size());
  return count;
}

RankRecorder::RankRecorder(RankId rank, size_t capacity, Clock::time_point origin)
    : rank_(rank), capacity_(capacity), origin_(origin) {
  Take();
}

void RankRecorder::RecordCounter(std::string_view name, std::string_view unit, double at_s,
                                 double value) {
  auto it = std::find_if(timeline_.counters.begin(), timeline_.counters.end(),
                         [name](const Counter& counter) { return counter.name == name; });
  if (it == timeline_.counters.end()) {
    timeline_.counters.push_back({std::string(name), std::string(unit), {}});
    it = timeline_.counters.end() - 1;
  }
  if (it->samples.size() < capacity_) {
    it->samples.push_back({at_s, value});
  } else {
    ++timeline_.dropped;
  }
}

RankTimeline RankRecorder::Take() {
  RankTimeline taken = std::exchange(timeline_, RankTimeline());
  timeline_.name = fmt::format("rank {}", rank_);
  timeline_.slices.reserve(capacity_);
  timeline_.waits.reserve(capacity_);
  timeline_.received.reserve(capacity_);
  return taken;
}

Timeline MergeRanks(std::string name, std::vector<RankTimeline> parts,
                    const std::vector<double>& offsets_s) {
  PENSTOCK_CHECK(offsets_s.empty() || offsets_s.size() == parts.size(),
                 "one clock offset per rank, or none");
  Timeline timeline;
  timeline.name = std::move(name);
  timeline.ranks = std::move(parts);
  double begin = std::numeric_limits<double>::infinity();
  double end = -begin;
  for (size_t r = 0; r < timeline.ranks.size(); ++r) {
    RankTimeline& rank = timeline.ranks[r];
    if (!offsets_s.empty() && offsets_s[r] != 0) {
      const double offset = offsets_s[r];
      rank.totals.Shift(offset);
      for (Slice& slice : rank.slices) {
        slice.start_s += offset;
        slice.end_s += offset;
      }
      for (Wait& wait : rank.waits) {
        wait.start_s += offset;
        wait.end_s += offset;
      }
      // sent_s was taken on the sender's clock.
      for (Message& message : rank.received) {
        const auto from = static_cast<size_t>(message.from.value());
        message.arrived_s += offset;
        message.sent_s += from < offsets_s.size() ? offsets_s[from] : 0.0;
      }
      for (Counter& counter : rank.counters) {
        for (Counter::Sample& sample : counter.samples)
          sample.at_s += offset;
      }
    }
    if (rank.totals.work_count() > 0) {
      begin = std::min(begin, rank.totals.first_start_s());
      end = std::max(end, rank.totals.last_end_s());
    }
    if (!rank.slices.empty()) {
      begin = std::min(begin, rank.slices.front().start_s);
      end = std::max(end, rank.slices.back().end_s);
    }
  }
  if (begin <= end) {
    timeline.begin_s = begin;
    timeline.end_s = end;
  }
  return timeline;
}

RankTotals TotalsOf(const RankTimeline& rank) {
  RankTotals totals;
  auto wait = rank.waits.begin();
  for (const Slice& slice : rank.slices) {
    // By their starts: an end may lie a rounding beyond the slice that it made wait.
    while (wait != rank.waits.end() && wait->start_s < slice.start_s) {
      totals.AddIdle(wait->cause, wait->start_s, wait->end_s);
      ++wait;
    }
    totals.AddSlice(slice.action.kind, slice.start_s, slice.end_s);
  }
  return totals;
}

}  // namespace penstock::trace
