// penstock optimize: searches for a better order under given costs and a memory limit.

#include <fmt/core.h>

#include <memory>
#include <string>

#include "base/file.h"
#include "base/json.h"
#include "base/units.h"
#include "cli/schedule_input.h"
#include "cli/schedule_pictures.h"
#include "cli/verb.h"
#include "cli/verbs.h"
#include "schedule/text/text.h"
#include "schedule/validate.h"
#include "sim/optimize.h"

namespace penstock::cli {
namespace {

struct Flags {
  CommonFlags common;
  std::optional<int> ranks;
  std::optional<int> micro_batches;
  std::optional<int> chunks;
  CostFlags cost;
  PictureFlags picture;
  std::string limit;
  std::string output;
  std::string objective = "makespan";
  int evaluations = 200000;
  uint64_t seed = 1;
  bool draw = false;
};

Result<> Run(const Flags& flags) {
  ScheduleFlags numbers;
  numbers.ranks = flags.ranks;
  numbers.micro_batches = flags.micro_batches;
  numbers.chunks = flags.chunks;
  PENSTOCK_TRY(NeedRanksAndMicroBatches(numbers));
  if (flags.cost.cost.empty() && flags.cost.costs.empty()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[cli.optimize] no costs, wanted --cost F=1,I=1,W=1,C=0 or --costs FILE");
  }
  if ((flags.picture.from_s > 0 || flags.picture.to_s >= 0) && !flags.draw) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        "[cli.optimize] --from and --to choose a part of a picture, wanted --draw with "
        "them");
  }
  PENSTOCK_TRY_ASSIGN(const cost::CostSource costs, LoadCosts(flags.cost));
  sim::OptimizeOptions options;
  options.ranks = *flags.ranks;
  options.micro_batches = *flags.micro_batches;
  options.chunks = flags.chunks.value_or(0);
  options.period = flags.objective == "period";
  options.evaluations = flags.evaluations;
  options.seed = flags.seed;
  PENSTOCK_TRY_ASSIGN(options.activation_limit, LoadLimit(flags.limit, costs, options.ranks));
  PENSTOCK_TRY_ASSIGN(const sim::Optimized best, sim::Optimize(costs, options));
  PENSTOCK_TRY(schedule::Prove(best.schedule));
  if (!flags.output.empty())
    PENSTOCK_TRY(WriteFileAtomically(flags.output, schedule::WriteNative(best.schedule)));
  if (flags.common.json) {
    Json json = SimJson(best.schedule, best.result);
    json["gap"] = best.gap;
    json["objective"] = flags.objective;
    json["start"] = best.start;
    json["candidates"] = best.candidates;
    json["simulations"] = best.simulations;
    PrintJson(json);
    return {};
  }
  fmt::print("{}\n", SimText(best.schedule, best.result));
  fmt::print("gap to the lower bound {:.2f} %; from {}; {} candidates, {} simulations\n",
             100 * best.gap, best.start, best.candidates, FormatCount(best.simulations));
  if (flags.draw) {
    PENSTOCK_TRY_ASSIGN(const std::string grid,
                        RenderSchedule(best.schedule, "grid", costs, flags.picture));
    fmt::print("\n{}", grid);
  }
  return {};
}

}  // namespace

void AddOptimize(Verb& app, int& status) {
  Verb* verb =
      app.AddVerb("optimize", "Search for a better schedule under costs and a memory limit");
  auto flags = std::make_shared<Flags>();
  AddCommonFlags(*verb, flags->common);
  verb->AddOption("-p,--ranks", flags->ranks, "Ranks")->TypeName("P");
  verb->AddOption("-m,--micro-batches", flags->micro_batches, "Micro-batches of one step")
      ->TypeName("M");
  verb->AddOption("-v,--chunks", flags->chunks, "Stages per rank (default: 1 and 2 are tried)")
      ->TypeName("V");
  verb->Heading("Costs and limits");
  AddCostFlags(*verb, flags->cost);
  verb->AddOption("--activation-limit", flags->limit,
                  "Most saved activations, one number or one per rank: in micro-batches of one "
                  "rank's share, in bytes where --costs gives activation_bytes")
      ->TypeName("N");
  verb->Heading("Search");
  verb->AddOption("--objective", flags->objective,
                  "makespan: one step alone; period: per step back to back without a barrier")
      ->TypeName("WHAT")
      ->OneOf({"makespan", "period"})
      ->ShowDefault();
  verb->AddOption("--evaluations", flags->evaluations,
                  "Moves that the search tries from each start")
      ->TypeName("N")
      ->Range(0, 10'000'000)
      ->ShowDefault();
  verb->AddOption("--seed", flags->seed, "Of the local search")->TypeName("S")->ShowDefault();
  verb->Heading("Output");
  verb->AddFlag("--draw", flags->draw, "Draw the step as a text grid");
  AddPictureFlags(*verb, flags->picture);
  verb->AddOption("-o,--output", flags->output, "Write the schedule (native form)")
      ->TypeName("FILE");
  verb->Examples(
      {"penstock optimize -p 4 -m 8 --cost F=1,I=1.2,W=0.7,C=0.1 --activation-limit 4 -o best"});
  verb->Callback([flags, verb, &status] {
    const Result<> result = Run(*flags);
    status = result.ok() ? 0 : Fail(*verb, result.error());
  });
}

}  // namespace penstock::cli
