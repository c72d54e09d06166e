#include "train/eval_run.h"

#include <filesystem>

#include "base/log.h"
#include "base/progress.h"
#include "train/checkpoint.h"
#include "train/rank_weights.h"
#include "train/ranks.h"

namespace penstock::train {
namespace {

// The newest whole checkpoint, if there is one.
Result<std::optional<Checkpoint>> NewestCheckpoint(const TrainConfig& config) {
  if (config.train.folder.empty()) {
    return std::optional<Checkpoint>();
  }
  PENSTOCK_TRY_ASSIGN(const FoundCheckpoint found, FindCheckpoint(config.train.folder));
  for (const std::string& damaged : found.damaged) {
    LogWarning("{}", damaged);
  }
  if (!found.step.has_value()) {
    return std::optional<Checkpoint>();
  }
  const std::string path =
      (std::filesystem::path(config.train.folder) / CheckpointName(*found.step)).string();
  PENSTOCK_TRY_ASSIGN(Checkpoint checkpoint, Checkpoint::Open(path, false));
  return std::optional<Checkpoint>(std::move(checkpoint));
}

Result<EvalResult> EvaluateOnRank(const TrainSetup& setup, const std::vector<EvalBatch>& batches,
                                  const std::optional<Checkpoint>& checkpoint, RankMeans means) {
  comm::Channel& channel = means.channel;
  MemoryAccount& account = means.account;
  const auto training = kernels::CreateCpuTraining(*means.device);
  trace::RankRecorder recorder(RankId(channel.rank()), 0);
  Links links(channel, setup.ranks(), 1, 1, setup.options.deadline_s);
  PENSTOCK_TRY(links.Open(account));
  PENSTOCK_TRY_ASSIGN(const auto rank, runtime::TrainRank::Create(setup.Spec(true), channel,
                                                                  *training, account, recorder));
  {
    const ProgressScope progress([&watch = means.watch] { watch.Beat(); });
    PENSTOCK_TRY_ASSIGN(const auto fault, runtime::FaultFromEnvironment());
    PENSTOCK_TRY(runtime::InjectFaultAround(fault, false, channel));
    if (checkpoint.has_value()) {
      PENSTOCK_TRY(LoadWeights(*checkpoint, *rank));
    } else if (setup.files != nullptr) {
      PENSTOCK_TRY(rank->Load(*setup.files));
    } else {
      FillRandom(setup, *rank);
    }
    PENSTOCK_TRY(means.watch.Meet());
  }
  PENSTOCK_TRY_ASSIGN(const EvalResult result, Evaluate(setup, batches, *rank, links));
  PENSTOCK_TRY(links.Part());
  return result;
}

}  // namespace

Result<EvalOutcome> RunEvaluation(const TrainConfig& config, const TrainOptions& given,
                                  std::unique_ptr<comm::Channel> given_channel) {
  PENSTOCK_TRY(CheckRanks(config, given_channel.get()));
  TrainOptions options = ResolvedOptions(given, config, given_channel != nullptr);
  options.evaluate = true;
  ProcessRank process(std::move(given_channel), options.deadline_s);
  PENSTOCK_TRY(process.Open());
  const ProgressScope progress([&process] { process.Beat(); });
  PENSTOCK_TRY_ASSIGN(auto device, MakeDevice(options));
  std::unique_ptr<TrainSetup> setup;
  {
    const auto training = kernels::CreateCpuTraining(*device);
    PENSTOCK_TRY_ASSIGN(TrainSetup made, MakeTrainSetup(config, options, *training));
    setup = std::make_unique<TrainSetup>(std::move(made));
  }
  PENSTOCK_TRY_ASSIGN(const std::optional<Checkpoint> checkpoint, NewestCheckpoint(config));
  EvalOutcome outcome;
  outcome.validation = setup->dataset->validation_sequences() > 0;
  outcome.sequences =
      outcome.validation ? setup->dataset->validation_sequences() : setup->dataset->sequences();
  outcome.weights = checkpoint.has_value()    ? checkpoint->path()
                    : setup->files != nullptr ? setup->model_source
                                              : "random";
  const std::vector<EvalBatch> batches = EvalBatches(*setup, outcome.validation);
  const RankBody body = [&](RankMeans means) -> Result<> {
    const bool first = means.channel.rank() == 0;
    PENSTOCK_TRY_ASSIGN(const EvalResult result,
                        EvaluateOnRank(*setup, batches, checkpoint, std::move(means)));
    if (first) {
      outcome.result = result;
    }
    return {};
  };
  if (process.channel() == nullptr) {
    PENSTOCK_TRY(
        RunThreads(setup->channel_ranks(), setup->limit_bytes, options, std::move(device), body));
  } else {
    PENSTOCK_TRY(body(process.Means(setup->limit_bytes, std::move(device))));
  }
  return outcome;
}

}  // namespace penstock::train
