// Everything about a training run that is fixed before it starts: the model's headers, the data,
// the cut, the proven schedule, who holds which tensor, and the memory of each rank. A function of
// the configuration and the flags: every rank works out the same.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "kernels/training.h"
#include "model/config.h"
#include "model/cut_search.h"
#include "runtime/train_rank.h"
#include "schedule/schedule.h"
#include "train/config.h"
#include "train/corpus.h"
#include "train/dataset.h"
#include "weights/model_files.h"

namespace penstock::train {

// What the command line says beside the configuration; the same on every rank.
struct TrainOptions {
  int threads = 0;           // per stage; 0: usable cores over the ranks on this machine
  int64_t memory_bytes = 0;  // per rank; 0: what the machine has, divided by the ranks on it
  double deadline_s = 60;
  bool resume = false;
  bool keep_trace = false;
  bool evaluate = false;  // forward only: no gradients, no optimizer
  bool across_processes = false;
  int32_t ranks_on_machine = 1;
  double work_per_byte = 0;  // as TrainCut takes it
  std::string links_from;    // the file that this is from; empty: nothing was measured
};

struct TrainSetup {
  TrainConfig config;
  TrainOptions options;

  Json model_config;                           // in the form of config.json
  std::string model_source;                    // path, for messages
  std::unique_ptr<weights::ModelFiles> files;  // null: random start
  model::Model model;
  weights::TokenizerMaterial material;
  std::optional<LoadedTokenizer> tokenizer;
  Corpus corpus;
  std::optional<Dataset> dataset;

  model::Partition partition{{0, 0}, 0};
  schedule::Schedule compute;   // as generated or read
  schedule::Schedule schedule;  // lowered and proven, with the end of the step
  schedule::Schedule forward;   // the same, forward only, for evaluation
  std::vector<int32_t> lane_starts;
  runtime::MicroBatchShape largest;

  std::vector<TensorId> by_name;  // trained tensors in the order of their names
  std::vector<TensorId> stored;   // all tensors of the model, likewise
  std::vector<int32_t> holder;    // per tensor of the graph: lowest rank of a replica that has it
  std::vector<std::vector<TensorId>> held;  // trained ones per rank of a replica, ascending
  std::vector<MemoryFigures> planned;       // per channel rank
  int64_t limit_bytes = 0;                  // per rank

  int32_t ranks() const { return schedule.num_ranks(); }  // of one replica

  // Numbers that a rank reports of a step: three, and a loss per micro-batch and term of the loss.
  int64_t report_numbers() const {
    return 3 + config.pipeline.micro_batches * std::ssize(model.graph.losses);
  }

  // How far the targets of the graph's losses are shifted at most.
  int32_t shifts() const {
    int32_t most = 0;
    for (const model::LossTerm& term : model.graph.losses) {
      most = std::max(most, term.shift);
    }
    return most;
  }

  int32_t replicas() const { return static_cast<int32_t>(config.pipeline.replicas); }

  int32_t channel_ranks() const { return ranks() * replicas(); }

  // What the result depends on: TrainConfig::Identity, model and data.
  std::string Identity() const;

  runtime::TrainSpec Spec(bool with_fault) const;
};

// The model and the tokenizer of a configuration, without data: for `eval` and `export` as well.
Result<> OpenModelOf(const TrainConfig& config, TrainSetup& setup);

// Layers' relative times in training, for the cut: multiply-adds of forward and backward at this
// sequence length, and the elements that everything else touches.
std::vector<double> TrainLayerWeights(const model::Graph& graph, int64_t sequence_tokens);

// What a cut is weighed by in training: these times, and what crosses each boundary in float32, a
// byte as much as `work_per_byte` multiply-adds of the forward pass (cost::TrainWorkPerByte); 0: as
// on common machines.
model::CutWeights TrainCut(const model::Graph& graph, int64_t sequence_tokens,
                           double work_per_byte = 0);

// The schedule of a configuration, compute-only, checked to have p ranks and m micro-batches.
Result<schedule::Schedule> ComputeSchedule(const PipelineSection& pipeline);

// Elements [begin, end) of a tensor of `elements` whose moments replica k of d keeps.
struct Shard {
  int64_t begin = 0;
  int64_t end = 0;
};

Shard ShardOf(int64_t elements, int32_t replica, int32_t replicas);

// Everything. Errors: those of the parts; kInvalidArgument (a sequence longer than the model's
// context, ranks that mpirun did not start), kOutOfMemory (a rank's plan is more than its limit:
// bytes by category), kInvalidSchedule.
Result<TrainSetup> MakeTrainSetup(const TrainConfig& config, const TrainOptions& options,
                                  const kernels::TrainingDevice& device);

}  // namespace penstock::train
