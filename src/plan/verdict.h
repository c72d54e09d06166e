// Is pipelining worth it? The answer in words and numbers that can be followed by hand.

#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plan/search.h"

namespace penstock::plan {

// What one device holds when one group of `tp` devices is cut into p stages.
struct ShareByStages {
  int64_t stages = 1;
  double weights_bytes = 0;
  double kv_same_group_bytes = 0;  // with the same sequences in each of the p groups in flight
  double kv_same_total_bytes = 0;  // with the same sequences in all
};

// A constant whose change would turn the verdict.
struct Sensitivity {
  std::string constant;
  std::string unit;
  double value = 0;
  double flips_at = 0;
  std::string then;  // what would be best there
};

struct Verdict {
  bool pipeline = false;
  std::optional<double> gain;  // in tokens/s over the best plan without; nothing where none fits
  std::string reason;
  std::string bound_by;
  std::optional<Plan> best;
  std::optional<Plan> without;
  std::vector<std::string> lines;  // the explanation, a sentence each
  std::vector<ShareByStages> shares;
  std::vector<Sensitivity> sensitivity;
  // Inference: share of a group's memory that weights take, and the closed rule's gain of p stages
  // over p replicas when decode is bound by memory time: (1-rho/p) / ((1-rho)(1+rho-rho/p)).
  double rho = 0;
  double rule_gain = 0;
  int64_t rule_stages = 0;
  double sequences_per_weight_read = 0;
  double pipeline_bytes_per_lap = 0;  // read from memory by all devices of a group, pp against tp
  double tensor_bytes_per_lap = 0;
  double tensor_collectives_s = 0;  // that tp over the same devices would add to each token
};

// Prices again under changed constants for the sensitivity, from the result's best layouts.
Verdict Judge(const Context& context, const SearchOptions& options, const SearchResult& result);

// Gain of p stages over p replicas, decode bound by memory time and capacity. REQUIRES: rho < 1.
double ReplicaRule(double rho, double stages);

}  // namespace penstock::plan
