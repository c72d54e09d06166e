// penstock check FILE: proves a schedule file, or refuses it and says where.

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/units.h"
#include "cli/schedule_input.h"
#include "cli/verb.h"
#include "cli/verbs.h"
#include "cost/cost_model.h"
#include "schedule/text/text.h"
#include "schedule/transport.h"
#include "schedule/validate.h"

namespace penstock::cli {
namespace {

using schedule::Problem;
using schedule::ProblemKind;
using schedule::Schedule;

struct Flags {
  CommonFlags common;
  std::string file;
  std::optional<int64_t> ranks;
  std::string transport = "credits";
  int64_t credits = 1;
  std::string activation_limit;
  std::string costs;
};

Result<schedule::ValidateOptions> Options(const Flags& flags, const Schedule& s) {
  schedule::ValidateOptions options;
  if (flags.credits < 1 || flags.credits > 0x7fffffff) {
    return MakeError(ErrorCode::kInvalidArgument, "[cli.check] --credits {}, wanted at least 1",
                     flags.credits);
  }
  PENSTOCK_TRY_ASSIGN(options.transport,
                      schedule::ParseTransport(flags.transport, static_cast<int>(flags.credits)));
  cost::CostSource costs;
  if (!flags.costs.empty()) {
    PENSTOCK_TRY_ASSIGN(costs.file, cost::ReadCostFile(flags.costs));
  }
  PENSTOCK_TRY_ASSIGN(const sim::ActivationLimit limit,
                      LoadLimit(flags.activation_limit, costs, s.num_ranks()));
  options.activation_limit = limit.amounts();
  if (costs.file) {
    PENSTOCK_TRY_ASSIGN(const cost::CostModel model, cost::FitCosts(*costs.file, s));
    for (const cost::StageCost& stage : model.stages) {
      if (limit.in_bytes()) {
        options.activation_bytes.push_back(static_cast<double>(stage.activation_bytes));
      }
    }
  }
  return options;
}

Json ErrorJson(const Problem& problem) {
  auto or_null = [](int value) { return value >= 0 ? Json(value) : Json(nullptr); };
  return {{"kind", schedule::ProblemKindText(problem.kind)},
          {"rank", or_null(problem.rank)},
          {"position", or_null(problem.position)},
          {"action", problem.action.empty() ? Json(nullptr) : Json(problem.action)},
          {"message", problem.message}};
}

Json ReportJson(const schedule::ScheduleText& read, const schedule::Report& report,
                std::optional<bool> rendezvous) {
  const Schedule& s = read.schedule;
  Json errors = Json::array();
  for (const Problem& problem : report.problems)
    errors.push_back(ErrorJson(problem));
  Json json = {{"ok", report.ok()},
               {"dialect", schedule::DialectText(read.dialect)},
               {"p", s.num_ranks()},
               {"stages", s.num_stages()},
               {"m", s.micro_batches},
               {"v", s.chunks()},
               {"actions", s.CountActions()},
               {"lowered", s.lowered},
               {"rendezvous", rendezvous ? Json(*rendezvous) : Json(nullptr)},
               {"makespan_slots", report.makespan_slots},
               {"peak_activations", report.peak_activations},
               {"errors", std::move(errors)},
               {"error_count", report.problem_count},
               {"name", s.name},
               {"placement", schedule::PlacementKindText(s.placement.kind())},
               {"slices", s.slices},
               {"steps", s.steps},
               {"held_gradients", report.held_gradients}};
  if (!report.peak_bytes.empty())
    json["peak_bytes"] = report.peak_bytes;
  return json;
}

// A file that can't be read: the place as row and column, of a CSV also as rank and cell.
Json UnreadableJson(const Error& error, const schedule::TextPlace& place) {
  Problem problem;
  problem.kind = ProblemKind::kParse;
  if (place.cells) {
    problem.rank = place.row - 1;
    problem.position = place.column - 1;
  }
  problem.message = error.message;
  Json json = ErrorJson(problem);
  json["row"] = place.row > 0 ? Json(place.row) : Json(nullptr);
  json["column"] = place.column > 0 ? Json(place.column) : Json(nullptr);
  return {{"ok", false},
          {"dialect", nullptr},
          {"p", nullptr},
          {"stages", nullptr},
          {"m", nullptr},
          {"v", nullptr},
          {"actions", nullptr},
          {"lowered", nullptr},
          {"makespan_slots", nullptr},
          {"peak_activations", Json::array()},
          {"errors", Json::array({std::move(json)})}};
}

// Would a schedule that is legal under `options` run under rendezvous too? Nothing where it has no
// messages. A second proof.
std::optional<bool> RunsUnderRendezvous(const Schedule& s, schedule::ValidateOptions options) {
  if (!s.lowered)
    return std::nullopt;
  if (options.transport.kind == schedule::TransportKind::kRendezvous)
    return true;
  options.transport.kind = schedule::TransportKind::kRendezvous;
  options.max_problems = 0;
  return schedule::Validate(s, options).ok();
}

void PrintGood(const schedule::ScheduleText& read, const schedule::Report& report,
               const Flags& flags, std::optional<bool> rendezvous) {
  const Schedule& s = read.schedule;
  auto counted = [](int64_t count, std::string_view one, std::string_view many) {
    return fmt::format("{} {}", FormatCount(count), count == 1 ? one : many);
  };
  fmt::print("{} is legal: {}, {} ({} placement), {}, {}, {}\n", s.name,
             counted(s.num_ranks(), "rank", "ranks"), counted(s.num_stages(), "stage", "stages"),
             schedule::PlacementKindText(s.placement.kind()),
             counted(s.micro_batches, "micro-batch", "micro-batches"),
             counted(s.CountActions(), "action", "actions"),
             s.lowered
                 ? fmt::format("lowered; no deadlock under {}{}", flags.transport,
                               flags.transport == "credits"
                                   ? fmt::format(" ({} per edge and direction)", flags.credits)
                                   : "")
                 : std::string("compute-only"));
  if (rendezvous && flags.transport != "rendezvous") {
    fmt::print("{}\n", *rendezvous
                           ? "nor under rendezvous"
                           : "it would stand still under rendezvous; `penstock schedule FILE "
                             "--lowered --rendezvous` puts its messages in another order");
  }
  constexpr size_t kShown = 64;
  std::string peaks;
  for (size_t r = 0; r < std::min(kShown, report.peak_activations.size()); ++r)
    peaks += fmt::format(" {:g}", report.peak_activations[r]);
  fmt::print("peak activations per rank, in micro-batches of one rank's share:{}{}\n", peaks,
             report.peak_activations.size() > kShown ? " ..." : "");
  int64_t held = 0;
  for (const int64_t count : report.held_gradients)
    held += count;
  if (held > 0)
    fmt::print("weight gradients that come early and are held back: {}\n", held);
}

int Run(const Verb& verb, const Flags& flags) {
  schedule::TextPlace place;
  const auto read = schedule::ReadScheduleFile(flags.file, &place);
  if (!read.ok()) {
    if (flags.common.json)
      PrintJson(UnreadableJson(read.error(), place));
    return Fail(verb, read.error());
  }
  const Schedule& s = read->schedule;
  const auto options = Options(flags, s);
  if (!options.ok())
    return Fail(verb, options.error());
  schedule::Report report = schedule::Validate(s, options.value());
  if (flags.ranks && *flags.ranks != s.num_ranks()) {
    ++report.problem_count;
    Problem problem;
    problem.kind = ProblemKind::kShape;
    problem.message = fmt::format("{} in the file, wanted {} as -p says",
                                  Counted(s.num_ranks(), "rank"), *flags.ranks);
    report.problems.insert(report.problems.begin(), problem);
  }
  const std::optional<bool> rendezvous =
      report.ok() ? RunsUnderRendezvous(s, options.value()) : std::nullopt;
  if (flags.common.json) {
    PrintJson(ReportJson(read.value(), report, rendezvous));
  } else if (report.ok()) {
    PrintGood(read.value(), report, flags, rendezvous);
  }
  if (!report.ok()) {
    fmt::print(stderr, "penstock check: {}: {} problem{}\n{}", TerminalText(flags.file),
               report.problem_count, report.problem_count == 1 ? "" : "s",
               schedule::FormatProblems(s, report));
  }
  return report.ok() ? 0 : 1;
}

}  // namespace

void AddCheck(Verb& app, int& status) {
  Verb* verb = app.AddVerb(
      "check",
      "Prove that a schedule file is complete, ordered, free of deadlock and within memory");
  auto flags = std::make_shared<Flags>();
  AddCommonFlags(*verb, flags->common);
  verb->AddOption("file", flags->file, "Native schedule or PyTorch CSV of any dialect")
      ->Required()
      ->TypeName("FILE");
  verb->AddOption("-p,--ranks", flags->ranks, "The file must have this many ranks")
      ->Positive()
      ->TypeName("P");
  verb->AddOption("--transport", flags->transport,
                  "Of lowered files: posted, buffered, credits or rendezvous")
      ->TypeName("KIND")
      ->ShowDefault();
  verb->AddOption("--credits", flags->credits, "Undelivered messages per edge and direction")
      ->TypeName("K")
      ->ShowDefault();
  verb->AddOption("--activation-limit", flags->activation_limit,
                  "Most saved activations: N for all ranks or N,N,... one per rank, in "
                  "micro-batches of one rank's share (bytes with --costs)")
      ->TypeName("N");
  verb->AddOption("--costs", flags->costs,
                  "Costs file (TOML): count activations in bytes; its memory_bytes are the limit")
      ->TypeName("FILE");
  verb->Remark("Exit status 0: legal, 1: refused, 2: can't be read.");
  verb->Examples({"penstock schedule zb-h1 -p 4 -m 8 --lowered -o zb.schedule",
                  "penstock check zb.schedule --activation-limit 4"});
  verb->Callback([verb, flags, &status] { status = Run(*verb, *flags); });
}

}  // namespace penstock::cli
