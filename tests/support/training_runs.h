// One training step in this process (ranks as threads), for tests that compare many schedules.

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/json_reader.h"
#include "base/result.h"
#include "runtime/gradient_run.h"
#include "schedule/schedule.h"

namespace penstock::testing {

// A model opened for training.
struct TrainModel {
  std::unique_ptr<weights::ModelFiles> files;
  model::Graph graph;
};

Result<TrainModel> OpenTrainModel(const std::string& path);

// Writes a folder with this config.json and random weights for all that its training graph uses;
// the same for the same seed.
Result<> WriteRandomModel(const std::string& folder, const Json& config, uint64_t seed);

struct TrainCase {
  std::string schedule = "gpipe";
  int ranks = 1;
  int chunks = 0;
  int slices = 0;
  int micro_batches = 1;
  int replicas = 1;
  std::vector<int32_t> lane_starts;
  std::vector<int64_t> cut;  // empty: balanced over the schedule's stages
  runtime::Recompute recompute = runtime::Recompute::kNone;
  kernels::ProductType products = kernels::ProductType::kF32;
  float dropout = 0;
  int threads = 1;
  bool keep_trace = false;
  bool naive = false;                  // long values are sent over every hop
  schedule::LinkSeconds link_seconds;  // long values take the fastest way

  std::string Text() const;
};

// Micro-batches of random ids, several sequences each, rows that differ, some that do not count.
std::vector<runtime::MicroBatchData> RandomBatches(int micro_batches, int64_t vocabulary,
                                                   int64_t rows, uint64_t seed);

struct TrainOutcome {
  double loss = 0;
  std::map<std::string, std::vector<float>> gradients;
  std::vector<runtime::RankGradients> ranks;
};

// `compute`: another schedule than the case's (null: the generator's).
Result<TrainOutcome> RunTrainCase(const TrainModel& model, const TrainCase& test,
                                  const std::vector<runtime::MicroBatchData>& batches,
                                  const schedule::Schedule* compute = nullptr);

}  // namespace penstock::testing
