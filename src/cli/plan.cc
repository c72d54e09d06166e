// penstock plan: is pipelining worth it, for this model, machine and work?

#include <fmt/core.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/config_path.h"
#include "base/file.h"
#include "cli/verb.h"
#include "cli/verbs.h"
#include "cost/profile.h"
#include "hw/system.h"
#include "model/config.h"
#include "plan/emit.h"
#include "plan/html.h"
#include "plan/inference.h"
#include "plan/report.h"
#include "plan/search.h"
#include "plan/training.h"
#include "plan/verdict.h"
#include "plan/workload.h"
#include "schedule/text/text.h"
#include "weights/model_files.h"

namespace penstock::cli {
namespace {

struct Flags {
  CommonFlags common;
  std::string model;
  std::string system;
  std::string workload = "inference";
  std::string mode;
  std::vector<std::string> sets;
  std::string fix;
  std::string html;
  std::string emit;
  std::string emit_schedule;
  int64_t devices = 8;
  int top = 10;
};

Result<cost::ModelProfile> ReadModel(const std::string& name) {
  PENSTOCK_TRY_ASSIGN(const std::string path, FindConfig("models", "json", name));
  Json config;
  if (path.ends_with(".json")) {
    PENSTOCK_TRY_ASSIGN(config, ReadJsonFile(path));
  } else {
    PENSTOCK_TRY_ASSIGN(const std::unique_ptr<weights::ModelFiles> files, weights::OpenModel(path));
    config = files->config();
  }
  PENSTOCK_TRY_ASSIGN(const model::Model model, model::BuildModel(config, path));
  PENSTOCK_TRY_ASSIGN(cost::ModelProfile profile,
                      cost::BuildProfile(model.graph, std::filesystem::path(path).stem().string(),
                                         model.config.family));
  profile.parameters_mtp = static_cast<double>(model.config.mtp_parameters);
  return profile;
}

// The best plan's schedule, in the native form.
Result<> WriteSchedule(const plan::Answer& answer, const std::string& path) {
  if (answer.search.plans.empty()) {
    return MakeError(ErrorCode::kInvalidArgument, "[cli.plan] --emit-schedule: {}",
                     answer.verdict.reason);
  }
  PENSTOCK_TRY_ASSIGN(const schedule::Schedule schedule,
                      plan::ScheduleOf(answer.search.plans[0].layout));
  return WriteFileAtomically(path, schedule::WriteNative(schedule));
}

// 0, or 1 where nothing fits.
Result<int> Plan(const Flags& flags) {
  PENSTOCK_TRY_ASSIGN(const cost::ModelProfile model, ReadModel(flags.model));
  PENSTOCK_TRY_ASSIGN(const hw::System system, hw::ReadSystem(flags.system));
  PENSTOCK_TRY_ASSIGN(const plan::Workload workload,
                      plan::ReadWorkload(flags.workload, flags.mode, flags.sets));
  const plan::Context context{&model, &system, &workload};
  plan::SearchOptions options;
  options.devices = flags.devices;
  options.top = flags.top;
  PENSTOCK_TRY_ASSIGN(options.fixed, plan::ParseFixed(flags.fix, model.decoder_layers()));
  plan::Answer answer;
  PENSTOCK_TRY_ASSIGN(answer.search, plan::Search(context, options));
  for (plan::Plan& p : answer.search.plans) {
    if (workload.mode == plan::Mode::kTraining) {
      plan::ExplainTraining(context, p);
    } else {
      plan::ExplainInference(context, p);
    }
  }
  answer.verdict = plan::Judge(context, options, answer.search);
  if (!flags.emit_schedule.empty()) {
    PENSTOCK_TRY(WriteSchedule(answer, flags.emit_schedule));
  }
  if (!flags.emit.empty()) {
    if (answer.search.plans.empty()) {
      return MakeError(ErrorCode::kInvalidArgument, "[cli.plan] --emit: {}", answer.verdict.reason);
    }
    PENSTOCK_TRY_ASSIGN(const std::string launch,
                        plan::Emit(context, answer.search.plans[0], flags.emit));
    fmt::print("{}", launch);
    return 0;
  }
  if (!flags.html.empty()) {
    PENSTOCK_TRY(WriteFileAtomically(flags.html, plan::AnswerHtml(context, answer)));
  }
  if (flags.common.json) {
    PrintJson(plan::AnswerJson(context, answer, flags.top));
  } else {
    fmt::print("{}", plan::AnswerText(context, answer, flags.top, TerminalWidth()));
  }
  return answer.search.plans.empty() ? 1 : 0;
}

}  // namespace

void AddPlan(Verb& app, int& status) {
  auto flags = std::make_shared<Flags>();
  Verb* verb =
      app.AddVerb("plan", "Say whether pipelining is worth it for a model, a machine and its work");
  AddCommonFlags(*verb, flags->common);
  verb->AddOption("--model,-m", flags->model,
                  "A name from configs/models, a config.json, a model folder or a .gguf file")
      ->Required();
  verb->AddOption("--system,-s", flags->system, "A name from configs/systems or a TOML file")
      ->Required();
  verb->AddOption("--workload,-w", flags->workload,
                  "A name from configs/workloads or a TOML file; inference and training are "
                  "defaults to start from")
      ->ShowDefault();
  verb->AddOption("-W", flags->sets, "Set one key of the workload: key=value (repeatable)");
  verb->AddOption("--mode", flags->mode, "inference or training (default: the workload's)")
      ->OneOf({"inference", "training"});
  verb->AddOption("--devices,-n", flags->devices, "Use at most this many devices")
      ->ShowDefault()
      ->Range(int64_t{1}, int64_t{1} << 20);
  verb->AddOption("--fix", flags->fix,
                  "Fix parts of the layout, the rest is searched: tp, pp, dp, ep, cp, chunks, "
                  "micro_batch, schedule, recompute, sequence_parallel, zero, layers=a/b/c, "
                  "precision");
  verb->AddOption("--html", flags->html, "Write the answer as one page with plots to this file");
  verb->AddOption("--emit", flags->emit,
                  "Print how to launch the best plan instead: megatron, vllm or penstock")
      ->OneOf({"megatron", "vllm", "penstock"});
  verb->AddOption("--emit-schedule", flags->emit_schedule,
                  "Write the best plan's schedule to this file");
  verb->AddOption("--top", flags->top, "Plans to show")->ShowDefault()->Range(1, 1000);
  verb->Footer(
      "Example: penstock plan --model llama-3.1-70b --system dgx-h100 --workload chat --devices "
      "16\n"
      "Exit status 1 when nothing fits.");
  verb->Callback([flags, verb, &status] {
    const Result<int> result = Plan(*flags);
    status = result.ok() ? result.value() : Fail(*verb, result.error());
  });
}

}  // namespace penstock::cli
