#include "plan/crossing.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/units.h"
#include "plan/hops.h"
#include "plan/inference.h"
#include "plan/training.h"
#include "schedule/registry.h"
#include "sim/simulate.h"

namespace penstock::plan {
namespace {

struct Simulated {
  double step_s = 0;
  std::vector<double> peak_bytes;  // by rank
};

std::vector<double> PeaksOf(const Plan& plan) {
  std::vector<double> peaks;
  for (const MemoryAccount& account : plan.per_rank) {
    peaks.push_back(account.peak());
  }
  return peaks;
}

Result<Simulated> TrainingStep(const Context& context, const Layout& layout) {
  Plan plan;
  plan.layout = layout;
  TrainingPricer pricer(context);
  pricer.Price(plan);
  PENSTOCK_TRY(pricer.Simulate(plan));
  return Simulated{plan.step_s, PeaksOf(plan)};
}

// The time of a lap of decoding once it repeats.
Result<Simulated> DecodeLap(const Context& context, const Layout& layout) {
  Plan plan;
  plan.layout = layout;
  InferencePricer pricer(context);
  pricer.Price(plan);
  if (context.system->engine) {
    return Simulated{plan.step_s, PeaksOf(plan)};  // simulated by serving_sim.h
  }
  schedule::GeneratorOptions options;
  options.ranks = static_cast<int>(layout.pp);
  options.micro_batches = static_cast<int>(plan.layout.micro_batches);
  PENSTOCK_TRY_ASSIGN(const schedule::Schedule ring, schedule::Generate("decode-ring", options));
  const auto rows = static_cast<double>(plan.layout.micro_batch);
  const double row_bytes = rows * 2 / static_cast<double>(layout.tp);
  const HopWidths hops = HopsOf(*context.model, plan.layout, Mode::kInference);
  cost::CostModel costs;
  costs.link = HopLink(context, plan.layout, row_bytes * hops.largest());
  for (const double seconds : pricer.DecodeStages(plan.layout, rows)) {
    costs.stages.emplace_back().f_s = seconds;
  }
  for (size_t s = 1; s < costs.stages.size(); ++s) {
    costs.stages[s - 1].output_bytes = std::llround(row_bytes * hops.forward[s]);
  }
  costs.stages.back().output_bytes = std::llround(4 * rows);  // sampled ids
  PENSTOCK_TRY_ASSIGN(const sim::SimResult result, sim::Simulate(ring, costs));
  return Simulated{result.period_s + context.calibration().fixed_per_step_s, PeaksOf(plan)};
}

Result<Simulated> Simulate(const Context& context, const Layout& layout) {
  return context.workload->mode == Mode::kTraining ? TrainingStep(context, layout)
                                                   : DecodeLap(context, layout);
}

// Bytes per token over all hops that the cut by work alone would send more.
double SavedByCut(const Context& context, const cost::ModelProfile& plain, const Layout& layout) {
  Plan by_work;
  by_work.layout = layout;
  by_work.layout.cut.clear();
  Context there = context;
  there.model = &plain;
  if (context.workload->mode == Mode::kTraining) {
    TrainingPricer(there).Price(by_work);
  } else {
    InferencePricer(there).Price(by_work);
  }
  const auto sent = [&](const Layout& l) {
    const HopWidths hops = HopsOf(*context.model, l, context.workload->mode);
    return 2 * std::accumulate(hops.forward.begin(), hops.forward.end(), 0.0);
  };
  return sent(by_work.layout) - sent(layout);
}

// Enough digits to tell a little from nothing.
std::string Percent(double share) {
  const double percent = 100 * share;
  const double size = std::abs(percent);
  if (size < 1e-4) {
    return "0 %";
  }
  return size < 0.095 ? fmt::format("{:.1g} %", percent) : fmt::format("{:.1f} %", percent);
}

std::string Bits(double bytes_per_s) {
  const double bits = 8 * bytes_per_s;
  return bits >= 1e12 ? fmt::format("{:.3g} Tbit/s", bits / 1e12)
                      : fmt::format("{:.3g} Gbit/s", bits / 1e9);
}

}  // namespace

std::optional<CrossingCost> PriceCrossing(const Context& context, const Layout& layout) {
  const cost::ModelProfile& model = *context.model;
  if (layout.pp < 2 || layout.cut.size() < 2 || model.long_values.empty()) {
    return std::nullopt;
  }
  CrossingCost out;
  out.what = model.long_values;
  out.stages = static_cast<int64_t>(layout.cut.size());
  const HopWidths hops = HopsOf(model, layout, context.workload->mode);
  for (size_t s = 1; s < hops.forward.size(); ++s) {
    const double bytes = 2 * hops.forward[s];
    out.largest_hop_bytes = std::max(out.largest_hop_bytes, bytes);
    if (hops.backward[s] > 0) {  // between different ranks
      out.extra_hop_bytes += bytes - 2 * model.hidden;
      out.held_bytes = std::max(out.held_bytes, 2 * (hops.backward[s] - model.hidden));
    }
  }
  const cost::ModelProfile plain = WithPlainResidual(model);
  out.plain_cut_bytes = SavedByCut(context, plain, layout);
  for (const hw::LinkLevel& level : context.system->links) {
    hw::System system = *context.system;
    system.links = {level};
    system.links[0].span = 0;
    Context here = context;
    here.system = &system;
    here.engine_memory = nullptr;
    const Result<Simulated> with = Simulate(here, layout);
    here.model = &plain;
    const Result<Simulated> without = Simulate(here, layout);
    if (!with.ok() || !without.ok() || without->step_s <= 0) {
      continue;
    }
    out.links.push_back({level.name, level.bandwidth, with->step_s, without->step_s});
    for (size_t r = 0; r < with->peak_bytes.size(); ++r) {
      out.rank_bytes = std::max(out.rank_bytes, with->peak_bytes[r] - without->peak_bytes[r]);
    }
  }
  return out.links.empty() ? std::nullopt : std::optional(out);
}

std::string CrossingText(const CrossingCost& cost) {
  std::string text = cost.what + " cost this pipeline ";
  const bool hidden = std::all_of(cost.links.begin(), cost.links.end(), [](const auto& link) {
    return std::abs(link.slowdown()) < 1e-6;
  });
  if (hidden) {
    text += "no time: the hops hide behind the slowest stage";
  }
  for (size_t i = hidden ? 0 : cost.links.size(); i-- > 0;) {
    const CrossingOverLink& link = cost.links[i];
    const bool first = i + 1 == cost.links.size();
    text += fmt::format("{}{}{} at {} ({})", first ? "" : ", ", Percent(link.slowdown()),
                        first ? " of step time" : "", Bits(link.bandwidth), link.link);
  }
  text +=
      fmt::format(": up to {} per token and hop beyond a plain residual, and {} more on a rank.",
                  FormatBytes(cost.held_bytes), FormatBytes(cost.rank_bytes));
  if (cost.plain_cut_bytes > 0) {
    text += fmt::format(" The cut weighs that: by work alone it would send {} more per token.",
                        FormatBytes(cost.plain_cut_bytes));
  }
  text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  return text;
}

}  // namespace penstock::plan
