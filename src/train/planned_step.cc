#include "train/planned_step.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "base/statistics.h"
#include "sim/costs_from_trace.h"
#include "sim/simulate.h"

namespace penstock::train {
namespace {

using schedule::OpKind;
using trace::RankTimeline;

// Of the sums over `steps` steps that the slices of one kind take on a rank; they come in order.
std::vector<double> PerStep(const std::vector<const trace::Slice*>& slices, int steps) {
  std::vector<double> sums(static_cast<size_t>(steps), 0.0);
  const size_t each = slices.size() / static_cast<size_t>(steps);
  for (size_t i = 0; each > 0 && i < each * static_cast<size_t>(steps); ++i) {
    sums[i / each] += slices[i]->end_s - slices[i]->start_s;
  }
  return sums;
}

std::vector<const trace::Slice*> SlicesOf(const RankTimeline& part, OpKind kind) {
  std::vector<const trace::Slice*> found;
  for (const trace::Slice& slice : part.slices) {
    if (slice.action.kind == kind) {
      found.push_back(&slice);
    }
  }
  return found;
}

// Seconds of a step in which gradients are summed over ranks. All holders end about together, so
// the rank that came last has waited for nobody.
double ReductionSeconds(const std::vector<RankTimeline>& parts, int steps) {
  std::vector<double> shortest;
  for (const RankTimeline& part : parts) {
    const auto slices = SlicesOf(part, OpKind::kReduceGrad);
    if (slices.empty()) {
      continue;
    }
    const std::vector<double> sums = PerStep(slices, steps);
    shortest.resize(sums.size(), sums[0]);
    for (size_t s = 0; s < sums.size(); ++s) {
      shortest[s] = &part == &parts.front() ? sums[s] : std::min(shortest[s], sums[s]);
    }
  }
  return shortest.empty() ? 0 : Median(std::move(shortest));
}

std::vector<double> OptimizerSeconds(const std::vector<RankTimeline>& parts, int stages) {
  std::map<int32_t, std::vector<double>> times;
  for (const RankTimeline& part : parts) {
    for (const trace::Slice* slice : SlicesOf(part, OpKind::kOptimizer)) {
      times[slice->action.stage.value()].push_back(slice->end_s - slice->start_s);
    }
  }
  std::vector<double> seconds(static_cast<size_t>(stages), 0.0);
  for (auto& [stage, all] : times) {
    seconds[static_cast<size_t>(stage)] = Median(std::move(all));
  }
  return seconds;
}

// Seconds of work of all ranks in one step.
double BusySeconds(const std::vector<RankTimeline>& parts, int steps) {
  double busy = 0;
  for (const RankTimeline& part : parts) {
    std::map<std::tuple<int32_t, OpKind>, std::vector<double>> times;
    for (const trace::Slice& slice : part.slices) {
      if (trace::IsWork(slice.action.kind)) {
        times[{slice.action.stage.value(), slice.action.kind}].push_back(slice.end_s -
                                                                         slice.start_s);
      }
    }
    for (auto& [key, all] : times) {
      const auto count = static_cast<double>(all.size());
      busy += Median(std::move(all)) * count / steps;
    }
  }
  return busy;
}

// The optimizer's work stands at the last OPT of a rank, once all ranks are there.
schedule::Schedule WithNormBarrier(schedule::Schedule schedule) {
  for (auto& program : schedule.ranks) {
    const auto last = std::find_if(program.rbegin(), program.rend(), [](const auto& action) {
      return action.kind == OpKind::kOptimizer;
    });
    program.insert(last == program.rend() ? program.end() : std::prev(last.base()),
                   schedule::MakeAction(OpKind::kBarrier, StageId(), MicroBatchId(0)));
  }
  return schedule;
}

void ShiftOptimizer(trace::Timeline& timeline, double by_s) {
  for (RankTimeline& rank : timeline.ranks) {
    for (trace::Slice& slice : rank.slices) {
      if (slice.action.kind == OpKind::kOptimizer) {
        slice.start_s += by_s;
        slice.end_s += by_s;
      }
    }
  }
}

}  // namespace

Result<PlannedStep> PlanStep(const schedule::Schedule& schedule, std::vector<RankTimeline> parts,
                             int steps, bool barrier) {
  const double reduce_s = ReductionSeconds(parts, steps);
  const double busy_s = BusySeconds(parts, steps);
  const auto ranks = static_cast<double>(parts.size());
  const std::vector<double> optimizer_s = OptimizerSeconds(parts, schedule.num_stages());
  trace::Timeline timeline = trace::MergeRanks("calibration", std::move(parts));
  timeline.measured = true;
  PENSTOCK_TRY_ASSIGN(cost::CostModel costs, sim::CostsFromTimeline(timeline));
  costs.stages.resize(optimizer_s.size());
  for (size_t s = 0; s < optimizer_s.size(); ++s) {
    costs.stages[s].optimizer_s = optimizer_s[s];
  }
  sim::SimOptions options;
  options.transport.credits = 2;
  options.timeline = true;
  options.barrier = barrier;
  PENSTOCK_TRY_ASSIGN(
      sim::SimResult simulated,
      sim::Simulate(barrier ? WithNormBarrier(schedule) : schedule, costs, options));
  PlannedStep planned;
  planned.step_s = (barrier ? simulated.makespan_s : simulated.period_s) + reduce_s;
  planned.bubble_ratio = std::clamp(1 - busy_s / (ranks * planned.step_s), 0.0, 1.0);
  planned.timeline = std::move(simulated.timeline);
  if (planned.timeline.has_value()) {
    ShiftOptimizer(*planned.timeline, reduce_s);
  }
  return planned;
}

}  // namespace penstock::train
