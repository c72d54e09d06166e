// What the machine is to do: requests to serve, or a batch to train on. Read from TOML; the files
// of configs/workloads hold the defaults that the documentation names.

#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "base/toml.h"
#include "hw/precision.h"

namespace penstock::plan {

enum class Mode : uint8_t { kInference, kTraining };

// A length in tokens, as one number or a distribution.
struct Length {
  double mean = 0;
  double p50 = 0;
  double p90 = 0;
  double p99 = 0;

  // Squared coefficient of variation of the log-normal through p50 and p90; 0 for one number.
  double variation() const;
};

struct InferenceWorkload {
  Length prompt_tokens;
  Length output_tokens;
  double sequences = 0;       // start together and run in lockstep; 0 where requests arrive
  double requests_per_s = 0;  // open arrivals; 0: none
  double max_ttft_s = 0;      // 0: no target
  double max_tpot_s = 0;
  hw::Precision precision = hw::Precision::kBf16;
  hw::Precision kv_precision = hw::Precision::kBf16;
  bool precision_given = false;  // by the workload's file or a flag, not by default
  bool as_stored = false;        // matrices in the types of the model's file

  bool arrivals() const { return requests_per_s > 0; }
};

struct TrainingWorkload {
  int64_t global_batch = 0;  // sequences per optimizer step
  int64_t sequence_tokens = 0;
  hw::Precision precision = hw::Precision::kBf16;
  std::string optimizer = "adam";  // "adam", "sgd"
  bool fp32_gradients = true;      // accumulated in 32 bits (else 16)
};

struct Workload {
  std::string name;
  Mode mode = Mode::kInference;
  InferenceWorkload inference;
  TrainingWorkload training;
};

// `name_or_path` from configs/workloads or a file; `sets` are "key=value" in the section of the
// mode (or "section.key=value"). An empty `mode` is taken from the file, which then has one
// section. Errors: kNotFound, kInvalidArgument naming file, line and key.
Result<Workload> ReadWorkload(const std::string& name_or_path, const std::string& mode,
                              const std::vector<std::string>& sets);

}  // namespace penstock::plan
