// Is pipelining worth it? The answer in words and numbers that can be followed by hand.

#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plan/crossing.h"
#include "plan/search.h"
#include "plan/sensitivity.h"

namespace penstock::plan {

// What one device holds when one group of `tp` devices is cut into p stages.
struct ShareByStages {
  int64_t stages = 1;
  double weights_bytes = 0;
  double kv_same_group_bytes = 0;  // with the same sequences in each of the p groups in flight
  double kv_same_total_bytes = 0;  // with the same sequences in all
};

// Where the two sides of a choice cost the same, each by one formula that can be redone by hand.
struct BreakEven {
  // Serving: rows that share one read of the weights at which arithmetic takes as long as the read
  // (products alone; keys and values are never shared). Training: tokens per micro-batch and
  // device. Nothing where even 2^20 rows stay below.
  std::optional<double> batch;
  // Its terms, in seconds of one group of devices that holds the whole model: batch = weights_s /
  // (arithmetic_row_s - activations_row_s), at the rates that so many rows reach and for the
  // experts that they touch.
  double weights_s = 0;          // reading all weights once
  double arithmetic_row_s = 0;   // of one row
  double activations_row_s = 0;  // reading and writing what goes in and comes out, of one row
  // Sequences in flight (training: per step) at which the best layout with stages equals the best
  // without: within 16 times either way. And the arrivals that keep as many alive.
  std::optional<double> sequences;
  std::optional<double> requests_per_s;
  // Groups that keep every stage of the best staged layout busy, ceil((stages + hops) / slowest),
  // and the sequences in them. 0 without a staged layout.
  double full_groups = 0;
  double full_sequences = 0;
};

// The same devices used as p stages, or as tensor parallelism p times as wide: what one lap of
// decoding reads, and what it sends.
struct StagesAgainstTensor {
  int64_t stages = 0;  // 0: not compared
  int64_t devices = 0;
  double pipeline_bytes = 0;  // read from all memories of the group: weights once per group
  double tensor_bytes = 0;    // weights once
  double pipeline_memory_s = 0;
  double tensor_memory_s = 0;
  double hops_s = 0;         // of one lap
  double collectives_s = 0;  // of one lap, beyond those that both have
  double collectives = 0;    // how many
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
  BreakEven break_even;
  StagesAgainstTensor against;
  std::optional<CrossingCost> crossing;  // of the best layout with stages
};

// Prices again under changed constants for the sensitivity, from the result's best layouts.
Verdict Judge(const Context& context, const SearchOptions& options, const SearchResult& result);

// Gain of p stages over p replicas, decode bound by memory time and capacity. REQUIRES: rho < 1.
double ReplicaRule(double rho, double stages);

}  // namespace penstock::plan
