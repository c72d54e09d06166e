#include "sim/simulate.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <utility>

#include "sim/bounds.h"
#include "sim/engine.h"
#include "sim/peaks.h"

namespace penstock::sim {
namespace {

using schedule::Schedule;

constexpr double kSame = 1e-9;             // relative: two times per step are the same
constexpr int kLongestCycle = 8;           // steps after which a pattern may repeat
constexpr int kMostSteps = 400;            // for the period
constexpr int64_t kMostWork = 60'000'000;  // actions, over all those steps; at least kLeastSteps
constexpr int kLeastSteps = 12;
constexpr int64_t kMostKept = int64_t{1} << 26;  // actions of a timeline

struct Period {
  double seconds = 0;
  bool exact = false;
};

// Does the state after `cycle` more steps differ from the old one by the same time everywhere? Then
// it does so for ever. With a bound from below that the fastest growth meets, the slower parts
// don't matter.
bool Repeats(const std::vector<double>& old_state, const std::vector<double>& state, int cycle,
             double lower_s, double& period_s) {
  double least = state[0] - old_state[0];
  double most = least;
  for (size_t i = 1; i < state.size(); ++i) {
    const double grown = state[i] - old_state[i];
    least = std::min(least, grown);
    most = std::max(most, grown);
  }
  const double tolerance = kSame * std::max(most, 1e-300);
  period_s = most / cycle;
  return most - least <= tolerance || most / cycle <= lower_s * (1 + kSame);
}

// What is kept of the steps that a timeline shows.
struct Record {
  std::vector<trace::RankTotals> totals;
  std::vector<trace::RankTimeline> ranks;  // empty: nothing
};

// Once the pattern of `cycle` steps repeats, further steps need not be run: adds their ends. False
// where the last end is not (yet) one of the pattern's.
bool GoOn(int cycle, double period_s, int steps, std::vector<double>& ends,
          std::vector<double>& step_end_s) {
  const auto back = static_cast<size_t>(cycle);
  const double grown_s = period_s * cycle;
  const double last_s = ends.back() - ends[ends.size() - 1 - back];
  if (std::abs(last_s - grown_s) > kSame * grown_s)
    return false;
  while (static_cast<int64_t>(ends.size()) < steps) {
    ends.push_back(ends[ends.size() - back] + grown_s);
    step_end_s.push_back(ends.back());
  }
  return true;
}

// Runs on from the end of the first step until the time per step repeats. One of these steps is
// `schedule_steps` steps where they are unrolled.
Result<Period> FindPeriod(Engine& engine, const SimOptions& options, double lower_s,
                          int64_t actions, int schedule_steps, std::vector<double>& step_end_s,
                          Record& record) {
  std::deque<std::vector<double>> states = {engine.State()};
  std::vector<double> ends = {engine.End()};
  const int64_t steps =
      std::clamp<int64_t>(kMostWork / std::max<int64_t>(actions, 1), kLeastSteps, kMostSteps);
  Period period;
  int repeats_after = 0;
  for (int64_t step = 1; step < std::max<int64_t>(steps, options.steps); ++step) {
    const bool kept = step < options.steps && !record.ranks.empty();
    if (options.barrier)
      engine.Barrier(kept ? &record.totals : nullptr, kept ? &record.ranks : nullptr);
    std::vector<std::pair<size_t, size_t>> before;
    for (const trace::RankTimeline& rank : record.ranks)
      before.emplace_back(rank.slices.size(), rank.received.size());
    PENSTOCK_TRY(engine.RunStep(kept ? &record.totals : nullptr, kept ? &record.ranks : nullptr));
    for (size_t r = 0; kept && r < before.size(); ++r) {
      trace::RankTimeline& rank = record.ranks[r];
      for (size_t i = before[r].first; i < rank.slices.size(); ++i)
        rank.slices[i].step += static_cast<int32_t>(step * schedule_steps);
      for (size_t i = before[r].second; i < rank.received.size(); ++i)
        rank.received[i].step += static_cast<int32_t>(step * schedule_steps);
    }
    ends.push_back(engine.End());
    if (step < options.steps)
      step_end_s.push_back(engine.End());
    states.push_back(engine.State());
    for (int cycle = 1; cycle < static_cast<int>(states.size()) && !period.exact; ++cycle) {
      period.exact = Repeats(states[states.size() - 1 - static_cast<size_t>(cycle)], states.back(),
                             cycle, lower_s, period.seconds);
      repeats_after = cycle;
    }
    if (period.exact && record.ranks.empty() &&
        GoOn(repeats_after, period.seconds, options.steps, ends, step_end_s)) {
      return period;
    }
    if (states.size() > kLongestCycle)
      states.pop_front();
    if ((period.exact || !options.period) && step + 1 >= options.steps)
      return period;
  }
  if (!period.exact) {
    const size_t half = ends.size() / 2;
    period.seconds = (ends.back() - ends[half]) / static_cast<double>(ends.size() - 1 - half);
  }
  return period;
}

void FillRanks(const std::vector<trace::RankTotals>& totals, const std::vector<Peak>& peaks,
               SimResult& result) {
  double idle_s = 0;
  for (size_t r = 0; r < totals.size(); ++r) {
    const trace::RankAccount account = trace::AccountOf(totals[r], 0, result.makespan_s);
    RankResult rank;
    rank.busy_s = account.busy_s;
    rank.bubble = account.bubble;
    rank.peak_activations = peaks[r].shares;
    rank.peak_activation_bytes = peaks[r].bytes;
    idle_s += account.idle_s;
    result.ranks.push_back(rank);
  }
  if (result.makespan_s > 0)
    result.bubble_ratio = idle_s / (result.makespan_s * static_cast<double>(totals.size()));
}

trace::Timeline MakeTimeline(const Schedule& schedule, double makespan_s,
                             std::vector<trace::RankTimeline> record,
                             const std::vector<trace::RankTotals>& totals) {
  trace::Timeline timeline;
  timeline.name = schedule.name;
  timeline.end_s = makespan_s;
  for (const schedule::Edge& edge : schedule.edges)
    timeline.values.push_back(edge.name);
  for (size_t r = 0; r < record.size(); ++r) {
    record[r].name = fmt::format("rank {}", r);
    record[r].totals = totals[r];
    std::stable_sort(
        record[r].received.begin(), record[r].received.end(),
        [](const trace::Message& a, const trace::Message& b) { return a.arrived_s < b.arrived_s; });
  }
  timeline.ranks = std::move(record);
  return timeline;
}

}  // namespace

Result<SimResult> Simulate(const Schedule& schedule, const cost::CostModel& costs,
                           const SimOptions& options) {
  PENSTOCK_TRY_ASSIGN(Engine engine, Engine::Make(schedule, costs, options.transport));
  PENSTOCK_TRY(engine.UseSeconds(options.action_seconds));
  SimResult result;
  if (options.timeline && schedule.CountActions() > kMostKept / std::max(options.steps, 1)) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        "[sim.timeline] {} steps of {} actions, wanted at most {} actions in a picture "
        "or a trace",
        options.steps, schedule.CountActions(), kMostKept);
  }
  std::vector<trace::RankTotals> totals(schedule.ranks.size());
  Record record;
  record.ranks.resize(options.timeline ? schedule.ranks.size() : 0);
  for (size_t r = 0; r < record.ranks.size(); ++r)
    record.ranks[r].slices.reserve(schedule.ranks[r].size());
  PENSTOCK_TRY(engine.RunStep(&totals, options.timeline ? &record.ranks : nullptr));
  record.totals = totals;
  result.makespan_s = engine.End();
  result.step_end_s.push_back(result.makespan_s);
  result.actions = schedule.CountActions();
  result.messages = engine.messages();
  result.message_bytes = engine.message_bytes();
  FillRanks(totals, ActivationPeaks(schedule, costs), result);
  const Bounds bounds = options.action_seconds == nullptr
                            ? LowerBounds(schedule, costs, options.activation_limit)
                            : Bounds();
  result.lower_bound_s = std::min(bounds.makespan_s, result.makespan_s);
  result.period_lower_bound_s = bounds.period_s;
  if (options.period || options.steps > 1) {
    PENSTOCK_TRY_ASSIGN(const Period period,
                        FindPeriod(engine, options, bounds.period_s * schedule.steps,
                                   result.actions, schedule.steps, result.step_end_s, record));
    result.period_s = period.seconds / schedule.steps;
    result.period_exact = period.exact;
    result.period_lower_bound_s = std::min(result.period_lower_bound_s, result.period_s);
  }
  if (options.timeline) {
    result.timeline =
        MakeTimeline(schedule, result.step_end_s.back(), std::move(record.ranks), record.totals);
  }
  return result;
}

Result<double> SimulateMakespan(const Schedule& schedule, const cost::CostModel& costs,
                                const schedule::Transport& transport) {
  PENSTOCK_TRY_ASSIGN(Engine engine, Engine::Make(schedule, costs, transport));
  PENSTOCK_TRY(engine.RunStep());
  return engine.End();
}

}  // namespace penstock::sim
