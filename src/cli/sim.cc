// penstock sim: times, idle accounts and memory of a schedule, or of all of them side by side.

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>

#include "base/file.h"
#include "base/json.h"
#include "base/units.h"
#include "cli/schedule_input.h"
#include "cli/schedule_pictures.h"
#include "cli/verb.h"
#include "cli/verbs.h"
#include "cost/link_seconds.h"
#include "schedule/passes.h"
#include "schedule/text/text.h"
#include "sim/compare_schedules.h"
#include "sim/hops.h"
#include "sim/optimize.h"
#include "sim/place_weights.h"
#include "sim/simulate.h"
#include "trace/chrome.h"
#include "trace/critical_path.h"

namespace penstock::cli {
namespace {

using schedule::Schedule;

struct Flags {
  CommonFlags common;
  ScheduleFlags schedule;
  CostFlags cost;
  TransportFlags transport;
  PictureFlags picture;
  std::string limit;
  std::string output;
  std::string trace;
  std::string svg;
  int steps = 1;
  bool barrier = false;
  bool all = false;
  bool lowered = false;
  bool place_weights = false;
  bool draw = false;
  bool critical_path = false;
};

std::string TableText(const sim::ScheduleTable& table, const sim::ActivationLimit& limit) {
  const bool with_limit = !limit.none();
  std::string out = fmt::format("{:<18}{:>3}{:>12}{:>8}{:>7}{:>12}{:>12}{:>9}{:>10}{:>12}{}\n",
                                "schedule", "v", "one step", "gap", "idle", "back to", "W placed",
                                "most", "messages", "weights", with_limit ? "  fits" : "");
  out += fmt::format("{:<18}{:>3}{:>12}{:>8}{:>7}{:>12}{:>12}{:>9}\n", "", "", "", "", "", "back",
                     "", "held");
  for (const sim::ScheduleRow& row : table.rows) {
    const bool placed = row.placed_period_s < row.result.period_s * (1 - 1e-9);
    out += fmt::format(
        "{:<18}{:>3}{:>12}{:>6.1f} %{:>5.1f} %{:>12}{:>12}{:>9}{:>10}{:>12}{}\n", row.name,
        row.chunks, FormatSeconds(row.result.makespan_s), 100 * row.gap(),
        100 * row.result.bubble_ratio, FormatSeconds(row.result.period_s),
        placed ? FormatSeconds(row.placed_period_s) : "",
        limit.in_bytes() ? FormatBytes(row.worst_peak) : fmt::format("{:.4g}", row.worst_peak),
        row.result.messages,
        row.forward_only         ? "forward"
        : row.weight_copies == 1 ? ""
                                 : "twice",
        with_limit ? row.fits ? "  yes" : "  no" : "");
  }
  for (const sim::SkippedSchedule& skipped : table.skipped)
    out += fmt::format("{:<18}left out: {}\n", skipped.name, skipped.why);
  return out + "\n" + table.advice + "\n";
}

Json TableJson(const sim::ScheduleTable& table, int ranks, int micro_batches) {
  Json rows = Json::array();
  for (const sim::ScheduleRow& row : table.rows) {
    Schedule header;
    header.name = row.name;
    header.micro_batches = micro_batches;
    header.placement = schedule::Placement::Loop(ranks, row.chunks);
    Json one = SimJson(header, row.result);
    one["schedule"].erase("placement");
    one["schedule"].erase("stages");
    one["schedule"].erase("lowered");
    one["peak_activations"] = row.worst_peak;
    one["weight_copies"] = row.weight_copies;
    one["forward_only"] = row.forward_only;
    one["fits"] = row.fits;
    one["weights_placed"] =
        Json{{"makespan_s", row.placed_makespan_s}, {"period_s", row.placed_period_s}};
    rows.push_back(std::move(one));
  }
  Json skipped = Json::array();
  for (const sim::SkippedSchedule& one : table.skipped)
    skipped.push_back(Json{{"name", one.name}, {"why", one.why}});
  return Json{{"rows", std::move(rows)}, {"advice", table.advice}, {"skipped", std::move(skipped)}};
}

Result<> RunAll(const Flags& flags) {
  PENSTOCK_TRY(NeedRanksAndMicroBatches(flags.schedule));
  PENSTOCK_TRY_ASSIGN(const cost::CostSource costs, LoadCosts(flags.cost));
  sim::CompareOptions options;
  options.ranks = *flags.schedule.ranks;
  options.micro_batches = *flags.schedule.micro_batches;
  options.chunks = flags.schedule.chunks.value_or(0);
  options.barrier = flags.barrier;
  PENSTOCK_TRY_ASSIGN(options.activation_limit, LoadLimit(flags.limit, costs, options.ranks));
  PENSTOCK_TRY_ASSIGN(const sim::ScheduleTable table, sim::CompareSchedules(costs, options));
  if (flags.common.json) {
    PrintJson(TableJson(table, options.ranks, options.micro_batches));
  } else {
    fmt::print("{}", TableText(table, options.activation_limit));
  }
  return {};
}

Result<> WriteFiles(const Flags& flags, const Schedule& schedule, const cost::CostModel& costs,
                    const trace::Timeline& timeline) {
  if (!flags.output.empty())
    PENSTOCK_TRY(WriteFileAtomically(flags.output, schedule::WriteNative(schedule)));
  if (!flags.trace.empty())
    PENSTOCK_TRY(trace::WriteChromeTraceFile(timeline, flags.trace));
  if (!flags.svg.empty()) {
    PENSTOCK_TRY_ASSIGN(const std::string svg, DrawSvg(timeline, schedule, costs, flags.picture));
    PENSTOCK_TRY(WriteFileAtomically(flags.svg, svg));
  }
  return {};
}

std::string TrafficText(const sim::HopReport& report) {
  auto bytes = [](int64_t count) { return FormatBytes(static_cast<double>(count)); };
  std::string out = fmt::format(
      "sent between ranks per micro-batch: {} forward, {} backward; over one hop at most {} and "
      "{}\n",
      bytes(report.forward_bytes), bytes(report.backward_bytes),
      bytes(report.peak_hop_forward_bytes), bytes(report.peak_hop_backward_bytes));
  out += "values of earlier stages held at once, at most, per rank:";
  constexpr size_t kShown = 64;
  for (size_t r = 0; r < std::min(kShown, report.peak_value_bytes.size()); ++r)
    out += fmt::format("{} {}", r == 0 ? "" : ",", bytes(report.peak_value_bytes[r]));
  return out + (report.peak_value_bytes.size() > kShown ? " ...\n" : "\n");
}

// A line per hop, as the chart under an SVG has a bar.
std::string HopsText(const sim::HopReport& report) {
  constexpr size_t kShown = 40;
  std::string out = fmt::format("{:<16}{:<16}{:>12}{:>12}  long values\n", "ranks", "stages",
                                "forward", "backward");
  for (size_t i = 0; i < std::min(kShown, report.hops.size()); ++i) {
    const sim::Hop& hop = report.hops[i];
    constexpr size_t kNames = 6;
    const size_t named = std::min(kNames, hop.values.size());
    std::string names = fmt::format(
        "{}", fmt::join(hop.values.begin(), hop.values.begin() + static_cast<long>(named), " "));
    if (named < hop.values.size())
      names += fmt::format(" and {} more", hop.values.size() - named);
    out += fmt::format(
        "{:<16}{:<16}{:>12}{:>12}{}{}\n", fmt::format("{} to {}", hop.from_rank, hop.to_rank),
        fmt::format("{} to {}", hop.from_stage, hop.to_stage),
        FormatBytes(static_cast<double>(hop.forward_bytes)),
        FormatBytes(static_cast<double>(hop.backward_bytes)), names.empty() ? "" : "  ", names);
  }
  if (report.hops.size() > kShown)
    out += fmt::format("... and {} hops more (--json has all)\n", report.hops.size() - kShown);
  return out;
}

Result<> RunOne(const Flags& flags) {
  PENSTOCK_TRY_ASSIGN(const schedule::Transport transport,
                      schedule::ParseTransport(flags.transport.kind, flags.transport.credits));
  PENSTOCK_TRY_ASSIGN(Schedule schedule, LoadSchedule(flags.schedule, transport));
  PENSTOCK_TRY_ASSIGN(const cost::CostSource source, LoadCosts(flags.cost));
  PENSTOCK_TRY_ASSIGN(const cost::CostModel costs, source.For(schedule));
  sim::SimOptions options;
  PENSTOCK_TRY_ASSIGN(const sim::ActivationLimit limit,
                      LoadLimit(flags.limit, source, schedule.num_ranks()));
  options.activation_limit = limit.ExactShares();
  if (flags.place_weights) {
    PENSTOCK_TRY_ASSIGN(sim::PlacementOfWeights placed, sim::PlaceWeights(schedule, costs, limit));
    schedule = std::move(placed.schedule);
  }
  if (flags.lowered && !schedule.lowered) {
    schedule::LowerOptions lower;
    lower.credits = transport.credits;
    lower.rendezvous = transport.kind == schedule::TransportKind::kRendezvous;
    if (!costs.links.empty()) {
      lower.route = schedule::LongRoute::kCheapest;
      lower.link_seconds = cost::LinkSecondsOf(costs);
    }
    PENSTOCK_TRY_ASSIGN(schedule, schedule::AddCommunication(schedule, lower));
  }
  options.transport = transport;
  options.barrier = flags.barrier;
  options.steps = flags.steps;
  options.timeline =
      flags.draw || flags.critical_path || !flags.trace.empty() || !flags.svg.empty();
  PENSTOCK_TRY_ASSIGN(sim::SimResult result, sim::Simulate(schedule, costs, options));
  if (result.timeline)
    AddCounters(*result.timeline, schedule, costs);
  std::string grid;
  if (flags.draw && !flags.common.json) {
    PENSTOCK_TRY_ASSIGN(grid, DrawGrid(*result.timeline, schedule, flags.picture));
  }
  PENSTOCK_TRY(WriteFiles(flags, schedule, costs, result.timeline.value_or(trace::Timeline())));
  std::optional<sim::HopReport> hops;
  if (schedule.lowered || !schedule.edges.empty()) {
    PENSTOCK_TRY_ASSIGN(hops, sim::MeasureHops(schedule, costs));
  }
  std::vector<trace::PathStep> path;
  if (flags.critical_path)
    path = trace::CriticalPath(*result.timeline);
  if (flags.common.json) {
    Json json = SimJson(schedule, result);
    json["steps"] = Json{{"count", flags.steps}, {"end_s", result.step_end_s}};
    if (!limit.none())
      json["fits"] = limit.Allows(result);
    if (flags.critical_path)
      json["critical_path"] = trace::CriticalPathJson(*result.timeline, path);
    if (hops)
      json["traffic"] = sim::HopReportJson(*hops);
    PrintJson(json);
    return {};
  }
  fmt::print("{}", SimText(schedule, result));
  if (!limit.none() && !limit.Allows(result))
    fmt::print("\nabove the activation limit\n");
  if (flags.steps > 1)
    fmt::print("\n{} steps end after {}\n", flags.steps, FormatSeconds(result.step_end_s.back()));
  if (hops && !schedule.edges.empty())
    fmt::print("\n{}", TrafficText(*hops));
  if (flags.critical_path) {
    constexpr size_t kMostOnPath = 200;
    fmt::print("\ncritical path: {}\n{}", trace::CriticalPathSummary(path),
               trace::CriticalPathChain(*result.timeline, path,
                                        static_cast<size_t>(TerminalWidth()), kMostOnPath));
  }
  if (flags.draw)
    fmt::print("\n{}", grid);
  if (flags.draw && hops && hops->forward_bytes + hops->backward_bytes > 0)
    fmt::print("\nbytes per hop of one micro-batch\n{}", HopsText(*hops));
  return {};
}

// Flags that would have no effect are refused, not passed over.
Result<> CheckFlags(const Verb& verb, const Flags& flags) {
  if (flags.all == !flags.schedule.target.empty()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[cli.sim] wanted either a schedule (a file or a name) or --all");
  }
  for (const char* of_one :
       {"--slices", "--lowered", "--place-weights", "--transport", "--credits", "--steps", "--draw",
        "--critical-path", "--from", "--to", "--svg", "--trace", "--output"}) {
    if (flags.all && verb.Count(of_one) > 0) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "[cli.sim] {} with --all, wanted one schedule (a file or a name) for it",
                       of_one);
    }
  }
  const bool part = verb.Count("--from") + verb.Count("--to") > 0;
  if (part && !flags.draw && flags.svg.empty()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[cli.sim] {} chooses a part of a picture, wanted --draw or --svg with it",
                     verb.Count("--from") > 0 ? "--from" : "--to");
  }
  return {};
}

Result<> Run(const Verb& verb, const Flags& flags) {
  PENSTOCK_TRY(CheckFlags(verb, flags));
  return flags.all ? RunAll(flags) : RunOne(flags);
}

}  // namespace

void AddSim(Verb& app, int& status) {
  Verb* verb = app.AddVerb("sim", "Simulate a schedule, or compare all of them");
  auto flags = std::make_shared<Flags>();
  AddCommonFlags(*verb, flags->common);
  AddScheduleFlags(*verb, flags->schedule, false);
  verb->AddFlag("--all", flags->all, "One row per generator, and which one to take");
  verb->AddFlag("--lowered", flags->lowered, "Add SEND and RECV first");
  verb->AddFlag("--place-weights", flags->place_weights,
                "Move each W to where these costs want it");
  verb->Heading("Costs and limits");
  AddCostFlags(*verb, flags->cost);
  verb->AddOption("--activation-limit", flags->limit,
                  "Most saved activations, one number or one per rank: in micro-batches of one "
                  "rank's share, in bytes where --costs gives activation_bytes")
      ->TypeName("N");
  AddTransportFlags(*verb, flags->transport);
  verb->Heading("Steps");
  verb->AddOption("--steps", flags->steps, "Report the ends of so many steps back to back")
      ->TypeName("N")
      ->Range(1, 1'000'000);
  verb->AddFlag("--barrier", flags->barrier, "All ranks start each step together");
  verb->Heading("Output");
  verb->AddFlag("--draw", flags->draw, "Draw the step as a text grid");
  verb->AddFlag("--critical-path", flags->critical_path, "The actions that decide the end");
  AddPictureFlags(*verb, flags->picture);
  verb->AddOption("--svg", flags->svg, "Write a picture of the step")->TypeName("FILE");
  verb->AddOption("--trace", flags->trace, "Write the step for ui.perfetto.dev")->TypeName("FILE");
  verb->AddOption("-o,--output", flags->output, "Write the simulated schedule (native form)")
      ->TypeName("FILE");
  verb->Examples({"penstock sim zb-v -p 4 -m 8 --cost F=1,I=1,W=1,C=0.1 --draw",
                  "penstock sim --all -p 8 -m 32 --cost F=1,I=1.2,W=0.7 --activation-limit 8"});
  verb->Callback([flags, verb, &status] {
    const Result<> result = Run(*verb, *flags);
    status = result.ok() ? 0 : Fail(*verb, result.error());
  });
}

}  // namespace penstock::cli
