#include "sim/costs_from_trace.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace penstock::sim {
namespace {

using schedule::OpKind;

double Median(std::vector<double> values) {
  if (values.empty())
    return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1)
    return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

// A message that its receiver waits for takes about this long; others lie at the receiver's until
// it looks for them, which a median would count.
double ShortFlight(std::vector<double> values) {
  if (values.empty())
    return 0;
  const auto tenth = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 10);
  std::nth_element(values.begin(), tenth, values.end());
  return *tenth;
}

using Durations = std::map<std::pair<int32_t, OpKind>, std::vector<double>>;

void ReadSlices(const trace::Timeline& timeline, Durations& durations, int32_t& last_stage) {
  for (const trace::RankTimeline& rank : timeline.ranks) {
    for (const trace::Slice& slice : rank.slices) {
      if (!schedule::IsCompute(slice.action.kind))
        continue;
      const int32_t stage = slice.action.stage.value();
      durations[{stage, slice.action.kind}].push_back(slice.end_s - slice.start_s);
      last_stage = std::max(last_stage, stage);
    }
  }
}

void ReadLinks(const trace::Timeline& timeline, cost::CostModel& model) {
  std::map<std::pair<int, int>, std::vector<double>> flights;
  std::vector<double> all;
  std::map<std::pair<int32_t, bool>, std::vector<double>> bytes;  // (sending stage, backward)
  for (const trace::RankTimeline& rank : timeline.ranks) {
    for (const trace::Message& message : rank.received) {
      const double flight_s = std::max(0.0, message.arrived_s - message.sent_s);
      flights[{message.from.value(), message.to.value()}].push_back(flight_s);
      all.push_back(flight_s);
      if (message.action.value == 0) {
        bytes[{message.action.stage.value(), message.action.kind == OpKind::kSendBackward}]
            .push_back(static_cast<double>(message.bytes));
      }
    }
  }
  model.link.latency_s = ShortFlight(all);
  for (const auto& [pair, times] : flights)
    model.links[pair] = {ShortFlight(times), 0, false};
  for (const auto& [key, sizes] : bytes) {
    const auto stage = static_cast<size_t>(key.first);
    if (stage >= model.stages.size())
      continue;
    const auto size = static_cast<int64_t>(Median(sizes));
    (key.second ? model.stages[stage].gradient_bytes : model.stages[stage].output_bytes) = size;
  }
}

void ReadActivations(const trace::Timeline& timeline, cost::CostModel& model) {
  for (const trace::RankTimeline& rank : timeline.ranks) {
    std::set<int32_t> stages;
    for (const trace::Slice& slice : rank.slices) {
      if (schedule::IsCompute(slice.action.kind))
        stages.insert(slice.action.stage.value());
    }
    for (const trace::Counter& counter : rank.counters) {
      if (counter.name != "activations" || counter.unit != "bytes" || stages.size() != 1)
        continue;
      double rise = 0;
      double before = 0;
      for (const trace::Counter::Sample& sample : counter.samples) {
        rise = std::max(rise, sample.value - before);
        before = sample.value;
      }
      model.stages[static_cast<size_t>(*stages.begin())].activation_bytes =
          static_cast<int64_t>(rise);
    }
  }
}

}  // namespace

Result<cost::CostModel> CostsFromTimeline(const trace::Timeline& timeline) {
  Durations durations;
  int32_t last_stage = -1;
  ReadSlices(timeline, durations, last_stage);
  cost::CostModel model;
  if (last_stage < 0 || last_stage >= schedule::kMaxStages) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[sim.costs] {}: no computation in it, wanted actions like 0F0",
                     timeline.name);
  }
  for (int32_t s = 0; s <= last_stage; ++s) {
    auto median = [&](OpKind kind) {
      const auto it = durations.find({s, kind});
      return it == durations.end() ? 0.0 : Median(it->second);
    };
    if (!durations.contains({s, OpKind::kForward})) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "[sim.costs] {}: no F of stage {}, wanted one of each up to stage {}",
                       timeline.name, s, last_stage);
    }
    cost::StageCost stage;
    stage.f_s = median(OpKind::kForward);
    stage.i_s = median(OpKind::kBackwardInput);
    stage.w_s = median(OpKind::kBackwardWeight);
    if (!durations.contains({s, OpKind::kBackwardInput}))
      stage.i_s = stage.w_s = median(OpKind::kBackward) / 2;
    stage.r_s =
        durations.contains({s, OpKind::kRecompute}) ? median(OpKind::kRecompute) : stage.f_s;
    model.stages.push_back(stage);
  }
  ReadLinks(timeline, model);
  ReadActivations(timeline, model);
  return model;
}

}  // namespace penstock::sim
