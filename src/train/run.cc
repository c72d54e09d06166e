#include "train/run.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>

#include "base/file.h"
#include "base/log.h"
#include "base/progress.h"
#include "train/ranks.h"

namespace penstock::train {
namespace {

// What rank 0 tells the other processes once the data is there.
struct StartMessage {
  int64_t origin_ns = 0;
  int64_t step = 0;
  int64_t from_checkpoint = 0;
  int64_t finished = 0;
};

comm::Lane StartLane(int32_t target) {
  return {comm::LaneKind::kControl, 0, target, 1000};
}

std::string FirstDifference(const std::string& was, const std::string& is) {
  const auto line = [](const std::string& text, size_t at) {
    return text.substr(at, text.find('\n', at) - at);
  };
  for (size_t a = 0, b = 0; a < was.size() && b < is.size();) {
    const std::string old_line = line(was, a);
    const std::string new_line = line(is, b);
    if (old_line != new_line) {
      return fmt::format("it has '{}', this configuration '{}'", old_line, new_line);
    }
    a += old_line.size() + 1;
    b += new_line.size() + 1;
  }
  return "it has other keys";
}

// Where to begin: the newest whole checkpoint with --resume.
Result<RunStart> DecideStart(const TrainSetup& setup) {
  RunStart start;
  const std::string& folder = setup.config.train.folder;
  if (folder.empty()) {
    if (setup.options.resume) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "[train.run] --resume: the configuration has no train.folder, wanted the "
                       "folder of the checkpoints");
    }
    return start;
  }
  if (!setup.options.resume && setup.config.train.checkpoint_every == 0) {
    return start;
  }
  if (!setup.options.resume) {
    start.older_run = CheckpointSteps(folder);
    if (!start.older_run.empty()) {
      LogNote(
          "{} holds checkpoints of an earlier run (up to step {}), which this run replaces; "
          "--resume goes on from them",
          folder, start.older_run.back());
    }
    return start;
  }
  PENSTOCK_TRY_ASSIGN(const FoundCheckpoint found, FindCheckpoint(folder));
  for (const std::string& damaged : found.damaged) {
    LogWarning("{}", damaged);
  }
  if (!found.step.has_value()) {
    LogNote("{}: no checkpoint, the run starts from the beginning", folder);
    return start;
  }
  const std::string path = (std::filesystem::path(folder) / CheckpointName(*found.step)).string();
  PENSTOCK_TRY_ASSIGN(const Checkpoint checkpoint, Checkpoint::Open(path, false));
  if (checkpoint.manifest().identity != setup.Identity()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[train.run] {}: a checkpoint of another run: {}\ngo on with the "
                     "configuration that it was made with, or train into another train.folder",
                     path, FirstDifference(checkpoint.manifest().identity, setup.Identity()));
  }
  if (!found.damaged.empty()) {
    LogNote("going on from {}", path);
  }
  start.step = *found.step;
  start.from_checkpoint = true;
  return start;
}

// Ends every rank of a run that failed, and names what is left of it.
Error WithCheckpoint(Error error, const TrainConfig& config) {
  const std::string& folder = config.train.folder;
  if (folder.empty()) {
    return error;
  }
  const std::vector<int64_t> steps = CheckpointSteps(folder);
  if (!steps.empty()) {
    error.message +=
        fmt::format("\nthe last checkpoint is {}; --resume goes on from there",
                    (std::filesystem::path(folder) / CheckpointName(steps.back())).string());
  } else if (config.train.checkpoint_every > 0) {
    error.message += "\nno checkpoint had been written";
  }
  return error;
}

// `not_finite`: gets the step whose weights gave a loss or gradient that is no number.
Result<TrainReport> RunRank(const TrainSetup& setup, RankMeans means,
                            comm::Clock::time_point origin, const TrainEvents* events,
                            const RunStart& start, std::atomic<int64_t>& not_finite) {
  PENSTOCK_TRY_ASSIGN(const auto loop, RankLoop::Create(setup, std::move(means), origin, events));
  auto report = loop->Run(start);
  if (!report.ok() && report.error().code == ErrorCode::kNotFinite) {
    not_finite = loop->weights_step();
  }
  return report;
}

// What this run has written with the weights that the step failed with is set aside, so that
// --resume goes on from the one before.
Error WithoutFailing(Error error, const TrainConfig& config, const RunStart& start, int64_t step) {
  if (config.train.folder.empty() || config.train.checkpoint_every == 0 || step <= start.step) {
    return error;
  }
  const std::string aside = SetCheckpointAside(config.train.folder, step);
  if (!aside.empty()) {
    error.message += fmt::format("\nthe weights that it failed with are in {}", aside);
  }
  return error;
}

Result<> TellStart(ProcessRank& rank, const StartMessage& message) {
  for (int32_t r = 1; r < rank.channel()->size(); ++r) {
    PENSTOCK_TRY(rank.channel()->Open(StartLane(r), {sizeof(message), 1}, rank.small_account()));
    const auto bytes = std::as_bytes(std::span(&message, 1));
    comm::MessageHeader header;
    header.lane = StartLane(r);
    header.rows = sizeof(message);
    header.columns = 1;
    PENSTOCK_TRY(rank.watch().Send(header, std::span(&bytes, 1)));
  }
  return {};
}

// Waits as long as rank 0 beats: it reads the text and verifies a checkpoint meanwhile.
Result<StartMessage> HearStart(ProcessRank& rank, double deadline_s) {
  const comm::Lane lane = StartLane(rank.channel()->rank());
  StartMessage message;
  PENSTOCK_TRY(rank.channel()->Open(lane, {sizeof(message), 1}, rank.small_account()));
  PENSTOCK_TRY(rank.watch().AwaitMessage(lane));
  PENSTOCK_TRY_ASSIGN(const comm::Message received,
                      rank.channel()->Receive(lane, {0, 0}, deadline_s));
  if (received.payload().size() == sizeof(message)) {
    std::memcpy(&message, received.payload().data(), sizeof(message));
  }
  return message;
}

}  // namespace

Result<TrainOutcome> RunTraining(const TrainConfig& config, const TrainOptions& given,
                                 std::unique_ptr<comm::Channel> given_channel,
                                 const TrainHooks& hooks) {
  PENSTOCK_TRY(CheckRanks(config, given_channel.get()));
  const TrainOptions options = ResolvedOptions(given, config, given_channel != nullptr);
  ProcessRank process(std::move(given_channel), options.deadline_s);
  PENSTOCK_TRY(process.Open());
  std::optional<ProgressScope> progress([&process] { process.Beat(); });
  PENSTOCK_TRY_ASSIGN(auto device, MakeDevice(options));
  TrainOutcome outcome;
  {
    const auto training = kernels::CreateCpuTraining(*device);
    PENSTOCK_TRY_ASSIGN(TrainSetup setup, MakeTrainSetup(config, options, *training));
    outcome.setup = std::make_unique<TrainSetup>(std::move(setup));
  }
  const TrainSetup& setup = *outcome.setup;
  PENSTOCK_TRY_ASSIGN(const RunStart start, DecideStart(setup));
  FolderLock lock;
  if (!config.train.folder.empty() && config.train.checkpoint_every > 0) {
    PENSTOCK_TRY(MakeFolder(config.train.folder));
    PENSTOCK_TRY_ASSIGN(lock, FolderLock::Take(config.train.folder));
    PENSTOCK_TRY(PrepareFolder(config.train.folder));
  }
  const bool finished = start.from_checkpoint && start.step >= config.train.steps;
  const comm::Clock::time_point origin = comm::Clock::now();
  if (process.channel() != nullptr) {
    const StartMessage message{origin.time_since_epoch().count(), start.step,
                               start.from_checkpoint ? 1 : 0, finished ? 1 : 0};
    PENSTOCK_TRY(TellStart(process, message));
  }
  if (finished) {
    outcome.report.already_finished = true;
    outcome.report.first_step = start.step;
    outcome.report.checkpoint =
        (std::filesystem::path(config.train.folder) / CheckpointName(start.step)).string();
    return outcome;
  }
  if (hooks.on_start) {
    PENSTOCK_TRY(hooks.on_start(setup, start));
  }
  Result<> ran;
  std::atomic<int64_t> not_finite = 0;
  const RankBody body = [&](RankMeans means) -> Result<> {
    const bool first = means.channel.rank() == 0;
    PENSTOCK_TRY_ASSIGN(TrainReport report,
                        RunRank(setup, std::move(means), origin, first ? &hooks.events : nullptr,
                                start, not_finite));
    if (first) {
      outcome.report = std::move(report);
    }
    return {};
  };
  progress.reset();
  if (process.channel() == nullptr) {
    ran = RunThreads(setup.channel_ranks(), setup.limit_bytes, options, std::move(device), body);
  } else {
    ran = body(process.Means(setup.limit_bytes, std::move(device)));
  }
  if (!ran.ok()) {
    if (process.channel() == nullptr && !config.train.folder.empty() &&
        config.train.checkpoint_every > 0) {
      (void)PrepareFolder(config.train.folder);  // what was half written frees its room
    }
    return WithCheckpoint(WithoutFailing(ran.error(), config, start, not_finite), config);
  }
  if (outcome.report.checkpoint.empty() && start.from_checkpoint) {
    outcome.report.checkpoint =
        (std::filesystem::path(config.train.folder) / CheckpointName(start.step)).string();
  }
  return outcome;
}

Result<> RunTrainingWorker(const TrainConfig& config, const TrainOptions& given,
                           std::unique_ptr<comm::Channel> given_channel,
                           const std::function<void()>& on_ready) {
  PENSTOCK_TRY(CheckRanks(config, given_channel.get()));
  const TrainOptions options = ResolvedOptions(given, config, true);
  ProcessRank process(std::move(given_channel), options.deadline_s);
  PENSTOCK_TRY(process.Open());
  std::optional<ProgressScope> progress([&process] { process.Beat(); });
  PENSTOCK_TRY_ASSIGN(const StartMessage message, HearStart(process, options.deadline_s));
  if (message.finished != 0) {
    return {};
  }
  PENSTOCK_TRY_ASSIGN(auto device, MakeDevice(options));
  std::unique_ptr<TrainSetup> setup;
  {
    const auto training = kernels::CreateCpuTraining(*device);
    PENSTOCK_TRY_ASSIGN(TrainSetup made, MakeTrainSetup(config, options, *training));
    setup = std::make_unique<TrainSetup>(std::move(made));
  }
  RunStart start;
  start.step = message.step;
  start.from_checkpoint = message.from_checkpoint != 0;
  progress.reset();
  const comm::Clock::time_point origin{comm::Clock::duration(message.origin_ns)};
  TrainEvents events;
  events.on_ready = on_ready;
  std::atomic<int64_t> not_finite = 0;
  auto report = RunRank(*setup, process.Means(setup->limit_bytes, std::move(device)), origin,
                        &events, start, not_finite);
  if (!report.ok()) {
    return WithCheckpoint(WithoutFailing(report.error(), config, start, not_finite), config);
  }
  return {};
}

}  // namespace penstock::train
