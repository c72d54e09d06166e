// `eval`: the loss of a configuration's model on its text, through the stages of the configuration.

#pragma once

#include <memory>
#include <string>

#include "comm/channel.h"
#include "train/evaluate.h"
#include "train/setup.h"

namespace penstock::train {

struct EvalOutcome {
  EvalResult result;
  std::string weights;      // where they came from: a checkpoint's folder, the model, "random"
  bool validation = false;  // on the validation part; else on all of the training part
  int64_t sequences = 0;
};

// The newest whole checkpoint of train.folder where there is one, else the model the run would
// start from. Rank 0, or all ranks where `channel` is null; other ranks get an empty outcome.
Result<EvalOutcome> RunEvaluation(const TrainConfig& config, const TrainOptions& options,
                                  std::unique_ptr<comm::Channel> channel);

}  // namespace penstock::train
