// Foretold beside measured: the same actions in two timelines, one by one and summed per kind and
// rank.

#pragma once

#include <string>
#include <vector>

#include "base/json_reader.h"
#include "trace/bubble.h"
#include "trace/timeline.h"

namespace penstock::trace {

// One action (rank and text) of both timelines; over several steps the median.
struct ActionDifference {
  int rank = 0;
  std::string action;
  double planned_s = 0;
  double measured_s = 0;
  int64_t count = 0;  // in the measured timeline

  double difference_s() const { return measured_s - planned_s; }
};

// All actions of one kind on one rank, seconds per step.
struct KindDifference {
  int rank = 0;
  schedule::OpKind kind = schedule::OpKind::kIdle;
  int64_t planned_count = 0;  // per step, rounded
  int64_t measured_count = 0;
  double planned_s = 0;
  double measured_s = 0;
};

struct Comparison {
  std::string planned_name;
  std::string measured_name;
  int planned_steps = 0;  // how often the most frequent action of a rank occurs
  int measured_steps = 0;
  int planned_median_step = -1;  // number of the step that stands for several of training; else -1
  int measured_median_step = -1;
  double planned_step_s = 0;  // that step's length; else window / steps
  double measured_step_s = 0;
  std::vector<KindDifference> kinds;
  std::vector<ActionDifference> actions;  // in both, in the order of the plan
  std::vector<std::string> only_planned;  // "rank 1: 2F0"
  std::vector<std::string> only_measured;
  Account planned_account;  // of that step; else of the whole windows / steps
  Account measured_account;
};

// Step times, kinds and accounts are those of one step: of several training steps the median one by
// length (they may lie apart: evaluations, checkpoints), of steps that lie over each other, as in
// serving, the mean. O(slices).
Comparison Compare(const Timeline& planned, const Timeline& measured);

Json ComparisonJson(const Comparison& comparison);

// Tables for people: step, kinds, idle causes, and the `most_actions` actions that differ most.
std::string ComparisonText(const Comparison& comparison, int most_actions = 10);

}  // namespace penstock::trace
