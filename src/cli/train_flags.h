// What train and eval share: the flags beside the configuration.

#pragma once

#include <string>
#include <vector>

#include "cli/verb.h"
#include "comm/channel.h"
#include "train/config.h"
#include "train/setup.h"

namespace penstock::cli {

struct TrainFlags {
  CommonFlags common;
  std::string config;
  std::vector<std::string> assignments;
  int64_t threads = 0;
  std::string memory;
  double deadline_s = 120;
};

void AddTrainFlags(Verb& verb, TrainFlags& flags);

// The configuration with the assignments. Errors: those of ReadTrainConfig, and without a file.
Result<train::TrainConfig> ReadConfig(const TrainFlags& flags);

// Errors: kInvalidArgument naming the flag.
Result<train::TrainOptions> ToTrainOptions(const TrainFlags& flags);

// What crosses a boundary against work, for the cut, from the calibrated system file where there is
// one; rank 0's on every rank.
Result<> WeighCrossing(const train::TrainConfig& config, comm::Channel* channel,
                       train::TrainOptions& options);

}  // namespace penstock::cli
