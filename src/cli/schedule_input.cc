#include "cli/schedule_input.h"

#include <fmt/core.h>

#include <charconv>

#include "base/file.h"
#include "base/json.h"
#include "base/units.h"
#include "schedule/registry.h"
#include "schedule/text/text.h"
#include "schedule/validate.h"
#include "trace/bubble.h"

namespace penstock::cli {

using schedule::Schedule;

void AddScheduleFlags(Verb& verb, ScheduleFlags& flags, bool target_required) {
  Flag* target =
      verb.AddOption("schedule", flags.target,
                     "A schedule file (native or PyTorch CSV), or a generator's name such as 1f1b "
                     "(`penstock schedule --list`)")
          ->TypeName("FILE|NAME");
  if (target_required)
    target->Required();
  verb.AddOption("-p,--ranks", flags.ranks, "Ranks")->TypeName("P");
  verb.AddOption("-m,--micro-batches", flags.micro_batches, "Micro-batches of one step")
      ->TypeName("M");
  verb.AddOption("-v,--chunks", flags.chunks,
                 "Stages per rank, where the schedule takes any (default: the schedule's)")
      ->TypeName("V");
  verb.AddOption("--slices", flags.slices,
                 "Sequence slices per micro-batch (sliced-1f1b; default 2)")
      ->TypeName("K");
}

Result<> NeedRanksAndMicroBatches(const ScheduleFlags& flags) {
  for (const auto& [flag, value] :
       {std::pair("-p", flags.ranks), std::pair("-m", flags.micro_batches)}) {
    if (!value) {
      return MakeError(ErrorCode::kInvalidArgument, "[cli.schedule] {} is missing, wanted a number",
                       flag);
    }
  }
  for (const auto& [flag, value] :
       {std::pair("-p", flags.ranks), std::pair("-m", flags.micro_batches),
        std::pair("-v", flags.chunks), std::pair("--slices", flags.slices)}) {
    if (value && *value < 1) {
      return MakeError(ErrorCode::kInvalidArgument, "[cli.schedule] {} {}, wanted at least 1", flag,
                       *value);
    }
  }
  return {};
}

namespace {

Result<> Contradiction(const char* flag, std::optional<int> wanted, int got) {
  if (!wanted || *wanted == got)
    return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   "[cli.schedule] {} {} contradicts the file, which has {}", flag, *wanted, got);
}

Result<Schedule> LoadFile(const ScheduleFlags& flags, const schedule::Transport& transport) {
  PENSTOCK_TRY_ASSIGN(schedule::ScheduleText text, schedule::ReadScheduleFile(flags.target));
  PENSTOCK_TRY(Contradiction("-p", flags.ranks, text.schedule.num_ranks()));
  PENSTOCK_TRY(Contradiction("-m", flags.micro_batches, text.schedule.micro_batches));
  PENSTOCK_TRY(Contradiction("-v", flags.chunks, text.schedule.chunks()));
  PENSTOCK_TRY(Contradiction("--slices", flags.slices, text.schedule.slices));
  schedule::ValidateOptions options;
  options.transport = transport;
  PENSTOCK_TRY(schedule::Prove(text.schedule, options));
  return std::move(text.schedule);
}

}  // namespace

Result<Schedule> LoadSchedule(const ScheduleFlags& flags, const schedule::Transport& transport) {
  if (schedule::FindGenerator(flags.target) == nullptr && FileExists(flags.target))
    return LoadFile(flags, transport);
  if (schedule::FindGenerator(flags.target) == nullptr) {
    std::vector<std::string_view> names;
    for (const schedule::GeneratorInfo& info : schedule::Generators())
      names.push_back(info.name);
    const std::string near = NearestName(flags.target, names);
    return MakeError(ErrorCode::kNotFound,
                     "[cli.schedule] '{}' is neither a file nor a schedule's name{}", flags.target,
                     near.empty() ? std::string("; `penstock schedule --list` lists them")
                                  : fmt::format(", did you mean {}?", near));
  }
  PENSTOCK_TRY(NeedRanksAndMicroBatches(flags));
  return schedule::Generate(flags.target, {*flags.ranks, *flags.micro_batches,
                                           flags.chunks.value_or(0), flags.slices.value_or(0)});
}

void AddCostFlags(Verb& verb, CostFlags& flags) {
  Flag* cost = verb.AddOption(
      "--cost", flags.cost,
      "Seconds of one rank's whole share for one micro-batch, F=1,I=1,W=1, and of one hop, C=0 "
      "(R: recompute; B: I and W together)");
  cost->TypeName("F=1,I=1,W=1,C=0");
  verb.AddOption("--costs", flags.costs, "Costs of stages and links, a TOML file")
      ->TypeName("FILE")
      ->Excludes(cost);
}

Result<cost::CostSource> LoadCosts(const CostFlags& flags) {
  cost::CostSource source;
  if (!flags.cost.empty()) {
    PENSTOCK_TRY_ASSIGN(source.uniform, cost::ParseUniformCost(flags.cost));
  }
  if (!flags.costs.empty()) {
    PENSTOCK_TRY_ASSIGN(source.file, cost::ReadCostFile(flags.costs));
  }
  return source;
}

void AddTransportFlags(Verb& verb, TransportFlags& flags) {
  verb.AddOption("--transport", flags.kind,
                 "How sends and receives of a lowered schedule block: posted, buffered, credits "
                 "or rendezvous")
      ->TypeName("KIND")
      ->ShowDefault();
  verb.AddOption("--credits", flags.credits,
                 "Undelivered messages per edge and direction, for --transport credits")
      ->TypeName("K")
      ->ShowDefault();
}

Result<sim::ActivationLimit> LoadLimit(const std::string& text, const cost::CostSource& costs,
                                       int ranks) {
  bool in_bytes = false;
  std::vector<double> limits;
  if (costs.file) {
    for (const cost::StageCost& stage : costs.file->model.stages)
      in_bytes = in_bytes || stage.activation_bytes > 0;
    for (const int64_t bytes : costs.file->model.memory_bytes)
      limits.push_back(static_cast<double>(bytes));
    if (!in_bytes)
      limits.clear();
  }
  if (!text.empty())
    limits.clear();
  for (size_t at = 0; !text.empty() && at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    double limit = 0;
    const char* end = text.data() + comma;
    const auto [stop, error] = std::from_chars(text.data() + at, end, limit);
    if (error != std::errc() || stop != end || !(limit > 0) || limit > 1e18) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "[cli.schedule] --activation-limit: got '{}', wanted a number above 0, or "
                       "one per rank separated by commas",
                       text.substr(0, 80));
    }
    limits.push_back(limit);
    at = comma + 1;
  }
  return sim::ActivationLimit::Make(std::move(limits), ranks, in_bytes);
}

Json SimJson(const Schedule& schedule, const sim::SimResult& result) {
  Json ranks = Json::array();
  for (const sim::RankResult& rank : result.ranks) {
    Json one{{"busy_s", rank.busy_s},
             {"bubble", trace::BubbleJson(rank.bubble)},
             {"peak_activations", rank.peak_activations}};
    if (rank.peak_activation_bytes > 0)
      one["peak_activation_bytes"] = rank.peak_activation_bytes;
    ranks.push_back(std::move(one));
  }
  const double gap = result.lower_bound_s > 0 ? result.makespan_s / result.lower_bound_s - 1 : 0.0;
  return Json{{"makespan_s", result.makespan_s},
              {"period_s", result.period_s},
              {"period_exact", result.period_exact},
              {"bubble_ratio", result.bubble_ratio},
              {"lower_bound_s", result.lower_bound_s},
              {"period_lower_bound_s", result.period_lower_bound_s},
              {"gap", gap},
              {"messages", result.messages},
              {"message_bytes", result.message_bytes},
              {"actions", result.actions},
              {"ranks", std::move(ranks)},
              {"schedule",
               {{"name", schedule.name},
                {"p", schedule.num_ranks()},
                {"m", schedule.micro_batches},
                {"v", schedule.chunks()},
                {"stages", schedule.num_stages()},
                {"placement", schedule::PlacementKindText(schedule.placement.kind())},
                {"lowered", schedule.lowered}}}};
}

std::string SimText(const Schedule& schedule, const sim::SimResult& result) {
  std::string out = fmt::format("{}  p = {}, m = {}, v = {}, {} actions{}\n", schedule.name,
                                schedule.num_ranks(), schedule.micro_batches, schedule.chunks(),
                                FormatCount(result.actions), schedule.lowered ? ", lowered" : "");
  const std::string alone =
      schedule.steps == 1 ? "one step" : fmt::format("{} steps", schedule.steps);
  out += fmt::format("{:<14}{:>12}   lower bound {}\n", alone, FormatSeconds(result.makespan_s),
                     FormatSeconds(result.lower_bound_s));
  out += fmt::format("back to back  {:>12}   lower bound {}{}\n", FormatSeconds(result.period_s),
                     FormatSeconds(result.period_lower_bound_s),
                     result.period_exact ? "" : " (not settled: mean of the later half)");
  out += fmt::format("idle          {:>10.1f} %   of {}, {} messages\n", 100 * result.bubble_ratio,
                     alone, FormatCount(result.messages));
  out += fmt::format("\n{:>5}{:>10}{:>10}{:>10}{:>11}{:>10}{:>10}{:>13}\n", "rank", "busy", "fill",
                     "drain", "imbalance", "messages", "barrier", "activations");
  for (size_t r = 0; r < result.ranks.size(); ++r) {
    const sim::RankResult& rank = result.ranks[r];
    out += fmt::format("{:>5}{:>10}{:>10}{:>10}{:>11}{:>10}{:>10}{:>13}\n", r,
                       FormatSeconds(rank.busy_s), FormatSeconds(rank.bubble.fill_s),
                       FormatSeconds(rank.bubble.drain_s), FormatSeconds(rank.bubble.imbalance_s),
                       FormatSeconds(rank.bubble.communication_s),
                       FormatSeconds(rank.bubble.barrier_s),
                       rank.peak_activation_bytes > 0
                           ? FormatBytes(static_cast<double>(rank.peak_activation_bytes))
                           : fmt::format("{:.4g}", rank.peak_activations));
  }
  return out;
}

}  // namespace penstock::cli
