// penstock plan: is pipelining worth it, for this model, machine and work?

#include <fmt/core.h>

#include <cmath>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/config_path.h"
#include "base/file.h"
#include "base/json.h"
#include "cli/engine_planning.h"
#include "cli/verb.h"
#include "cli/verbs.h"
#include "cost/profile.h"
#include "hw/system.h"
#include "model/config.h"
#include "plan/emit.h"
#include "plan/hops.h"
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
  std::string workload;  // empty: the defaults of the mode
  std::string mode;
  std::vector<std::string> sets;
  std::string fix;
  std::string html;
  std::string emit;
  std::string emit_schedule;
  std::string transport = "threads";
  int64_t devices = 8;
  int top = 10;
};

// A model to plan for: its profile, and where it is a file with weights how the engine would hold
// them.
struct PlannedModel {
  cost::ModelProfile profile;
  std::optional<serve::ModelBundle> bundle;
  std::optional<hw::Precision> stored;  // type of most of its matrices
};

Result<PlannedModel> ReadModel(const std::string& name, const hw::System& system,
                               const kernels::Device* device) {
  PENSTOCK_TRY_ASSIGN(const std::string path, FindConfig("models", "json", name));
  const std::string stem = std::filesystem::path(path).stem().string();
  PlannedModel out;
  if (path.ends_with(".json")) {
    PENSTOCK_TRY_ASSIGN(const Json config, ReadJsonFile(path));
    PENSTOCK_TRY_ASSIGN(const model::Model model, model::BuildModel(config, path));
    PENSTOCK_TRY_ASSIGN(out.profile, cost::BuildProfile(model.graph, stem, model.config.family));
    out.profile.parameters_mtp = static_cast<double>(model.config.mtp_parameters);
    return out;
  }
  PENSTOCK_TRY_ASSIGN(out.bundle, serve::OpenBundle(path));
  const model::Model& model = out.bundle->model;
  cost::HeldTensors held;
  auto rule =
      runtime::WeightRule::Create(model.graph, *out.bundle->files, runtime::WeightChoice::kAuto);
  if (rule.ok()) {  // else the file can be counted, but not run
    out.stored = MainPrecision(model.graph, rule.value());
    held = HeldBy(model.graph, rule.value(), system.engine ? device : nullptr);
  }
  PENSTOCK_TRY_ASSIGN(out.profile,
                      cost::BuildProfile(model.graph, stem, model.config.family, held));
  out.profile.parameters_mtp = static_cast<double>(model.config.mtp_parameters);
  return out;
}

// Matrices as the file holds them, unless the workload says another type; keys as `run` keeps them.
void TakePrecision(const PlannedModel& model, plan::Workload& workload) {
  plan::InferenceWorkload& w = workload.inference;
  if (!model.stored || w.precision_given) {
    return;
  }
  w.precision = *model.stored;
  w.as_stored = true;
}

// The best plan's schedule, in the native form, with what later stages read in training.
Result<> WriteSchedule(const plan::Context& context, const plan::Answer& answer,
                       const std::string& path) {
  if (answer.search.plans.empty()) {
    return MakeError(ErrorCode::kInvalidArgument, "[cli.plan] --emit-schedule: {}",
                     answer.verdict.reason);
  }
  const plan::Layout& layout = answer.search.plans[0].layout;
  PENSTOCK_TRY_ASSIGN(schedule::Schedule schedule, plan::ScheduleOf(layout));
  if (context.workload->mode == plan::Mode::kTraining && !layout.cut.empty()) {
    schedule.edges =
        plan::EdgesOf(*context.model, layout,
                      static_cast<double>(layout.micro_batch) *
                          static_cast<double>(context.workload->training.sequence_tokens));
  }
  return WriteFileAtomically(path, schedule::WriteNative(schedule));
}

// 0, or 1 where nothing fits.
Result<int> Plan(const Flags& flags) {
  PENSTOCK_TRY_ASSIGN(hw::System system, hw::ReadSystem(flags.system));
  std::unique_ptr<kernels::Device> device;
  if (system.engine) {
    kernels::CpuOptions cpu;
    cpu.threads = static_cast<int>(system.engine->threads);
    PENSTOCK_TRY_ASSIGN(device, kernels::CreateCpuDevice(cpu));
  }
  PENSTOCK_TRY_ASSIGN(const PlannedModel planned, ReadModel(flags.model, system, device.get()));
  const cost::ModelProfile& model = planned.profile;
  const std::string workload_name = !flags.workload.empty() ? flags.workload
                                    : !flags.mode.empty()   ? flags.mode
                                                            : "inference";
  PENSTOCK_TRY_ASSIGN(plan::Workload workload,
                      plan::ReadWorkload(workload_name, flags.mode, flags.sets));
  TakePrecision(planned, workload);
  plan::Context context{&model, &system, &workload};
  system.TakeReserve(context.calibration());
  context.across_processes = flags.transport == "mpi";
  if (planned.bundle && device != nullptr) {
    const plan::InferenceWorkload& w = workload.inference;
    context.engine_memory = ArenasOf(*planned.bundle, *device, std::llround(w.prompt_tokens.mean),
                                     std::llround(w.output_tokens.mean), context.across_processes);
  }
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
    PENSTOCK_TRY(WriteSchedule(context, answer, flags.emit_schedule));
  }
  if (!flags.emit.empty()) {
    if (answer.search.plans.empty()) {
      return MakeError(ErrorCode::kInvalidArgument, "[cli.plan] --emit: {}", answer.verdict.reason);
    }
    PENSTOCK_TRY_ASSIGN(const std::string launch,
                        plan::Emit(context, answer.search.plans[0], flags.emit));
    if (flags.common.json) {
      PrintJson({{"emit", flags.emit}, {"launch", launch}});
    } else {
      fmt::print("{}", launch);
    }
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
      ->TypeName("MODEL")
      ->Required();
  verb->AddOption("--system,-s", flags->system, "A name from configs/systems or a TOML file")
      ->TypeName("NAME|FILE")
      ->Required();
  verb->AddOption("--workload,-w", flags->workload,
                  "A name from configs/workloads or a TOML file; inference and training are "
                  "defaults to start from (default: inference, or what --mode says)")
      ->TypeName("NAME|FILE");
  verb->AddOption("-W", flags->sets, "Set one key of the workload")->TypeName("KEY=VALUE");
  verb->AddOption("--mode", flags->mode, "inference or training (default: the workload's)")
      ->TypeName("MODE")
      ->OneOf({"inference", "training"});
  verb->AddOption("--devices,-n", flags->devices, "Use at most this many devices")
      ->TypeName("N")
      ->ShowDefault()
      ->Range(int64_t{1}, int64_t{1} << 20);
  verb->AddOption("--fix", flags->fix,
                  "Fix parts of the layout, the rest is searched: tp, pp, dp, ep, cp, chunks, "
                  "micro_batch, schedule, recompute, sequence_parallel, zero, layers=a/b/c, "
                  "precision (of several, as bf16/int8, each is searched)")
      ->TypeName("KEY=VALUE,...");
  verb->AddOption("--transport", flags->transport,
                  "On a calibrated machine: stages are threads, or processes under mpi")
      ->TypeName("KIND")
      ->OneOf({"threads", "mpi"})
      ->ShowDefault();
  verb->Heading("Output");
  verb->AddOption("--top", flags->top, "Plans to show")
      ->TypeName("N")
      ->ShowDefault()
      ->Range(1, 1000);
  verb->AddOption("--html", flags->html, "Write the answer as one page with plots to this file")
      ->TypeName("FILE");
  verb->AddOption("--emit", flags->emit,
                  "Print how to launch the best plan instead: megatron, vllm or penstock")
      ->TypeName("FOR")
      ->OneOf({"megatron", "vllm", "penstock"});
  verb->AddOption("--emit-schedule", flags->emit_schedule,
                  "Write the best plan's schedule to this file")
      ->TypeName("FILE");
  verb->Remark("Exit status 1 when nothing fits.");
  verb->Examples(
      {"penstock plan --model llama-3.1-70b --system dgx-h100 --workload chat --devices 16",
       "penstock plan -m deepseek-v3 -s dgx-h100 -w training -n 2048 --fix precision=fp8"});
  verb->Callback([flags, verb, &status] {
    const Result<int> result = Plan(*flags);
    status = result.ok() ? result.value() : Fail(*verb, result.error());
  });
}

}  // namespace penstock::cli
