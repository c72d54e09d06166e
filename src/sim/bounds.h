// What no order of the same actions on the same ranks can beat.

#pragma once

#include <vector>

#include "cost/cost_model.h"
#include "schedule/schedule.h"

namespace penstock::sim {

struct Bounds {
  double makespan_s = 0;
  double period_s = 0;
};

// Bounds over all orders of the schedule's own compute actions (B stays whole where it is whole)
// with the same placement, costs and links, each the largest of:
//
// Makespan, per rank with work A: earliest arrival of its first F, plus A, plus the shortest way
// from the end of its last action to the end of the step (with whole backwards: down the chain from
// its first stage; with I and W apart the rank can end with W's, so only what these can't cover).
// Also, since no backward starts before one micro-batch went all the way up and back: that time,
// plus the rank's backward work, plus that shortest way; its mirror image, the rank's forwards and
// then the way of the last one up and back; and one micro-batch alone, up and down.
//
// Period: work of the busiest rank; occupancy of the busiest link; for a ring one whole lap.
//
// With a limit A_r of saved activations (in shares, `activation_limit` one per rank, or empty) by
// Little's law: each (stage, micro-batch) of rank r is held at least from its F over the stages
// after it and back to the end of its own B or W; the sum of these times over the rank's work
// divided by A_r bounds both.
//
// O(actions + stages).
Bounds LowerBounds(const schedule::Schedule& schedule, const cost::CostModel& costs,
                   const std::vector<double>& activation_limit = {});

}  // namespace penstock::sim
