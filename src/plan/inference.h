// Serving: the time of a layout for the prefill and the decode ring, its memory, and its figures at
// a number of sequences that start together, or at an arrival rate.
//
// The ring: a micro-batch comes back to the first stage only after its token is sampled at the last
// one, so with mu groups in flight a lap takes max(sum of stages + hops, mu x slowest stage). Each
// sequence keeps its state on every stage for that stage's layers, and all mu groups are alive.

#pragma once

#include <memory>
#include <optional>
#include <string>

#include "plan/context.h"

namespace penstock::plan {

// Prices layouts of one question. Keeps class prices of (tp, ep, rows) for reuse; not thread-safe.
class InferencePricer {
 public:
  explicit InferencePricer(const Context& context);
  ~InferencePricer();

  // Completes `plan.layout` (cut, groups, prefill chunk where they are 0 or empty) and fills the
  // figures. False where the layout is rejected (memory, latency, arrivals); the figures are filled
  // then too, as far as they make sense, and Why says it in words.
  bool Price(Plan& plan);
  std::string Why(const Plan& plan) const;

  // Cuts a priced plan again with what crosses each boundary weighed as in model/cut_search.h, and
  // prices it; leaves it as it is where that does not fit, or all boundaries are alike.
  void WeighCrossing(Plan& plan);

  // Seconds of each stage for one decode step of `rows` sequences at the workload's mean context.
  std::vector<double> DecodeStages(const Layout& layout, double rows);

  // Most sequences of the workload's final length that a replica's memory holds; layout.cut set.
  double MostSequences(const Layout& layout);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The lines of the arithmetic behind a plan: for pencil and paper.
void ExplainInference(const Context& context, Plan& plan);

}  // namespace penstock::plan
