#include "sim/optimize.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/rng.h"
#include "schedule/registry.h"
#include "sim/bounds.h"
#include "sim/engine.h"
#include "sim/list_scheduler.h"
#include "sim/peaks.h"
#include "sim/place_weights.h"

namespace penstock::sim {
namespace {

using schedule::Action;
using schedule::OpKind;
using schedule::Placement;
using schedule::Schedule;

constexpr size_t kImproved = 8;                     // candidates that the local search starts from
constexpr int64_t kMostSearchedWork = 120'000'000;  // actions simulated from each start
constexpr double kLess = 1 - 1e-12;
constexpr double kWarmth = 0.002;  // of the time, at the start of the annealing
constexpr double kEvenly = 0.02;   // weight of the ranks' mean end beside the last one

struct Candidate {
  Schedule schedule;
  cost::CostModel costs;
  std::string start;
  double seconds = 0;
  double worst_peak = 0;
};

class Optimizer {
 public:
  Optimizer(const cost::CostSource& costs, const OptimizeOptions& options)
      : source_(costs), options_(options), limit_(options.activation_limit) {}

  Result<Optimized> Run() {
    PENSTOCK_TRY(AddGenerators());
    PENSTOCK_TRY(AddListSchedules());
    if (candidates_.empty())
      return NothingFits();
    std::stable_sort(candidates_.begin(), candidates_.end(),
                     [](const Candidate& a, const Candidate& b) {
                       if (a.seconds < b.seconds * (1 - 1e-9))
                         return true;
                       return a.seconds < b.seconds * (1 + 1e-9) && a.worst_peak < b.worst_peak;
                     });
    const auto count = static_cast<int>(candidates_.size());
    const size_t improved = std::min(kImproved, candidates_.size());
    size_t best = 0;
    for (size_t i = 0; i < improved; ++i) {
      PENSTOCK_TRY(Improve(candidates_[i], static_cast<uint64_t>(i)));
      if (candidates_[i].seconds < candidates_[best].seconds * kLess)
        best = i;
    }
    Candidate& chosen = candidates_[best];
    Optimized out;
    chosen.schedule.name = "optimized";
    SimOptions sim_options;
    sim_options.activation_limit = limit_.ExactShares();
    PENSTOCK_TRY_ASSIGN(out.result, Simulate(chosen.schedule, chosen.costs, sim_options));
    const double lower_s =
        options_.period ? out.result.period_lower_bound_s : out.result.lower_bound_s;
    const double seconds = options_.period ? out.result.period_s : out.result.makespan_s;
    out.gap = lower_s > 0 ? std::max(0.0, seconds / lower_s - 1) : 0.0;
    out.schedule = std::move(chosen.schedule);
    out.start = chosen.start;
    out.candidates = count;
    out.simulations = simulations_;
    return out;
  }

 private:
  Result<double> Seconds(const Schedule& schedule, const cost::CostModel& costs) {
    ++simulations_;
    if (!options_.period)
      return SimulateMakespan(schedule, costs);
    PENSTOCK_TRY_ASSIGN(const SimResult result, Simulate(schedule, costs));
    return result.period_s;
  }

  // What the local search minimises: the time, and a little of the ranks' mean end, which tells
  // orders apart that end at the same time.
  Result<double> Score(const Schedule& schedule, const cost::CostModel& costs) {
    if (options_.period)
      return Seconds(schedule, costs);
    ++simulations_;
    PENSTOCK_TRY_ASSIGN(Engine engine, Engine::Make(schedule, costs, {}));
    PENSTOCK_TRY(engine.RunStep());
    const std::vector<double> ends = engine.State();
    double sum = 0;
    for (size_t r = 0; r < schedule.ranks.size(); ++r)
      sum += ends[r];
    return engine.End() + kEvenly * sum / static_cast<double>(schedule.ranks.size());
  }

  // Adds a candidate where it fits; remembers the least worst peak of those that don't.
  Result<> Consider(Schedule schedule, const cost::CostModel& costs, std::string start) {
    double worst = 0;
    const std::vector<Peak> peaks = ActivationPeaks(schedule, costs);
    for (const Peak& peak : peaks) {
      worst = std::max(worst, limit_.in_bytes() ? static_cast<double>(peak.bytes) : peak.shares);
    }
    if (!limit_.Allows(peaks)) {
      least_peak_ = std::min(least_peak_, worst);
      return {};
    }
    PENSTOCK_TRY_ASSIGN(const double seconds, Seconds(schedule, costs));
    candidates_.push_back({std::move(schedule), costs, std::move(start), seconds, worst});
    return {};
  }

  Result<> AddGenerators() {
    for (const schedule::GeneratorInfo& info : schedule::Generators()) {
      if (!info.backward || info.placement == schedule::PlacementKind::kMirrored ||
          info.default_slices > 1) {
        continue;
      }
      const int chunks = options_.chunks != 0 && info.any_chunks ? options_.chunks : 0;
      if (options_.chunks != 0 && !info.any_chunks && info.default_chunks != options_.chunks)
        continue;
      auto made =
          schedule::Generate(info.name, {options_.ranks, options_.micro_batches, chunks, 0});
      if (!made.ok())
        return std::move(made).error();
      if (made.value().placement.num_directions() > 1)
        continue;
      auto costs = source_.For(made.value());
      if (!costs.ok()) {
        cost_error_ = costs.error().message;
        continue;  // parts of the costs file don't fit this number of stages
      }
      const Schedule split = SplitBackwards(made.value());
      PENSTOCK_TRY(Consider(std::move(made).value(), costs.value(), std::string(info.name)));
      auto placed = PlaceWeights(split, costs.value(), limit_);
      if (!placed.ok())
        return std::move(placed).error();
      if (placed.value().changed) {
        PENSTOCK_TRY(Consider(std::move(placed.value().schedule), costs.value(),
                              fmt::format("{} with W placed", info.name)));
      }
    }
    return {};
  }

  // Every B as I and then W: the same times, but W may move.
  static Schedule SplitBackwards(const Schedule& schedule) {
    Schedule out = schedule;
    for (auto& program : out.ranks) {
      std::vector<Action> split;
      for (const Action& action : program) {
        split.push_back(action);
        split.back().joined = false;
        if (action.kind != OpKind::kBackward)
          continue;
        split.back().kind = OpKind::kBackwardInput;
        split.push_back(split.back());
        split.back().kind = OpKind::kBackwardWeight;
      }
      program = std::move(split);
    }
    return out;
  }

  Result<> AddListSchedules() {
    std::vector<Placement> placements;
    for (const int v : {1, 2, 3, 4}) {
      if (options_.chunks == 0 ? v <= 2 : v == options_.chunks)
        placements.push_back(Placement::Loop(options_.ranks, v));
    }
    if (options_.chunks > 4)
      placements.push_back(Placement::Loop(options_.ranks, options_.chunks));
    if (options_.chunks == 0 || options_.chunks == 2)
      placements.push_back(Placement::V(options_.ranks));
    for (const Placement& placement : placements) {
      Schedule header;
      header.placement = placement;
      header.micro_batches = options_.micro_batches;
      auto costs = source_.For(header);
      if (!costs.ok()) {
        cost_error_ = costs.error().message;
        continue;
      }
      PENSTOCK_TRY(AddListSchedulesOf(placement, costs.value()));
    }
    return {};
  }

  Result<> AddListSchedulesOf(const Placement& placement, const cost::CostModel& costs) {
    ListOptions list;
    list.micro_batches = options_.micro_batches;
    const int v = placement.chunks();
    Schedule header;
    header.placement = placement;
    header.micro_batches = options_.micro_batches;
    const std::vector<double> shares = limit_.SafeShares(header, costs);
    for (size_t r = 0; r < static_cast<size_t>(options_.ranks); ++r) {
      const double most = shares.empty() ? options_.micro_batches : shares[r];
      list.limit.push_back(static_cast<int64_t>(std::min(std::floor(most * v + 1e-9), 1e9)));
    }
    const int p = options_.ranks;
    const std::pair<int, int> ahead[] = {{1 << 20, 0}, {1, 1}, {2, 1},     {1, 2},
                                         {p, 0},       {p, 1}, {2 * p, 0}, {p / 2 + 1, 0}};
    for (const auto& [base, slope] : ahead) {
      for (int choice = 0; choice < (v > 1 ? 8 : 2); ++choice) {
        list.ahead_base = base;
        list.ahead_slope = slope;
        list.eager_weights = (choice & 1) != 0;
        list.deep_forward = (choice & 2) == 0;
        list.deep_backward = (choice & 4) == 0;
        std::optional<Schedule> made = ListSchedule(placement, costs, list);
        if (!made)
          continue;
        auto placed = PlaceWeights(*made, costs, limit_);
        if (!placed.ok())
          return std::move(placed).error();
        PENSTOCK_TRY(
            Consider(std::move(placed.value().schedule), costs,
                     fmt::format("list ({}, v = {}, ahead {} + {} a rank{}{}{})",
                                 schedule::PlacementKindText(placement.kind()), v,
                                 base >= 1 << 20 ? std::string("any") : fmt::format("{}", base),
                                 slope, list.eager_weights ? ", eager W" : "",
                                 v == 1              ? ""
                                 : list.deep_forward ? ", late chunks first"
                                                     : "",
                                 v == 1               ? ""
                                 : list.deep_backward ? ""
                                                      : ", early chunks back first")));
      }
    }
    return {};
  }

  Result<> Improve(Candidate& candidate, uint64_t salt);
  bool MayMove(const std::vector<Action>& program, size_t from, size_t to) const;
  bool Fits(const Schedule& schedule, const cost::CostModel& costs) const;

  Error NothingFits() const {
    if (least_peak_ == std::numeric_limits<double>::infinity() && !cost_error_.empty())
      return MakeError(ErrorCode::kInvalidArgument, "[sim.optimize] {}", cost_error_);
    return MakeError(ErrorCode::kInvalidArgument,
                     "[sim.optimize] no order within the activation limit, wanted at least {:.4g} "
                     "on the fullest rank",
                     least_peak_);
  }

  const cost::CostSource& source_;
  const OptimizeOptions& options_;
  const ActivationLimit& limit_;
  std::vector<Candidate> candidates_;
  double least_peak_ = std::numeric_limits<double>::infinity();
  std::string cost_error_;
  int64_t simulations_ = 0;
};

bool Optimizer::Fits(const Schedule& schedule, const cost::CostModel& costs) const {
  return limit_.none() || limit_.Allows(ActivationPeaks(schedule, costs));
}

// May the action at `from` stand at `to` instead, by what its own rank needs? F before its I before
// its W, and each kind of a stage ascending by micro-batch.
bool Optimizer::MayMove(const std::vector<Action>& program, size_t from, size_t to) const {
  const Action& moved = program[from];
  const size_t low = std::min(from, to);
  const size_t high = std::max(from, to);
  for (size_t i = low; i <= high; ++i) {
    if (i == from)
      continue;
    const Action& other = program[i];
    if (other.stage == moved.stage &&
        (other.kind == moved.kind || other.micro_batch == moved.micro_batch ||
         (schedule::IsBackward(other.kind) && schedule::IsBackward(moved.kind) &&
          (other.kind == OpKind::kBackward || moved.kind == OpKind::kBackward)))) {
      return false;
    }
  }
  return true;
}

// Takes the action at `from` out and puts it at `to`.
void MoveAction(std::vector<Action>& program, size_t from, size_t to) {
  const auto begin = program.begin();
  const auto a = begin + static_cast<std::ptrdiff_t>(from);
  const auto b = begin + static_cast<std::ptrdiff_t>(to);
  if (from < to) {
    std::rotate(a, a + 1, b + 1);
  } else {
    std::rotate(b, a, a + 1);
  }
}

Result<> Optimizer::Improve(Candidate& candidate, uint64_t salt) {
  const Bounds bounds = LowerBounds(candidate.schedule, candidate.costs, limit_.ExactShares());
  const double lower_s = options_.period ? bounds.period_s : bounds.makespan_s;
  const int64_t actions = std::max<int64_t>(1, candidate.schedule.CountActions());
  const int64_t moves = std::min<int64_t>(options_.evaluations, kMostSearchedWork / actions);
  Schedule trial = candidate.schedule;
  double best_s = std::numeric_limits<double>::infinity();  // scores
  double trial_s = best_s;
  for (int64_t move = 0; move < moves && candidate.seconds > lower_s * (1 + 1e-9); ++move) {
    const auto words = penstock::Philox(
        {static_cast<uint32_t>(move), static_cast<uint32_t>(salt), 0, 0}, options_.seed);
    const auto chance = penstock::Philox(
        {static_cast<uint32_t>(move), static_cast<uint32_t>(salt), 1, 0}, options_.seed);
    auto& program = trial.ranks[words[0] % trial.ranks.size()];
    if (program.size() < 2)
      continue;
    const size_t from = words[1] % program.size();
    const size_t far = 1 + words[2] % std::min<size_t>(12, program.size() - 1);
    const size_t to =
        (words[3] & 1) != 0 ? std::min(program.size() - 1, from + far) : from - std::min(from, far);
    if (from == to || !MayMove(program, from, to))
      continue;
    MoveAction(program, from, to);
    bool keep = Fits(trial, candidate.costs);
    if (keep) {
      // An error: the ranks would wait for ever.
      const auto seconds = Score(trial, candidate.costs);
      const double left = 1 - static_cast<double>(move) / static_cast<double>(moves);
      const double warmth = salt % 2 == 0 ? 0.0 : kWarmth;
      const double worse_s = -warmth * candidate.seconds * left * left *
                             std::log(UniformDouble(chance[0], chance[1]) + 1e-300);
      keep = seconds.ok() && seconds.value() <= trial_s + worse_s;
      if (keep)
        trial_s = seconds.value();
    }
    if (!keep) {
      MoveAction(program, to, from);
    } else if (trial_s < best_s * kLess) {
      PENSTOCK_TRY_ASSIGN(const double seconds, Seconds(trial, candidate.costs));
      best_s = trial_s;
      if (seconds < candidate.seconds * kLess) {
        candidate.seconds = seconds;
        candidate.schedule = trial;
      }
    }
  }
  return {};
}

}  // namespace

Result<Optimized> Optimize(const cost::CostSource& costs, const OptimizeOptions& options) {
  return Optimizer(costs, options).Run();
}

}  // namespace penstock::sim
