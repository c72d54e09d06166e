// A training run: ranks as threads of this process, or one process per rank under mpirun.

#pragma once

#include <functional>
#include <memory>
#include <string>

#include "comm/channel.h"
#include "train/rank_loop.h"
#include "train/report.h"
#include "train/setup.h"

namespace penstock::train {

struct TrainHooks {
  TrainEvents events;
  // Once everything is fixed and before anything is loaded.
  std::function<Result<>(const TrainSetup& setup, const RunStart& start)> on_start;
};

struct TrainOutcome {
  std::unique_ptr<TrainSetup> setup;
  TrainReport report;
};

// Rank 0, or all ranks where `channel` is null. Errors: those of MakeTrainSetup (before anything is
// allocated); whatever ended the run, then with the newest checkpoint's path.
Result<TrainOutcome> RunTraining(const TrainConfig& config, const TrainOptions& options,
                                 std::unique_ptr<comm::Channel> channel, const TrainHooks& hooks);

// The other ranks under mpirun. `on_ready` as in TrainEvents.
Result<> RunTrainingWorker(const TrainConfig& config, const TrainOptions& options,
                           std::unique_ptr<comm::Channel> channel,
                           const std::function<void()>& on_ready);

}  // namespace penstock::train
