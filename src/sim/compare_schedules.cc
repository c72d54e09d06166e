#include "sim/compare_schedules.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "base/units.h"
#include "schedule/registry.h"
#include "sim/optimize.h"
#include "sim/place_weights.h"

namespace penstock::sim {
namespace {

constexpr double kEqual = 0.005;

// What the row's order may need with its W's elsewhere: no more than it says, and on no rank more
// than the limit.
Result<ActivationLimit> RoomToPlace(const ScheduleRow& row, const CompareOptions& options) {
  const ActivationLimit& limit = options.activation_limit;
  if (limit.none() || !row.fits)
    return ActivationLimit();
  std::vector<double> amounts = limit.amounts();
  for (double& amount : amounts)
    amount = std::min(amount, row.worst_peak);
  return ActivationLimit::Make(std::move(amounts), options.ranks, limit.in_bytes());
}

Result<ScheduleRow> MakeRow(const schedule::GeneratorInfo& info, const schedule::Schedule& schedule,
                            const cost::CostModel& model, const CompareOptions& options) {
  const ActivationLimit& limit = options.activation_limit;
  ScheduleRow row;
  row.name = info.name;
  row.chunks = schedule.chunks();
  row.weight_copies = schedule.placement.num_directions();
  row.forward_only = schedule.forward_only;
  SimOptions sim_options;
  sim_options.barrier = options.barrier;
  sim_options.activation_limit = limit.ExactShares();
  PENSTOCK_TRY_ASSIGN(row.result, Simulate(schedule, model, sim_options));
  for (const RankResult& rank : row.result.ranks)
    row.worst_peak =
        std::max(row.worst_peak, limit.in_bytes() ? static_cast<double>(rank.peak_activation_bytes)
                                                  : rank.peak_activations);
  row.fits = limit.Allows(row.result);
  if (!row.fits) {
    // The bounds under a limit are not those of a schedule that does not keep to it.
    sim_options.activation_limit.clear();
    PENSTOCK_TRY_ASSIGN(row.result, Simulate(schedule, model, sim_options));
  }
  row.placed_makespan_s = row.result.makespan_s;
  row.placed_period_s = row.result.period_s;
  PENSTOCK_TRY_ASSIGN(const ActivationLimit room, RoomToPlace(row, options));
  PENSTOCK_TRY_ASSIGN(const PlacementOfWeights placed, PlaceWeights(schedule, model, room));
  if (placed.changed) {
    PENSTOCK_TRY_ASSIGN(const SimResult result, Simulate(placed.schedule, model, sim_options));
    row.placed_makespan_s = result.makespan_s;
    row.placed_period_s = result.period_s;
  }
  return row;
}

}  // namespace

Result<ScheduleTable> CompareSchedules(const cost::CostSource& costs,
                                       const CompareOptions& options) {
  ScheduleTable table;
  for (const schedule::GeneratorInfo& info : schedule::Generators()) {
    const int chunks = info.any_chunks ? options.chunks : 0;
    auto made = schedule::Generate(info.name, {options.ranks, options.micro_batches, chunks, 0});
    if (!made.ok()) {
      table.skipped.push_back({std::string(info.name), made.error().message});
      continue;
    }
    auto model = costs.For(made.value());
    if (!model.ok()) {
      table.skipped.push_back({std::string(info.name), model.error().message});
      continue;
    }
    auto row = MakeRow(info, made.value(), model.value(), options);
    if (!row.ok())
      return std::move(row).error();
    table.rows.push_back(std::move(row).value());
  }
  if (table.rows.empty()) {
    return MakeError(ErrorCode::kInvalidArgument, "{}",
                     table.skipped.empty() ? "[sim.compare] no generator" : table.skipped[0].why);
  }
  table.advice = Advise(table.rows, options);
  return table;
}

namespace {

std::string Amount(double amount, const CompareOptions& options) {
  return options.activation_limit.in_bytes() ? FormatBytes(amount) : fmt::format("{:.4g}", amount);
}

}  // namespace

std::string Advise(const std::vector<ScheduleRow>& rows, const CompareOptions& options) {
  const ScheduleRow* fastest = nullptr;  // whatever its memory
  const ScheduleRow* twice = nullptr;    // fastest that fits among those with two copies
  const ScheduleRow* fastest_fit = nullptr;
  const ScheduleRow* smallest = nullptr;
  for (const ScheduleRow& row : rows) {
    if (row.forward_only)
      continue;
    if (row.weight_copies > 1) {
      if (row.fits && (twice == nullptr || row.placed_period_s < twice->placed_period_s))
        twice = &row;
      continue;
    }
    auto faster = [&row](const ScheduleRow* than) {
      return than == nullptr || row.placed_period_s < than->placed_period_s * (1 - 1e-9);
    };
    if (faster(fastest))
      fastest = &row;
    if (row.fits && faster(fastest_fit))
      fastest_fit = &row;
    if (smallest == nullptr || row.worst_peak < smallest->worst_peak)
      smallest = &row;
  }
  if (fastest == nullptr)
    return "There is no schedule with a backward pass to choose from.";
  if (fastest_fit == nullptr) {
    return fmt::format(
        "No schedule keeps to the activation limit: the smallest is {} with {}; recompute, "
        "slice the sequences or take smaller micro-batches.",
        smallest->name, Amount(smallest->worst_peak, options));
  }
  const ScheduleRow* best = fastest_fit;
  for (const ScheduleRow& row : rows) {
    if (row.forward_only || row.weight_copies > 1 || !row.fits ||
        row.placed_period_s > fastest_fit->placed_period_s * (1 + kEqual)) {
      continue;
    }
    auto rank_of = [](const ScheduleRow& r) {
      return std::tuple(r.worst_peak, r.result.messages, r.placed_makespan_s);
    };
    if (rank_of(row) < rank_of(*best))
      best = &row;
  }
  std::string out = fmt::format("Take {} (v = {}): {} per step{}, {} activations at most",
                                best->name, best->chunks, FormatSeconds(best->placed_period_s),
                                options.barrier ? " with the barrier" : " back to back",
                                Amount(best->worst_peak, options));
  if (best->placed_period_s < best->result.period_s * (1 - 1e-9)) {
    out += fmt::format(" ({} with its W placed by these costs instead of {})",
                       FormatSeconds(best->placed_period_s), FormatSeconds(best->result.period_s));
  }
  if (best != fastest_fit) {
    out +=
        fmt::format("; {} is within {:.1f} % of it but needs {}", fastest_fit->name, 100 * kEqual,
                    fastest_fit->worst_peak > best->worst_peak
                        ? Amount(fastest_fit->worst_peak, options)
                        : fmt::format("{} messages instead of {}", fastest_fit->result.messages,
                                      best->result.messages));
  }
  if (fastest != fastest_fit && !fastest->fits) {
    out +=
        fmt::format("; {} would take {} but needs {}, above the limit", fastest->name,
                    FormatSeconds(fastest->placed_period_s), Amount(fastest->worst_peak, options));
  }
  if (twice != nullptr && twice->placed_period_s < best->placed_period_s * (1 - kEqual)) {
    out += fmt::format("; {} would take {} but holds the weights twice", twice->name,
                       FormatSeconds(twice->placed_period_s));
  }
  const ScheduleRow* plain = nullptr;
  for (const ScheduleRow& row : rows) {
    if (row.name == "1f1b")
      plain = &row;
  }
  if (plain != nullptr && plain != best) {
    out += fmt::format("; 1f1b takes {} with {}", FormatSeconds(plain->placed_period_s),
                       Amount(plain->worst_peak, options));
  }
  return out + ".";
}

}  // namespace penstock::sim
