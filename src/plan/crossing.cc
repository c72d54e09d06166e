#include "plan/crossing.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/units.h"
#include "plan/inference.h"
#include "plan/training.h"

namespace penstock::plan {
namespace {

// Seconds of a step, or of a decode lap; nothing where the layout is not legal there.
std::optional<double> StepSeconds(const Context& context, const Layout& layout) {
  Plan plan;
  plan.layout = layout;
  if (context.workload->mode == Mode::kTraining) {
    TrainingPricer pricer(context);
    return pricer.Price(plan) ? std::optional(plan.step_s) : std::nullopt;
  }
  InferencePricer pricer(context);
  return pricer.Price(plan) ? std::optional(plan.step_s) : std::nullopt;
}

std::string Bits(double bytes_per_s) {
  const double bits = 8 * bytes_per_s;
  return bits >= 1e12 ? fmt::format("{:.3g} Tbit/s", bits / 1e12)
                      : fmt::format("{:.3g} Gbit/s", bits / 1e9);
}

}  // namespace

std::optional<CrossingCost> PriceCrossing(const Context& context, const Layout& layout) {
  const cost::ModelProfile& model = *context.model;
  const std::vector<double>& width = model.boundary_width;
  if (layout.pp < 2 || layout.cut.size() < 2 || model.long_values.empty()) {
    return std::nullopt;
  }
  CrossingCost out;
  out.what = model.long_values;
  out.stages = static_cast<int64_t>(layout.cut.size());
  int32_t unit = 0;
  for (size_t s = 0; s + 1 < layout.cut.size(); ++s) {
    unit += layout.cut[s];
    const double bytes = 2 * width[static_cast<size_t>(std::max(unit - 1, 0))];
    out.largest_hop_bytes = std::max(out.largest_hop_bytes, bytes);
    out.extra_hop_bytes += bytes - 2 * model.hidden;
    out.held_bytes = std::max(out.held_bytes, bytes - 2 * model.hidden);
  }
  cost::ModelProfile plain = model;
  std::fill(plain.boundary_width.begin(), plain.boundary_width.end() - 1, model.hidden);
  for (const hw::LinkLevel& level : context.system->links) {
    hw::System system = *context.system;
    system.links = {level};
    system.links[0].span = 0;
    Context here = context;
    here.system = &system;
    const std::optional<double> with = StepSeconds(here, layout);
    here.model = &plain;
    const std::optional<double> without = StepSeconds(here, layout);
    if (with && without && *without > 0) {
      out.links.push_back({level.name, level.bandwidth, *with / *without - 1});
    }
  }
  return out.links.empty() ? std::nullopt : std::optional(out);
}

std::string CrossingText(const CrossingCost& cost) {
  std::string text = cost.what + " cost this pipeline ";
  for (size_t i = cost.links.size(); i-- > 0;) {
    const CrossingOverLink& link = cost.links[i];
    const bool first = i + 1 == cost.links.size();
    text += fmt::format("{}{:.1f} %{} at {} ({})", first ? "" : ", ", 100 * link.slowdown,
                        first ? " of step time" : "", Bits(link.bandwidth), link.link);
  }
  text += fmt::format(": up to {} per token and hop beyond a plain residual.",
                      FormatBytes(cost.held_bytes));
  text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  return text;
}

}  // namespace penstock::plan
