// Loss on text without learning: the stages of the training run, forward only.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/train_rank.h"
#include "train/links.h"
#include "train/setup.h"

namespace penstock::train {

// One term of the model's loss.
struct EvalTerm {
  std::string name;   // "main", "exit 3", "next 1"
  double weight = 1;  // in the loss that is trained
  double nll = 0;     // summed over the targets
  int64_t targets = 0;

  double loss() const { return targets > 0 ? nll / static_cast<double>(targets) : 0; }
};

struct EvalResult {
  std::vector<EvalTerm> terms;  // as the graph's losses: the first is the model's output

  // The mean cross-entropy of the model's output.
  double loss() const { return terms.front().loss(); }

  // What training makes small: the terms by their weights.
  double weighted() const;
};

// Micro-batches of one run of the forward schedule (the last one may have fewer), and how many of
// their rows count.
struct EvalBatch {
  std::vector<runtime::MicroBatchData> micro_batches;
  int64_t counted = 0;
  std::vector<int64_t> counted_later;  // of targets 1, 2, ... rows on, as far as the losses look
};

// All sequences of the validation part (of the training part, where `validation` is false) once.
std::vector<EvalBatch> EvalBatches(const TrainSetup& setup, bool validation);

// Runs the batches on this rank and gives rank 0 the sums (no terms on other ranks). Every rank
// calls; in each replica the same is computed, the first one's counts.
Result<EvalResult> Evaluate(const TrainSetup& setup, const std::vector<EvalBatch>& batches,
                            runtime::TrainRank& rank, Links& links);

}  // namespace penstock::train
