// penstock schedule NAME | FILE: makes a schedule, changes it by passes, writes it in a form of
// choice.

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "base/units.h"
#include "cli/schedule_input.h"
#include "cli/schedule_pictures.h"
#include "cli/verb.h"
#include "cli/verbs.h"
#include "schedule/grid.h"
#include "schedule/layout.h"
#include "schedule/passes.h"
#include "schedule/registry.h"
#include "schedule/text/text.h"

namespace penstock::cli {
namespace {

using schedule::Schedule;

struct Flags {
  CommonFlags common;
  std::string source;  // NAME or FILE
  std::optional<int64_t> ranks;
  std::optional<int64_t> micro_batches;
  std::optional<int64_t> chunks;
  std::optional<int64_t> slices;
  bool split = false;
  bool recompute = false;
  bool step_end = false;
  int64_t steps = 1;
  bool barrier = false;
  bool lowered = false;
  int64_t credits = 1;
  bool other_credits = false;  // --credits is there
  bool rendezvous = false;
  std::string format = "native";
  std::string dialect;
  std::optional<std::string> layout;
  bool list = false;
  std::string output;
  CostFlags costs;
  PictureFlags picture;
};

constexpr int64_t kMostActions = int64_t{1} << 26;

Result<int> Count(const std::optional<int64_t>& value, std::string_view flag, int64_t high) {
  if (!value || *value < 1 || *value > high) {
    return MakeError(ErrorCode::kInvalidArgument, "[cli.schedule] {} {}, wanted 1 to {}", flag,
                     value ? fmt::format("{}", *value) : "is missing", high);
  }
  return static_cast<int>(*value);
}

// 0 where the flag is not given.
Result<int> CountOrDefault(const std::optional<int64_t>& value, std::string_view flag,
                           int64_t high) {
  if (!value)
    return 0;
  return Count(value, flag, high);
}

Result<Schedule> FromGenerator(const Flags& flags) {
  constexpr int64_t kMost = 0x7fffffff;
  schedule::GeneratorOptions options;
  PENSTOCK_TRY_ASSIGN(options.ranks, Count(flags.ranks, "-p", kMost));
  PENSTOCK_TRY_ASSIGN(options.micro_batches, Count(flags.micro_batches, "-m", kMost));
  PENSTOCK_TRY_ASSIGN(options.chunks, CountOrDefault(flags.chunks, "-v", kMost));
  PENSTOCK_TRY_ASSIGN(options.slices, CountOrDefault(flags.slices, "--slices", kMost));
  return schedule::Generate(flags.source, options);
}

Result<Schedule> FromSource(const Flags& flags) {
  if (flags.source.empty()) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        "[cli.schedule] no schedule, wanted NAME or FILE\n`penstock schedule --list` names them");
  }
  const bool known = schedule::FindGenerator(flags.source) != nullptr;
  const bool names_a_file =
      FileExists(flags.source) || flags.source.find_first_of("./") != std::string::npos;
  if (known || !names_a_file)
    return FromGenerator(flags);
  if (flags.ranks || flags.micro_batches || flags.chunks || flags.slices) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        "[cli.schedule] {} is a file: -p, -m, -v and --slices are in it, wanted none of them",
        flags.source);
  }
  PENSTOCK_TRY_ASSIGN(schedule::ScheduleText read, schedule::ReadScheduleFile(flags.source));
  return std::move(read.schedule);
}

Result<Schedule> ApplyPasses(const Flags& flags, Schedule s) {
  PENSTOCK_TRY_ASSIGN(const int steps, Count(flags.steps, "--steps", 0x7fffffff));
  PENSTOCK_TRY_ASSIGN(const int credits, Count(flags.credits, "--credits", 0x7fffffff));
  if (s.CountActions() > kMostActions / steps) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[cli.schedule] {} steps of {} actions, wanted at most {} actions in all",
                     steps, s.CountActions(), kMostActions);
  }
  if (flags.split) {
    PENSTOCK_TRY_ASSIGN(s, schedule::SplitBackward(s));
  }
  if (flags.recompute) {
    PENSTOCK_TRY_ASSIGN(s, schedule::PlaceRecompute(s));
  }
  if (flags.step_end) {
    PENSTOCK_TRY_ASSIGN(s, schedule::AddStepEnd(s));
  }
  if (steps > 1 || flags.barrier) {
    PENSTOCK_TRY_ASSIGN(s, schedule::UnrollSteps(s, steps, flags.barrier));
  }
  // Messages that are there already stay where they are, unless another order is asked for.
  if (flags.lowered && s.lowered && (flags.rendezvous || flags.other_credits)) {
    PENSTOCK_TRY_ASSIGN(s, schedule::RemoveCommunication(s));
  }
  if (flags.lowered && !s.lowered) {
    schedule::LowerOptions options;
    options.credits = credits;
    options.rendezvous = flags.rendezvous;
    PENSTOCK_TRY_ASSIGN(s, schedule::AddCommunication(s, options));
    if (!s.edges.empty()) {
      PENSTOCK_TRY_ASSIGN(s, schedule::ReleaseValues(s));
    }
  }
  return s;
}

Result<std::string> Render(const Flags& flags, const Schedule& s) {
  if (!flags.dialect.empty() && flags.format != "csv") {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[cli.schedule] --dialect with --format {}, wanted --format csv",
                     flags.format);
  }
  if (flags.format == "native")
    return schedule::WriteNative(s);
  if (flags.format == "csv") {
    PENSTOCK_TRY_ASSIGN(const schedule::Dialect dialect,
                        schedule::ParseDialect(flags.dialect.empty() ? "plain" : flags.dialect));
    return schedule::WriteCsv(s, dialect);
  }
  if (flags.format == "cells")
    return schedule::GridText(s);
  if (flags.format != "grid" && flags.format != "svg" && flags.format != "trace") {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[cli.schedule] --format {}, wanted native, csv, cells, grid, svg or trace",
                     flags.format);
  }
  PENSTOCK_TRY_ASSIGN(const cost::CostSource costs, LoadCosts(flags.costs));
  return RenderSchedule(s, flags.format, costs, flags.picture);
}

Json ToJson(const Schedule& s) {
  Json ranks = Json::array();
  for (const auto& program : s.ranks) {
    Json row = Json::array();
    for (const schedule::Action& action : program) {
      const std::string text = schedule::ActionText(action, s.edges);
      if (action.joined && !row.empty()) {
        row.back() = row.back().get<std::string>() + "&" + text;
      } else {
        row.push_back(text);
      }
    }
    ranks.push_back(std::move(row));
  }
  return Json{
      {"name", s.name},           {"p", s.num_ranks()},
      {"m", s.micro_batches},     {"v", s.chunks()},
      {"stages", s.num_stages()}, {"slices", s.slices},
      {"steps", s.steps},         {"placement", schedule::PlacementKindText(s.placement.kind())},
      {"lowered", s.lowered},     {"actions", s.CountActions()},
      {"ranks", std::move(ranks)}};
}

Result<> List(bool json) {
  Json rows = Json::array();
  for (const schedule::GeneratorInfo& info : schedule::Generators()) {
    if (json) {
      rows.push_back({{"name", info.name},
                      {"summary", info.summary},
                      {"placement", schedule::PlacementKindText(info.placement)},
                      {"v", info.default_chunks},
                      {"any_v", info.any_chunks}});
    } else {
      fmt::print("{:<17} {:<9} v = {}{}  {}\n", info.name,
                 schedule::PlacementKindText(info.placement), info.default_chunks,
                 info.any_chunks ? " or any" : "       ", info.summary);
    }
  }
  if (json)
    PrintJson({{"schedules", std::move(rows)}});
  return {};
}

Result<> ShowLayout(const Flags& flags) {
  PENSTOCK_TRY_ASSIGN(const int ranks, Count(flags.ranks, "-p", 0x7fffffff));
  PENSTOCK_TRY_ASSIGN(const auto layout, schedule::ParseLayout(*flags.layout, ranks));
  Json stages = Json::array();
  for (size_t i = 0; i < layout.size(); ++i) {
    const schedule::LayoutStage& stage = layout[i];
    if (flags.common.json) {
      stages.push_back({{"rank", stage.rank},
                        {"chunk", stage.chunk},
                        {"embedding", stage.embedding},
                        {"decoder_layers", stage.decoder_layers},
                        {"mtp_layers", stage.mtp_layers},
                        {"loss", stage.loss}});
      continue;
    }
    std::vector<std::string> parts;
    if (stage.embedding)
      parts.emplace_back("embedding");
    if (stage.decoder_layers.size() == 1) {
      parts.push_back(fmt::format("decoder layer {}", stage.decoder_layers[0]));
    } else if (!stage.decoder_layers.empty()) {
      parts.push_back(fmt::format("decoder layers {} to {}", stage.decoder_layers.front(),
                                  stage.decoder_layers.back()));
    }
    if (stage.mtp_layers > 0)
      parts.push_back(Counted(stage.mtp_layers, "multi-token-prediction layer"));
    if (stage.loss)
      parts.emplace_back("loss");
    if (parts.empty())
      parts.emplace_back("empty");
    fmt::print("stage {:>3}  rank {:>3}  chunk {:>2}  {}\n", i, stage.rank, stage.chunk,
               fmt::join(parts, ", "));
  }
  if (flags.common.json)
    PrintJson({{"stages", std::move(stages)}});
  for (const schedule::LayoutStage& stage : layout) {
    if (stage.mtp_layers > 0 && stage.chunk < layout.back().chunk) {
      fmt::print(
          stderr,
          "note: m in chunk {} of rank {}; Megatron-LM runs it only in the last chunk ({})\n",
          stage.chunk, stage.rank, layout.back().chunk);
    }
  }
  return {};
}

// Flags that would have no effect are refused, not passed over.
Result<> CheckFlags(const Verb& verb, const Flags& flags) {
  for (const char* flag : {"--rendezvous", "--credits"}) {
    if (verb.Count(flag) > 0 && !flags.lowered) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "[cli.schedule] {} orders messages, wanted --lowered with it", flag);
    }
  }
  for (const char* flag : {"--from", "--to"}) {
    if (verb.Count(flag) > 0 && flags.format != "grid" && flags.format != "svg") {
      return MakeError(ErrorCode::kInvalidArgument,
                       "[cli.schedule] {} with --format {}, wanted --format grid or svg", flag,
                       flags.format);
    }
  }
  return {};
}

Result<> Run(const Flags& flags) {
  if (flags.list)
    return List(flags.common.json);
  if (flags.layout)
    return ShowLayout(flags);
  PENSTOCK_TRY_ASSIGN(Schedule s, FromSource(flags));
  PENSTOCK_TRY_ASSIGN(s, ApplyPasses(flags, std::move(s)));
  PENSTOCK_TRY_ASSIGN(const std::string text, Render(flags, s));
  if (!flags.output.empty())
    PENSTOCK_TRY(WriteFileAtomically(flags.output, text));
  if (flags.common.json) {
    PrintJson(ToJson(s));
  } else if (flags.output.empty()) {
    std::fwrite(text.data(), 1, text.size(), stdout);
  } else {
    fmt::print(stderr, "{}: {}, {}, {}, {} actions{}\n", s.name, Counted(s.num_ranks(), "rank"),
               Counted(s.micro_batches, "micro-batch", "micro-batches"),
               Counted(s.num_stages(), "stage"), FormatCount(s.CountActions()),
               s.lowered ? ", lowered" : "");
  }
  return {};
}

}  // namespace

void AddSchedule(Verb& app, int& status) {
  Verb* verb =
      app.AddVerb("schedule", "Make a pipeline schedule, or read one, and write it as text");
  auto flags = std::make_shared<Flags>();
  AddCommonFlags(*verb, flags->common);
  verb->AddOption("schedule", flags->source,
                  "A generator's name (see --list), or a file: native or PyTorch CSV")
      ->TypeName("NAME|FILE");
  verb->AddFlag("--list", flags->list, "Name the generators");
  verb->AddOption("--layout", flags->layout,
                  "Say what a Megatron pipeline-layout string means for -p ranks")
      ->TypeName("STRING");
  verb->Heading("Size");
  verb->AddOption("-p,--ranks", flags->ranks, "Ranks")->TypeName("P");
  verb->AddOption("-m,--micro-batches", flags->micro_batches, "Micro-batches of a step")
      ->TypeName("M");
  verb->AddOption("-v,--chunks", flags->chunks, "Stages per rank (default: the generator's)")
      ->TypeName("V");
  verb->AddOption("--slices", flags->slices,
                  "Sequence slices per micro-batch (sliced-1f1b; default 2)")
      ->TypeName("K");
  verb->Heading("Passes");
  verb->AddFlag("--split", flags->split, "Split every backward into I and W");
  verb->AddFlag("--recompute", flags->recompute, "Recompute activations before every backward");
  verb->AddFlag("--step-end", flags->step_end, "Add gradient reductions and optimizer steps");
  verb->AddOption("--steps", flags->steps, "Unroll this many steps")->ShowDefault();
  verb->AddFlag("--barrier", flags->barrier, "A barrier between the steps");
  verb->AddFlag("--lowered", flags->lowered, "Add communication");
  verb->AddOption("--credits", flags->credits,
                  "Messages per edge and direction that lowering may leave undelivered")
      ->ShowDefault();
  verb->AddFlag(
      "--rendezvous", flags->rendezvous,
      "With --lowered: an order of messages without deadlock under rendezvous too, also of a "
      "file that is lowered already");
  verb->Heading("Output");
  verb->AddOption("--format", flags->format,
                  "native, csv (PyTorch), cells (in program order), or simulated: grid, svg, "
                  "trace (Chrome)")
      ->TypeName("FORM")
      ->ShowDefault();
  verb->AddOption("--dialect", flags->dialect,
                  "Of --format csv: bw (old), plain (default) or wait (since PyTorch 2.15)")
      ->TypeName("NAME");
  verb->AddOption("-o,--output", flags->output, "Write to this file")->TypeName("FILE");
  verb->Heading("Simulated forms");
  AddCostFlags(*verb, flags->costs);
  AddPictureFlags(*verb, flags->picture);
  verb->Examples({"penstock schedule zb-v -p 4 -m 8 --format grid",
                  "penstock schedule 1f1b -p 4 -m 8 --lowered --format csv -o 1f1b.csv",
                  "penstock schedule --layout 'Et*3|(tt|)*29,m|L' -p 16"});
  verb->Callback([verb, flags, &status] {
    flags->other_credits = verb->Count("--credits") > 0;
    const Result<> fits = CheckFlags(*verb, *flags);
    const Result<> result = fits.ok() ? Run(*flags) : fits;
    status = result.ok() ? 0 : Fail(*verb, result.error());
  });
}

}  // namespace penstock::cli
