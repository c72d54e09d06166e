// The configuration of a training run: a TOML file with the sections model, data, pipeline,
// optimizer and train, as docs/training.md lists them.
//
// Relative paths of what is read (model, data, tokenizer, a schedule file) are looked for beside
// the configuration file, then in the working folder; models also in the folder that
// scripts/fetch-model fills. What is written (checkpoints, log) is relative to the working folder.
// "~/" is the home folder.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace penstock::train {

enum class DataFormat : uint8_t { kText, kJsonl, kChat };
enum class LrDecay : uint8_t { kCosine, kLinear, kNone };
enum class Recompute : uint8_t { kNone, kSelective, kFull };

struct ModelSection {
  std::string path;    // a GGUF file or a folder: its weights are where training starts
  std::string config;  // a config.json: random weights
  uint64_t seed = 0;   // of these
};

struct DataSection {
  std::vector<std::string> paths;  // files that exist
  std::string tokenizer;           // a model; empty: that of the model
  DataFormat format = DataFormat::kText;
  bool pack = true;
  int64_t sequence_tokens = 512;
  double validation = 0;      // share of the sequences, the last ones, that is not trained on
  std::string chat_template;  // by name; empty: the model's own
};

struct PipelineSection {
  int64_t stages = 1;        // p, the ranks of one replica
  std::vector<int64_t> cut;  // empty: balanced
  std::string schedule = "1f1b";
  bool schedule_is_file = false;
  int64_t chunks = 0;         // 0: the schedule's own
  int64_t slices = 0;         // 0: the schedule's own
  int64_t micro_batches = 1;  // m, of one replica
  int64_t micro_batch = 1;    // sequences
  int64_t replicas = 1;       // d
  bool barrier = true;        // before the optimizer
  int64_t lanes = 0;          // 0: what the schedule needs
  bool zero1 = true;          // moments of the optimizer are divided over the replicas
  bool naive = false;         // values that a rank holds already are sent to it again
  std::string links;          // a costs file whose links say which way long values go; or empty
};

struct OptimizerSection {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;
  double clip_norm = 1.0;  // 0: no clipping
  int64_t warmup_steps = 0;
  LrDecay decay = LrDecay::kCosine;
  double min_lr = 0;
};

struct TrainSection {
  int64_t steps = 100;
  uint64_t seed = 0;
  bool bf16 = false;
  double dropout = 0;
  Recompute recompute = Recompute::kNone;
  std::string log;     // empty: none but --log
  std::string folder;  // of the checkpoints; empty: none are written
  int64_t checkpoint_every = 0;
  int64_t keep = 2;
  int64_t eval_every = 0;
};

struct TrainConfig {
  std::string source;  // path of the file
  ModelSection model;
  DataSection data;
  PipelineSection pipeline;
  OptimizerSection optimizer;
  TrainSection train;

  int64_t GlobalSequences() const {
    return pipeline.micro_batch * pipeline.micro_batches * pipeline.replicas;
  }

  // What the result depends on, as text, one key per line: a checkpoint of another run has another
  // one. Leaves out what may differ between a run and its continuation (where it is cut, schedule,
  // transport, threads, how long it goes on, where it writes).
  std::string Identity() const;
};

// Reads the file and applies the assignments ("section.key=value") to it. Errors:
// kInvalidArgument naming file, line and key (unknown ones with the nearest known; values out of
// range; keys that exclude each other), kNotFound (a file that is named).
Result<TrainConfig> ReadTrainConfig(const std::string& path,
                                    const std::vector<std::string>& assignments);

// Learning rate of step 1, 2, ...: a linear rise over warmup_steps, then `decay` down to min_lr at
// the last step.
double LearningRate(const OptimizerSection& optimizer, int64_t steps, int64_t step);

}  // namespace penstock::train
