#include "sim/costs_from_trace.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/statistics.h"

namespace penstock::sim {
namespace {

using schedule::OpKind;

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

// What a rank does between two computations, waits for others left out.
struct Gap {
  double overhead_s = 0;  // hand-overs, decisions, bookkeeping
  double after_s = 0;     // the part of it right after the first computation
  double sent_s = 0;      // when its result was handed over
};

bool WaitsForOthers(const trace::Wait& wait, const trace::Slice& before, size_t rank) {
  if (!wait.awaited_rank.valid() || static_cast<size_t>(wait.awaited_rank.value()) == rank)
    return wait.cause == trace::WaitCause::kBarrier;
  // A rank that hands its own result over says what it hands over.
  return wait.awaited.kind != before.action.kind || wait.awaited.stage != before.action.stage;
}

// The gaps after each computation of one rank but the last, in order. `work` are its computations.
std::vector<Gap> GapsOf(const trace::RankTimeline& rank, size_t number,
                        const std::vector<const trace::Slice*>& work) {
  std::vector<Gap> gaps;
  auto wait = rank.waits.begin();
  auto slice = rank.slices.begin();
  for (size_t i = 0; i + 1 < work.size(); ++i) {
    const double from_s = work[i]->end_s;
    const double to_s = std::max(from_s, work[i + 1]->start_s);
    Gap gap;
    gap.sent_s = from_s;
    double waited_s = 0;
    double first_wait_s = to_s;
    for (; wait != rank.waits.end() && wait->start_s < to_s; ++wait) {
      const double length_s = std::min(to_s, wait->end_s) - std::max(from_s, wait->start_s);
      if (length_s <= 0)
        continue;
      if (WaitsForOthers(*wait, *work[i], number)) {
        waited_s += length_s;
        first_wait_s = std::min(first_wait_s, std::max(from_s, wait->start_s));
      } else if (wait->awaited.stage == work[i]->action.stage) {
        gap.sent_s = std::max(gap.sent_s, wait->end_s);
      }
    }
    for (; slice != rank.slices.end() && slice->start_s < to_s; ++slice) {
      if (slice->start_s < from_s || trace::IsWork(slice->action.kind))
        continue;
      if (schedule::IsSend(slice->action.kind)) {
        if (slice->action.stage == work[i]->action.stage)
          gap.sent_s = std::max(gap.sent_s, slice->end_s);
      } else if (!schedule::IsMessage(slice->action.kind)) {
        waited_s += slice->end_s - slice->start_s;  // barriers, reductions: not of a micro-batch
      }
    }
    gap.overhead_s = std::max(0.0, to_s - from_s - waited_s);
    gap.after_s = std::min(gap.overhead_s, first_wait_s - from_s);
    gaps.push_back(gap);
  }
  return gaps;
}

struct Handover {
  double end_s = 0;   // of the computation
  double sent_s = 0;  // of handing its result over
};

// By stage and micro-batch, ascending.
using Handovers = std::map<std::pair<int32_t, int32_t>, std::vector<Handover>>;

// Durations of computations. A measured one is lengthened by what its rank does for it before and
// after, so that a simulation, where ranks do nothing else, takes as long.
void ReadSlices(const trace::Timeline& timeline, Durations& durations, Handovers& handovers,
                int32_t& last_stage) {
  for (size_t r = 0; r < timeline.ranks.size(); ++r) {
    const trace::RankTimeline& rank = timeline.ranks[r];
    std::vector<const trace::Slice*> work;
    for (const trace::Slice& slice : rank.slices) {
      if (trace::IsWork(slice.action.kind))
        work.push_back(&slice);
    }
    const std::vector<Gap> gaps =
        timeline.measured ? GapsOf(rank, r, work) : std::vector<Gap>(work.size(), Gap{});
    for (size_t i = 0; i < work.size(); ++i) {
      const schedule::Action& action = work[i]->action;
      if (!schedule::IsCompute(action.kind))
        continue;
      const double before_s = i == 0 ? 0 : gaps[i - 1].overhead_s - gaps[i - 1].after_s;
      const double after_s = i < gaps.size() ? gaps[i].after_s : 0;
      durations[{action.stage.value(), action.kind}].push_back(before_s + work[i]->end_s -
                                                               work[i]->start_s + after_s);
      last_stage = std::max(last_stage, action.stage.value());
      if (action.kind == OpKind::kForward && i < gaps.size()) {
        handovers[{action.stage.value(), action.micro_batch.value()}].push_back(
            {work[i]->end_s, std::max(work[i]->end_s, gaps[i].sent_s)});
      }
    }
  }
}

// From the end of handing over to the end of the wait for it, where the receiver waited already:
// flight and the time to wake up. Per pair of ranks, forward.
std::map<std::pair<int, int>, std::vector<double>> WakeUps(const trace::Timeline& timeline,
                                                           const Handovers& handovers) {
  std::map<std::pair<int, int>, std::vector<double>> latencies;
  if (!timeline.measured)
    return latencies;
  for (size_t r = 0; r < timeline.ranks.size(); ++r) {
    for (const trace::Wait& wait : timeline.ranks[r].waits) {
      const bool message = wait.awaited.kind == OpKind::kSendForward && wait.awaited.value == 0;
      const bool result = wait.awaited.kind == OpKind::kForward && r == 0;
      if (wait.cause != trace::WaitCause::kCommunication || !(message || result) ||
          !wait.awaited_rank.valid())
        continue;
      const auto it =
          handovers.find({wait.awaited.stage.value(), wait.awaited.micro_batch.value()});
      if (it == handovers.end())
        continue;
      // The last one that had begun when the wait ended.
      const auto after =
          std::upper_bound(it->second.begin(), it->second.end(), wait.end_s,
                           [](double at_s, const Handover& one) { return at_s < one.end_s; });
      if (after == it->second.begin() || std::prev(after)->sent_s < wait.start_s)
        continue;
      latencies[{wait.awaited_rank.value(), static_cast<int>(r)}].push_back(
          std::max(0.0, wait.end_s - std::prev(after)->sent_s));
    }
  }
  return latencies;
}

void ReadLinks(const trace::Timeline& timeline, const Handovers& handovers,
               cost::CostModel& model) {
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
  for (const auto& [pair, times] : WakeUps(timeline, handovers))
    model.links[pair] = {Median(times), 0, false};
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
  Handovers handovers;
  int32_t last_stage = -1;
  ReadSlices(timeline, durations, handovers, last_stage);
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
  ReadLinks(timeline, handovers, model);
  ReadActivations(timeline, model);
  return model;
}

}  // namespace penstock::sim
