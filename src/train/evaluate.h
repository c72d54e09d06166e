// Loss on text without learning: the stages of the training run, forward only.

#pragma once

#include <memory>
#include <vector>

#include "runtime/train_rank.h"
#include "train/links.h"
#include "train/setup.h"

namespace penstock::train {

struct EvalResult {
  double nll = 0;  // summed over the targets
  int64_t targets = 0;
};

// Micro-batches of one run of the forward schedule (the last one may have fewer), and how many of
// their rows count.
struct EvalBatch {
  std::vector<runtime::MicroBatchData> micro_batches;
  int64_t counted = 0;
};

// All sequences of the validation part (of the training part, where `validation` is false) once.
std::vector<EvalBatch> EvalBatches(const TrainSetup& setup, bool validation);

// Runs the batches on this rank and gives rank 0 the sums (0 on other ranks). Every rank calls; in
// each replica the same is computed, the first one's counts.
Result<EvalResult> Evaluate(const TrainSetup& setup, const std::vector<EvalBatch>& batches,
                            runtime::TrainRank& rank, Links& links);

}  // namespace penstock::train
