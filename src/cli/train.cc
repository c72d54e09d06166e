// penstock train: trains a model cut into pipeline stages.

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/units.h"
#include "cli/model_flags.h"
#include "cli/run_report.h"
#include "cli/setup_watch.h"
#include "cli/train_flags.h"
#include "cli/verbs.h"
#include "trace/chrome.h"
#include "train/checkpoint.h"
#include "train/log.h"
#include "train/run.h"

namespace penstock::cli {
namespace {

struct TrainVerbFlags {
  TrainFlags train;
  bool resume = false;
  std::string log;
  std::string trace_file;
  std::string planned_file;
};

std::string TimeLeft(double seconds) {
  if (seconds < 100) {
    return fmt::format("{:.0f} s", seconds);
  }
  return seconds < 100 * 60 ? fmt::format("{:.0f} min", seconds / 60)
                            : fmt::format("{:.1f} h", seconds / 3600);
}

// Lines for people: on a terminal one that is written over, else about twenty in all.
class Progress {
 public:
  Progress(bool json, int64_t steps) : steps_(steps), terminal_(::isatty(STDERR_FILENO) != 0) {
    quiet_ = json && !terminal_;
  }

  void Note(const std::string& text) const {
    if (terminal_) {
      fmt::print(stderr, "\r{}\x1b[K", text);
      std::fflush(stderr);
    }
  }

  void Line(const train::StepLine& line) {
    if (quiet_) {
      return;
    }
    const auto now = std::chrono::steady_clock::now();
    if (first_step_ < 0) {
      first_step_ = line.step;
      first_time_ = now;
    }
    const int64_t every = std::max<int64_t>(1, steps_ / 20);
    const bool keep = line.step % every == 0 || line.step == 1 || line.step == steps_ ||
                      line.eval_loss.has_value() || !line.weights_sha256.empty();
    if (!terminal_ && !keep) {
      return;
    }
    std::string text =
        fmt::format("step {}/{}  loss {:.4f}  norm {:.3g}{}  {:.0f} tokens/s  {}  bubble {:.1f} %",
                    line.step, steps_, line.loss, line.grad_norm, line.clipped ? " (clipped)" : "",
                    line.tokens_per_s, FormatSeconds(line.step_s), line.bubble_ratio * 100);
    if (line.planned_step_s.has_value()) {
      text += fmt::format("  planned {}", FormatSeconds(*line.planned_step_s));
    }
    if (line.eval_loss.has_value()) {
      text += fmt::format("  validation loss {:.4f}", *line.eval_loss);
    }
    if (line.step > first_step_ && line.step < steps_) {
      const double per_step = std::chrono::duration<double>(now - first_time_).count() /
                              static_cast<double>(line.step - first_step_);
      const auto rest = static_cast<double>(steps_ - line.step);
      text += fmt::format("  {} left", TimeLeft(per_step * rest));
    }
    if (terminal_) {
      text.resize(std::min(text.size(), static_cast<size_t>(std::max(20, TerminalWidth() - 1))));
    }
    fmt::print(stderr, "{}{}{}", terminal_ ? "\r" : "", text, terminal_ ? "\x1b[K" : "\n");
    if (terminal_ && keep) {
      fmt::print(stderr, "\n");
    }
    std::fflush(stderr);
  }

 private:
  int64_t steps_;
  bool terminal_;
  bool quiet_ = false;
  int64_t first_step_ = -1;
  std::chrono::steady_clock::time_point first_time_;
};

Json TrainMemoryJson(const MemoryFigures& figures) {
  Json json = MemoryJson(figures);
  json["gradients_bytes"] = figures[MemoryCategory::kGradients];
  json["optimizer_bytes"] = figures[MemoryCategory::kOptimizer];
  return json;
}

// Stages of a rank as {"stage","first_layer","last_layer"}.
Json ChunksOf(const train::TrainSetup& setup, int32_t rank) {
  Json chunks = Json::array();
  const auto& placement = setup.schedule.placement;
  for (int32_t s = 0; s < setup.schedule.num_stages(); ++s) {
    for (int d = 0; d < placement.num_directions(); ++d) {
      if (placement.RankOf(StageId(s), d).value() == rank) {
        chunks.push_back({{"stage", s},
                          {"first_layer", setup.partition.first_layer(StageId(s))},
                          {"last_layer", setup.partition.end_layer(StageId(s)) - 1}});
      }
    }
  }
  return chunks;
}

double BubbleRatio(const train::TrainReport& report) {
  double busy = 0;
  double idle = 0;
  for (const train::RankFigures& rank : report.ranks) {
    busy += rank.busy_s;
    idle += rank.idle_s;
  }
  return busy + idle > 0 ? idle / (busy + idle) : 0.0;
}

void PrintReport(const train::TrainOutcome& outcome) {
  const train::TrainSetup& setup = *outcome.setup;
  const train::TrainReport& report = outcome.report;
  Json json;
  json["model"] = setup.model_source;
  json["schedule"] = setup.config.pipeline.schedule;
  json["stages"] = Json::array();
  for (size_t r = 0; r < report.ranks.size(); ++r) {
    const train::RankFigures& rank = report.ranks[r];
    const Json chunks = ChunksOf(setup, static_cast<int32_t>(r) % setup.ranks());
    Json stage;
    stage["rank"] = r;
    stage["first_layer"] = chunks.empty() ? Json(nullptr) : chunks[0]["first_layer"];
    stage["last_layer"] = chunks.empty() ? Json(nullptr) : chunks[0]["last_layer"];
    stage["chunks"] = chunks;
    stage["memory"] = TrainMemoryJson(rank.peak);
    stage["planned_memory"] = TrainMemoryJson(setup.planned[r]);
    stage["busy_s"] = rank.busy_s;
    stage["idle_s"] = rank.idle_s;
    stage["bubble"] = trace::BubbleJson(rank.bubble);
    stage["bytes_sent"] = rank.counters.bytes_sent;
    stage["threads"] = rank.threads;
    stage["device"] = rank.device;
    json["stages"].push_back(std::move(stage));
  }
  const std::string& links = setup.options.links_from;
  json["cut_links"] = links.empty() ? Json(nullptr) : Json(links);
  json["bubble_ratio"] = BubbleRatio(report);
  json["step_s"] = report.step_s;
  json["planned"] = {
      {"step_s", report.planned ? Json(report.planned->step_s) : Json(nullptr)},
      {"bubble_ratio", report.planned ? Json(report.planned->bubble_ratio) : Json(nullptr)}};
  json["first_step"] = report.first_step;
  json["finish_reason"] = report.already_finished ? "already finished"
                          : report.interrupted    ? "interrupted"
                                                  : "steps";
  json["rolled_back"] = report.rolled_back;
  json["checkpoint"] = report.checkpoint.empty() ? Json(nullptr) : Json(report.checkpoint);
  json["last"] = report.last ? train::LineJson(*report.last) : Json(nullptr);
  PrintJson(json);
}

std::string Gigabytes(int64_t measured, int64_t planned) {
  return fmt::format("{} ({})", FormatBytes(static_cast<double>(measured)),
                     FormatBytes(static_cast<double>(planned)));
}

void PrintTable(const train::TrainOutcome& outcome) {
  const train::TrainSetup& setup = *outcome.setup;
  const train::TrainReport& report = outcome.report;
  fmt::print("\n  rank  peak memory (planned)       activations (planned)       busy       idle\n");
  for (size_t r = 0; r < report.ranks.size(); ++r) {
    const train::RankFigures& rank = report.ranks[r];
    fmt::print("  {:>4}  {:<26}  {:<26}  {:<9}  {}\n", r,
               Gigabytes(rank.peak.total, setup.planned[r].total),
               Gigabytes(rank.peak[MemoryCategory::kActivations],
                         setup.planned[r][MemoryCategory::kActivations]),
               FormatSeconds(rank.busy_s), FormatSeconds(rank.idle_s));
  }
  if (report.last.has_value()) {
    fmt::print("  loss {:.4f} after step {}\n", report.last->loss, report.last->step);
    fmt::print(
        "  a step {} (planned {}), bubble {:.1f} % (planned {})\n", FormatSeconds(report.step_s),
        report.planned ? FormatSeconds(report.planned->step_s) : "-", BubbleRatio(report) * 100,
        report.planned ? fmt::format("{:.1f} %", report.planned->bubble_ratio * 100) : "-");
    fmt::print("  weights {}\n", report.last->weights_sha256);
  }
  if (!report.checkpoint.empty()) {
    fmt::print("  checkpoint {}\n", report.checkpoint);
  }
  if (report.interrupted) {
    fmt::print("  interrupted{}\n",
               report.checkpoint.empty() ? "" : "; --resume goes on from the checkpoint");
  }
}

// The measured timeline of the last steps, and the simulated one.
Result<> WriteTraces(const TrainVerbFlags& flags, const train::TrainOutcome& outcome) {
  if (!flags.trace_file.empty()) {
    std::vector<trace::RankTimeline> parts;
    for (const train::RankFigures& rank : outcome.report.ranks) {
      parts.push_back(rank.timeline);
    }
    trace::Timeline timeline =
        trace::MergeRanks(outcome.setup->config.pipeline.schedule, std::move(parts));
    timeline.measured = true;
    timeline.instruction_set = outcome.report.ranks.front().device;
    timeline.threads_per_rank = outcome.report.ranks.front().threads;
    for (const schedule::Edge& edge : outcome.setup->schedule.edges) {
      timeline.values.push_back(edge.name);
    }
    PENSTOCK_TRY(trace::WriteChromeTraceFile(timeline, flags.trace_file));
  }
  if (!flags.planned_file.empty() && outcome.report.planned.has_value() &&
      outcome.report.planned->timeline.has_value()) {
    PENSTOCK_TRY(
        trace::WriteChromeTraceFile(*outcome.report.planned->timeline, flags.planned_file));
  }
  return {};
}

// A run that ends before its first step.
void SayInterrupted(bool json, const train::TrainConfig& config) {
  const std::string& folder = config.train.folder;
  const std::vector<int64_t> steps =
      folder.empty() ? std::vector<int64_t>() : train::CheckpointSteps(folder);
  const std::string newest =
      steps.empty()
          ? std::string()
          : (std::filesystem::path(folder) / train::CheckpointName(steps.back())).string();
  fmt::print(stderr, "{}interrupted before the first step: nothing was trained, no checkpoint {}\n",
             ::isatty(STDERR_FILENO) != 0 ? "\r\x1b[K" : "",
             newest.empty() ? "written" : "written; " + newest + " is as it was");
  if (json) {
    PrintJson({{"finish_reason", "interrupted"},
               {"checkpoint", newest.empty() ? Json(nullptr) : Json(newest)},
               {"last", nullptr}});
  }
}

Result<> Run(const TrainVerbFlags& flags, std::unique_ptr<comm::Channel> channel) {
  PENSTOCK_TRY_ASSIGN(const train::TrainConfig config, ReadConfig(flags.train));
  PENSTOCK_TRY_ASSIGN(train::TrainOptions options, ToTrainOptions(flags.train));
  options.resume = flags.resume;
  options.keep_trace = !flags.trace_file.empty();
  const bool speaks = channel == nullptr || channel->rank() == 0;
  const auto say = [&] { SayInterrupted(flags.train.common.json, config); };
  SetupWatch watch(0, speaks ? say : std::function<void()>());
  PENSTOCK_TRY(WeighCrossing(config, channel.get(), options));
  if (!speaks) {
    return train::RunTrainingWorker(config, options, std::move(channel), [&] { watch.Over(); });
  }
  const int64_t ranks = config.pipeline.stages * config.pipeline.replicas;
  if (channel == nullptr && ranks > 1 &&
      ranks * std::max<int64_t>(1, flags.train.threads) > kernels::UsableCores()) {
    LogNote("{} share {}: their times are those of shared cores", Counted(ranks, "rank"),
            Counted(kernels::UsableCores(), "core"));
  }
  for (const std::string& file : {flags.trace_file, flags.planned_file}) {
    if (!file.empty()) {
      PENSTOCK_TRY(CheckWritable(file));  // it is written when the run is over
    }
  }
  Progress progress(flags.train.common.json, config.train.steps);
  train::TrainLog log;
  const std::string log_path = flags.log.empty() ? config.train.log : flags.log;
  train::TrainHooks hooks;
  hooks.on_start = [&](const train::TrainSetup&, const train::RunStart& start) -> Result<> {
    return log_path.empty() ? Result<>() : log.Open(log_path, start.step);
  };
  hooks.events.on_line = [&](const train::StepLine& line) -> Result<> {
    progress.Line(line);
    return log.Write(train::LineJson(line));
  };
  hooks.events.on_note = [&](const std::string& text) { progress.Note(text); };
  hooks.events.interrupted = [] { return Interrupted(); };
  hooks.events.on_ready = [&watch] { watch.Over(); };
  PENSTOCK_TRY_ASSIGN(const train::TrainOutcome outcome,
                      train::RunTraining(config, options, std::move(channel), hooks));
  if (outcome.report.already_finished) {
    LogNote("{}: all {} steps are done, nothing is changed", outcome.report.checkpoint,
            config.train.steps);
  } else {
    PENSTOCK_TRY(WriteTraces(flags, outcome));
  }
  if (flags.train.common.json) {
    PrintReport(outcome);
  } else if (!outcome.report.already_finished) {
    PrintTable(outcome);
  }
  return {};
}

}  // namespace

void AddTrain(Verb& app, int& status) {
  auto flags = std::make_shared<TrainVerbFlags>();
  Verb* verb = app.AddVerb("train", "Train a model cut into pipeline stages, by any schedule");
  AddTrainFlags(*verb, flags->train);
  verb->Heading("Run");
  verb->AddFlag("--resume", flags->resume, "Go on from the newest checkpoint in train.folder");
  verb->Heading("Output");
  verb->AddOption("--log", flags->log, "JSON lines, one per step (default: train.log)")
      ->TypeName("FILE");
  verb->AddOption("--trace", flags->trace_file,
                  "Write what ran in the last steps as a Chrome/Perfetto trace")
      ->TypeName("FILE");
  verb->AddOption("--planned-trace", flags->planned_file,
                  "Write the simulated step, which planned_step_s comes from, as such a trace")
      ->TypeName("FILE");
  verb->Examples(
      {"penstock train configs/train/tiny.toml --set pipeline.schedule=zb-v",
       "mpirun --oversubscribe --bind-to none -n 2 penstock train configs/train/tiny.toml"});
  verb->Callback([verb, flags, &status] {
    status = RunRankedVerb(
        *verb, flags->train.deadline_s,
        [&](std::unique_ptr<comm::Channel> channel) { return Run(*flags, std::move(channel)); });
  });
}

}  // namespace penstock::cli
