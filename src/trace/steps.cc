#include "trace/steps.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/check.h"

namespace penstock::trace {
namespace {

bool Trains(const Timeline& timeline) {
  return std::any_of(timeline.ranks.begin(), timeline.ranks.end(), [](const RankTimeline& rank) {
    return std::any_of(rank.slices.begin(), rank.slices.end(),
                       [](const Slice& slice) { return schedule::IsBackward(slice.action.kind); });
  });
}

double Length(const Timeline& step) {
  return step.end_s - step.begin_s;
}

// What rank `r` did, dealt to the steps.
void Deal(const RankTimeline& rank, size_t r, std::map<int32_t, std::vector<RankTimeline>>& parts) {
  const auto part = [&](int32_t step) -> RankTimeline& { return parts.at(step)[r]; };
  for (auto& [step, ranks] : parts) {
    ranks[r].name = rank.name;
  }
  auto wait = rank.waits.begin();
  for (const Slice& slice : rank.slices) {
    for (; wait != rank.waits.end() && wait->start_s < slice.start_s; ++wait) {
      part(slice.step).waits.push_back(*wait);
    }
    part(slice.step).slices.push_back(slice);
  }
  for (const Message& message : rank.received) {
    if (parts.contains(message.step)) {
      part(message.step).received.push_back(message);
    }
  }
}

}  // namespace

std::vector<Timeline> StepsOf(const Timeline& timeline) {
  std::vector<Timeline> steps;
  if (!Trains(timeline)) {
    return steps;
  }
  std::map<int32_t, std::vector<RankTimeline>> parts;
  for (const RankTimeline& rank : timeline.ranks) {
    for (const Slice& slice : rank.slices) {
      parts[slice.step].resize(timeline.ranks.size());
    }
  }
  for (size_t r = 0; r < timeline.ranks.size(); ++r) {
    Deal(timeline.ranks[r], r, parts);
  }
  for (auto& [number, ranks] : parts) {
    for (RankTimeline& rank : ranks) {
      rank.totals = TotalsOf(rank);
    }
    Timeline step = MergeRanks(timeline.name, std::move(ranks));
    step.measured = timeline.measured;
    step.instruction_set = timeline.instruction_set;
    step.threads_per_rank = timeline.threads_per_rank;
    step.values = timeline.values;
    steps.push_back(std::move(step));
  }
  return steps;
}

const Timeline& MedianStep(const std::vector<Timeline>& steps) {
  PENSTOCK_CHECK(!steps.empty(), "a median is of something");
  std::vector<const Timeline*> order(steps.size());
  std::transform(steps.begin(), steps.end(), order.begin(),
                 [](const Timeline& step) { return &step; });
  const auto middle = order.begin() + static_cast<std::ptrdiff_t>((order.size() - 1) / 2);
  std::nth_element(order.begin(), middle, order.end(),
                   [](const Timeline* a, const Timeline* b) { return Length(*a) < Length(*b); });
  return **middle;
}

int StepNumber(const Timeline& step) {
  for (const RankTimeline& rank : step.ranks) {
    if (!rank.slices.empty()) {
      return rank.slices.front().step;
    }
  }
  return 0;
}

}  // namespace penstock::trace
