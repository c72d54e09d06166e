// One training step without an optimizer: the loss and all gradients, on rank 0. What the verb
// `gradients` prints and what tests compare.

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "comm/load_watch.h"
#include "kernels/training.h"
#include "model/cut.h"
#include "model/graph.h"
#include "runtime/train_rank.h"
#include "schedule/schedule.h"
#include "tensor/memory.h"
#include "trace/timeline.h"
#include "weights/model_files.h"

namespace penstock::runtime {

struct GradientJob {
  const model::Graph* graph = nullptr;
  const weights::ModelFiles* files = nullptr;
  const model::Partition* partition = nullptr;
  const schedule::Schedule* schedule = nullptr;  // from PrepareTrainSchedule, without OPT
  // replicas * schedule.micro_batches, replica by replica.
  std::vector<MicroBatchData> micro_batches;
  int32_t replicas = 1;
  std::vector<int32_t> lane_starts;  // as in TrainSpec
  kernels::ProductType products = kernels::ProductType::kF32;
  Recompute recompute = Recompute::kNone;
  float dropout = 0;
  uint64_t seed = 0;
  int credits = 2;
  int threads = 1;  // per rank
  double deadline_s = 30;
  std::optional<int64_t> memory_bytes;  // per rank; none: no limit
  bool keep_trace = false;
};

// What one rank has after the step.
struct RankGradients {
  // Per term of the graph's loss and micro-batch of its replica, NaN where its logits are
  // elsewhere.
  std::vector<std::vector<double>> losses;
  // Those parameters that it counts, by canonical name.
  std::map<std::string, std::vector<float>> gradients;
  MemoryFigures planned;
  MemoryFigures peak;
  trace::RankTimeline timeline;
};

// One rank of the job (channel rank = replica * ranks + rank). Opens the watch, which may serve the
// caller afterwards. Errors: those of TrainRank and LoadWatch.
Result<RankGradients> RunGradientRank(const GradientJob& job, comm::Channel& channel,
                                      comm::LoadWatch& watch, MemoryAccount& account);

// All ranks as threads. The first error of any rank; the others end with it.
Result<std::vector<RankGradients>> RunGradientThreads(const GradientJob& job);

// The loss of the step (StepLoss) from the losses of all ranks, by channel rank.
double MeanLoss(const GradientJob& job, std::span<const RankGradients> ranks);

}  // namespace penstock::runtime
