#include "train/planned_step.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "base/statistics.h"
#include "sim/simulate.h"

namespace penstock::train {
namespace {

using schedule::Action;
using schedule::OpKind;
using schedule::Schedule;
using sim::ActionSeconds;
using trace::RankTimeline;
using Seconds = std::vector<std::vector<ActionSeconds>>;  // per rank and position

// Sums of one stage (two copies of its weights) or of one tied tensor.
using SumKey = std::pair<int32_t, int32_t>;

SumKey KeyOf(const Action& action) {
  return {action.value, action.value == 0 ? action.stage.value() : -1};
}

// Sums that several ranks of a replica take part in.
std::map<SumKey, int> RanksOfSums(const Schedule& schedule) {
  std::map<SumKey, int> ranks;
  for (const auto& program : schedule.ranks) {
    std::map<SumKey, int> here;
    for (const Action& action : program) {
      if (action.kind == OpKind::kReduceGrad) {
        here[KeyOf(action)] = 1;
      }
    }
    for (const auto& [key, one] : here) {
      ranks[key] += one;
    }
  }
  return ranks;
}

bool SameAction(const Action& a, const Action& b) {
  return a.kind == b.kind && a.stage == b.stage && a.micro_batch == b.micro_batch &&
         a.slice == b.slice && a.value == b.value && a.peer_stage == b.peer_stage;
}

// Seconds of each action of one rank's program in one step.
Result<std::vector<ActionSeconds>> SecondsOf(const std::vector<Action>& program,
                                             const MeasuredStep& step) {
  std::vector<ActionSeconds> seconds;
  auto slice = step.timeline.slices.begin();
  auto wait = step.timeline.waits.begin();
  double at_s = step.begin_s;
  for (const Action& action : program) {
    ActionSeconds& one = seconds.emplace_back();
    if (action.kind == OpKind::kIdle) {
      continue;
    }
    if (slice == step.timeline.slices.end() || !SameAction(slice->action, action)) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "[train.plan] {}: no slice of {} where the program has it",
                       step.timeline.name, schedule::ActionText(action));
    }
    double waited_s = 0;
    for (; wait != step.timeline.waits.end() && wait->start_s < slice->start_s; ++wait) {
      waited_s += std::min(wait->end_s, slice->start_s) - std::max(wait->start_s, at_s);
    }
    one.before_s = std::max(0.0, slice->start_s - at_s - waited_s);
    one.own_s = slice->end_s - slice->start_s;
    at_s = slice->end_s;
    ++slice;
  }
  if (!seconds.empty()) {
    seconds.front().before_s += std::max(0.0, step.end_s - at_s);  // steps follow each other
  }
  return seconds;
}

// All holders of a sum end about together, so the rank that came last has waited for nobody: what
// it took is what the sum takes.
void TakeShortestSums(const Schedule& schedule, const std::map<SumKey, int>& ranks,
                      Seconds& seconds) {
  std::map<SumKey, double> shortest;
  for (size_t r = 0; r < seconds.size(); ++r) {
    std::map<SumKey, double> here;
    for (size_t i = 0; i < seconds[r].size(); ++i) {
      const Action& action = schedule.ranks[r][i];
      if (action.kind == OpKind::kReduceGrad && ranks.at(KeyOf(action)) > 1) {
        here[KeyOf(action)] += std::exchange(seconds[r][i].own_s, 0);
      }
    }
    for (const auto& [key, sum_s] : here) {
      const auto [it, first] = shortest.try_emplace(key, sum_s);
      it->second = std::min(it->second, sum_s);
    }
  }
  for (size_t r = 0; r < seconds.size(); ++r) {
    std::map<SumKey, double> left = shortest;
    for (size_t i = 0; i < seconds[r].size(); ++i) {
      const Action& action = schedule.ranks[r][i];
      if (action.kind == OpKind::kReduceGrad && left.contains(KeyOf(action))) {
        seconds[r][i].own_s = std::exchange(left[KeyOf(action)], 0);
      }
    }
  }
}

// A rank's place in the program where all ranks wait for each other.
void InsertBarrier(Schedule& schedule, Seconds& seconds, size_t rank, size_t position) {
  auto& program = schedule.ranks[rank];
  program.insert(program.begin() + static_cast<std::ptrdiff_t>(position),
                 schedule::MakeAction(OpKind::kBarrier, StageId(), MicroBatchId(0)));
  seconds[rank].insert(seconds[rank].begin() + static_cast<std::ptrdiff_t>(position),
                       ActionSeconds());
}

// Sums between ranks stand at the end of the lists and begin when all are there; the optimizer's
// work stands at the last OPT of a rank, and begins when all know the norm.
void InsertBarriers(Schedule& schedule, Seconds& seconds, const std::map<SumKey, int>& ranks,
                    bool norm) {
  const bool sums =
      std::any_of(ranks.begin(), ranks.end(), [](const auto& sum) { return sum.second > 1; });
  for (size_t r = 0; r < schedule.ranks.size(); ++r) {
    const auto& program = schedule.ranks[r];
    const auto last = std::find_if(program.rbegin(), program.rend(), [](const Action& action) {
      return action.kind == OpKind::kOptimizer;
    });
    const size_t norm_at =
        last == program.rend() ? program.size() : static_cast<size_t>(program.rend() - last) - 1;
    const auto sum = std::find_if(program.begin(), program.end(), [&](const Action& action) {
      return action.kind == OpKind::kReduceGrad && ranks.at(KeyOf(action)) > 1;
    });
    const size_t sum_at = std::min(norm_at, static_cast<size_t>(sum - program.begin()));
    if (norm) {
      InsertBarrier(schedule, seconds, r, norm_at);
    }
    if (sums) {
      InsertBarrier(schedule, seconds, r, sum_at);
    }
  }
}

double BusySeconds(const std::vector<MeasuredStep>& step) {
  double busy_s = 0;
  for (const MeasuredStep& rank : step) {
    for (const trace::Slice& slice : rank.timeline.slices) {
      busy_s += trace::IsWork(slice.action.kind) ? slice.end_s - slice.start_s : 0;
    }
  }
  return busy_s;
}

// When each SEND of a step had handed its message over: by sending stage, receiving rank and what
// it carries.
using SendKey = std::tuple<int32_t, int32_t, int32_t, OpKind, int32_t, int32_t>;

SendKey KeyOfSend(const Action& send) {
  return {send.stage.value(),
          schedule::PeerStage(send).value(),
          send.micro_batch.value(),
          send.kind,
          send.slice,
          send.value};
}

// From the end of a SEND to the receiver's going on, where it waited already.
void AddLatencies(const std::vector<MeasuredStep>& step,
                  std::map<std::pair<int, int>, std::vector<double>>& latencies) {
  std::map<SendKey, double> sent;
  for (const MeasuredStep& rank : step) {
    for (const trace::Slice& slice : rank.timeline.slices) {
      if (schedule::IsSend(slice.action.kind)) {
        sent[KeyOfSend(slice.action)] = slice.end_s;
      }
    }
  }
  for (size_t r = 0; r < step.size(); ++r) {
    const RankTimeline& timeline = step[r].timeline;
    for (const trace::Message& message : timeline.received) {
      const auto it = sent.find(KeyOfSend(message.action));
      if (it == sent.end()) {
        continue;
      }
      // Waits end where the message was taken.
      const auto after =
          std::upper_bound(timeline.waits.begin(), timeline.waits.end(), message.arrived_s - 1e-12,
                           [](double at_s, const trace::Wait& wait) { return at_s < wait.end_s; });
      const bool waited = after != timeline.waits.end() && after->start_s < it->second &&
                          after->start_s < message.arrived_s;
      if (waited) {
        latencies[{message.from.value() % static_cast<int>(step.size()), static_cast<int>(r)}]
            .push_back(std::max(0.0, message.arrived_s - it->second));
      }
    }
  }
}

cost::CostModel CostsOf(const Schedule& schedule,
                        const std::vector<std::vector<MeasuredStep>>& steps) {
  cost::CostModel costs;
  costs.stages.resize(static_cast<size_t>(schedule.num_stages()));
  std::map<std::pair<int, int>, std::vector<double>> latencies;
  for (const auto& step : steps) {
    AddLatencies(step, latencies);
  }
  std::vector<double> all;
  for (auto& [pair, times] : latencies) {
    all.insert(all.end(), times.begin(), times.end());
    costs.links[pair] = {Median(std::move(times)), 0, false};
  }
  costs.link.latency_s = all.empty() ? 0 : Median(std::move(all));
  return costs;
}

}  // namespace

Result<PlannedStep> PlanStep(const Schedule& schedule,
                             const std::vector<std::vector<MeasuredStep>>& steps, bool barrier) {
  if (steps.empty()) {
    return MakeError(ErrorCode::kInvalidArgument, "[train.plan] no step was measured, wanted one");
  }
  const cost::CostModel costs = CostsOf(schedule, steps);
  const std::map<SumKey, int> sums = RanksOfSums(schedule);
  std::vector<PlannedStep> plans;
  for (const std::vector<MeasuredStep>& step : steps) {
    Schedule program = schedule;
    Seconds seconds;
    for (size_t r = 0; r < step.size() && r < program.ranks.size(); ++r) {
      PENSTOCK_TRY_ASSIGN(std::vector<ActionSeconds> of_rank, SecondsOf(program.ranks[r], step[r]));
      seconds.push_back(std::move(of_rank));
    }
    TakeShortestSums(program, sums, seconds);
    InsertBarriers(program, seconds, sums, barrier);
    sim::SimOptions options;
    options.transport.credits = 2;
    options.timeline = true;
    options.action_seconds = &seconds;
    PENSTOCK_TRY_ASSIGN(sim::SimResult simulated, sim::Simulate(program, costs, options));
    PlannedStep& plan = plans.emplace_back();
    plan.step_s = simulated.period_s;
    const double all_s = static_cast<double>(step.size()) * plan.step_s;
    plan.bubble_ratio = std::clamp(1 - BusySeconds(step) / all_s, 0.0, 1.0);
    plan.timeline = std::move(simulated.timeline);
  }
  std::vector<double> times(plans.size());
  std::vector<double> bubbles(plans.size());
  std::transform(plans.begin(), plans.end(), times.begin(),
                 [](const PlannedStep& plan) { return plan.step_s; });
  std::transform(plans.begin(), plans.end(), bubbles.begin(),
                 [](const PlannedStep& plan) { return plan.bubble_ratio; });
  const auto middle = plans.begin() + static_cast<std::ptrdiff_t>((plans.size() - 1) / 2);
  std::nth_element(plans.begin(), middle, plans.end(),
                   [](const PlannedStep& a, const PlannedStep& b) { return a.step_s < b.step_s; });
  return PlannedStep{Median(std::move(times)), Median(std::move(bubbles)),
                     std::move(middle->timeline)};
}

}  // namespace penstock::train
