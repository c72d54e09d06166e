#include "cli/schedule_pictures.h"

#include <fmt/core.h>

#include "base/units.h"
#include "sim/hops.h"
#include "sim/simulate.h"
#include "trace/activations.h"
#include "trace/chrome.h"
#include "trace/picture.h"

namespace penstock::cli {

void AddPictureFlags(Verb& verb, PictureFlags& flags) {
  verb.AddOption("--from", flags.from_s, "First second of the picture (default: the first)")
      ->TypeName("S")
      ->NotNegative();
  verb.AddOption("--to", flags.to_s, "Last second of the picture (default: the last)")
      ->TypeName("S")
      ->NotNegative();
}

Result<std::string> DrawGrid(const trace::Timeline& timeline, const schedule::Schedule& schedule,
                             const PictureFlags& flags) {
  trace::GridOptions options;
  options.width = TerminalWidth();
  options.colour = ColourOnStdout();
  options.from_s = flags.from_s;
  options.to_s = flags.to_s;
  return trace::TextGrid(timeline, &schedule, options);
}

namespace {

// What the hops carry, of a lowered schedule or one with edges, where the costs or the edges know.
Result<> AddTraffic(const schedule::Schedule& schedule, const cost::CostModel& costs,
                    trace::SvgOptions& options) {
  if (!schedule.lowered && schedule.edges.empty()) {
    return {};
  }
  PENSTOCK_TRY_ASSIGN(const sim::HopReport report, sim::MeasureHops(schedule, costs));
  if (report.forward_bytes + report.backward_bytes == 0) {
    return {};
  }
  for (const sim::Hop& hop : report.hops) {
    options.hops.push_back({fmt::format("rank {} to {}, stage {} to {}", hop.from_rank, hop.to_rank,
                                        hop.from_stage, hop.to_stage),
                            hop.forward_bytes, hop.backward_bytes});
  }
  options.held_per_rank = report.peak_value_bytes;
  return {};
}

}  // namespace

Result<std::string> DrawSvg(const trace::Timeline& timeline, const schedule::Schedule& schedule,
                            const cost::CostModel& costs, const PictureFlags& flags) {
  trace::SvgOptions options;
  options.title = fmt::format("{}, p = {}, m = {}", schedule.name, schedule.num_ranks(),
                              schedule.micro_batches);
  if (schedule.chunks() > 1)
    options.title += fmt::format(", v = {}", schedule.chunks());
  if (schedule.slices > 1)
    options.title += fmt::format(", {} slices", schedule.slices);
  options.from_s = flags.from_s;
  options.to_s = flags.to_s;
  options.memory = !schedule.forward_only;
  PENSTOCK_TRY(AddTraffic(schedule, costs, options));
  return trace::Svg(timeline, &schedule, options);
}

void AddCounters(trace::Timeline& timeline, const schedule::Schedule& schedule,
                 const cost::CostModel& costs) {
  std::vector<double> bytes;
  bool known = false;
  for (const cost::StageCost& stage : costs.stages) {
    bytes.push_back(static_cast<double>(stage.activation_bytes));
    known = known || stage.activation_bytes > 0;
  }
  if (!known)
    bytes.clear();
  trace::AddActivationCounters(timeline, schedule, bytes);
}

Result<std::string> RenderSchedule(const schedule::Schedule& schedule, std::string_view format,
                                   const cost::CostSource& costs, const PictureFlags& flags) {
  PENSTOCK_TRY_ASSIGN(const cost::CostModel model, costs.For(schedule));
  sim::SimOptions options;
  options.timeline = true;
  options.period = false;
  PENSTOCK_TRY_ASSIGN(sim::SimResult result, sim::Simulate(schedule, model, options));
  AddCounters(*result.timeline, schedule, model);
  if (format == "grid")
    return DrawGrid(*result.timeline, schedule, flags);
  if (format == "svg")
    return DrawSvg(*result.timeline, schedule, model, flags);
  if (format != "trace") {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[cli.schedule] format '{}', wanted grid, svg or trace", format);
  }
  std::string text;
  trace::WriteChromeTrace(*result.timeline, [&text](std::string_view piece) { text += piece; });
  return text;
}

}  // namespace penstock::cli
