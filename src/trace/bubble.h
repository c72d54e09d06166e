// The bubble account: why a rank was idle, in seconds that sum to its idle time.

#pragma once

#include <vector>

#include "base/json_reader.h"
#include "trace/timeline.h"

namespace penstock::trace {

struct Bubble {
  double fill_s = 0;           // before the rank's first work
  double drain_s = 0;          // after its last
  double imbalance_s = 0;      // the producer of what it waited for had not finished
  double communication_s = 0;  // the awaited message was in flight
  double barrier_s = 0;
  double other_s = 0;  // no wait on record; in a simulation rounding only

  double Sum() const {
    return fill_s + drain_s + imbalance_s + communication_s + barrier_s + other_s;
  }
};

struct RankAccount {
  double busy_s = 0;
  double idle_s = 0;  // window - busy
  Bubble bubble;      // sums to idle_s
};

struct Account {
  double span_s = 0;        // the window
  double bubble_ratio = 0;  // idle rank-seconds over all rank-seconds, 0 for an empty window
  std::vector<RankAccount> ranks;
};

// The account of one rank over [begin_s, end_s]. A rank without work is idle in fill_s.
// REQUIRES: the window covers the rank's work.
RankAccount AccountOf(const RankTotals& totals, double begin_s, double end_s);

// Over the timeline's window, from each rank's totals. O(ranks).
Account AccountOf(const Timeline& timeline);

// {"fill_s","drain_s","imbalance_s","communication_s","barrier_s","other_s"}.
Json BubbleJson(const Bubble& bubble);

}  // namespace penstock::trace
