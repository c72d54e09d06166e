// What a run of this project's engine will take on a calibrated machine: the micro-batches that its
// decider makes (serving_steps.h), each stage's measured times for them (cost/engine_time.h), the
// messages between stages, and devices that share memory and, where there are more of them than
// cores, cores.
//
// A fluid simulation: between two events every running stage advances at the speed that the number
// of stages running then leaves it.

#pragma once

#include <cstdint>
#include <vector>

#include "cost/engine_time.h"
#include "plan/serving_steps.h"

namespace penstock::plan {

struct ServingQuestion {
  const cost::ModelProfile* model = nullptr;
  const hw::Engine* engine = nullptr;
  std::vector<int32_t> units;  // of each stage: embedding, layers, head
  StepRules rules;
  std::vector<Request> requests;
  cost::Formats formats;
  bool across_processes = false;  // stages are processes, not threads
  int64_t threads = 0;            // per stage; 0: as calibrated
  int64_t replicas = 1;           // that run beside this one on the same machine
};

// As `bench` counts: prefill until the last sequence has its first token, decode after.
struct ServingForecast {
  int64_t prefill_tokens = 0;
  double prefill_s = 0;
  int64_t decode_tokens = 0;
  double decode_s = 0;
  double tpot_s = 0;          // mean per token after a sequence's first
  double steady_token_s = 0;  // per token while all sequences decode
  double end_s = 0;
  std::vector<double> busy_s;  // of each stage, in all
  bool shares_cores = false;   // more threads than cores

  double prefill_tokens_per_s() const {
    return prefill_s > 0 ? static_cast<double>(prefill_tokens) / prefill_s : 0;
  }

  double decode_tokens_per_s() const {
    return decode_s > 0 ? static_cast<double>(decode_tokens) / decode_s : 0;
  }
};

// O(steps x stages x sequences); outputs over 256 tokens are simulated in strides. REQUIRES: units
// sum to the model's layers, requests are not empty.
ServingForecast ForecastServing(const ServingQuestion& question);

}  // namespace penstock::plan
