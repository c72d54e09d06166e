// The simulator: a schedule and its costs give times, idle accounts and memory.
//
// What it models. A rank does one action at a time in its program's order. F, B, I, W, R and the
// optimizer take the cost model's seconds; everything else takes none. In a compute-only schedule a
// result leaves when its action ends and starts the action that needs it one link delay later. In a
// lowered one the SEND and RECV actions move values by the rules of the transport. The parts of an
// overlapped pair run in the order written: each starts when its own input is there and releases
// its result at its own end.
//
// Every such rule is a maximum of sums along the programs' order, so times are worked out action by
// action as inputs become known, without a queue of events: O(actions) time, memory for one step's
// (stage, micro-batch) pairs however many steps run.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cost/cost_model.h"
#include "schedule/schedule.h"
#include "schedule/transport.h"
#include "trace/bubble.h"
#include "trace/timeline.h"

namespace penstock::sim {

// Of one action of a rank's program, as a run measured it.
struct ActionSeconds {
  double before_s = 0;  // what the rank does between the action before and this one, waits left out
  double own_s = 0;     // of a RECV: once the message is there
};

struct SimOptions {
  schedule::Transport transport;  // of a lowered schedule; ignored for a compute-only one
  bool barrier = false;           // all ranks start each step together
  bool timeline = false;          // keep the timeline, of `steps` steps
  bool period = true;             // run on until the time per step repeats
  int steps = 1;                  // steps whose ends are reported
  // Most that a rank may hold, in shares (see RankResult); for the memory-limited bounds only. One
  // per rank, or empty.
  std::vector<double> activation_limit;
  // Per rank and position in its program; also messages, sums and releases take time then, and the
  // timeline has slices of them. Only waits follow from the rules. Null: the cost model's seconds.
  // Bounds are not worked out with it.
  const std::vector<std::vector<ActionSeconds>>* action_seconds = nullptr;
};

struct RankResult {
  double busy_s = 0;
  trace::Bubble bubble;  // of the isolated step; sums to makespan - busy
  // Most saved activations at once, in shares: saved (stage, micro-batch) pairs / v. An activation
  // lives from the start of its F (of its R where it is recomputed) to the end of its B or W. A
  // forward-only schedule saves nothing: its share lives for the F alone.
  double peak_activations = 0;
  int64_t peak_activation_bytes = 0;  // by the cost model's activation_bytes; 0: not known
};

struct SimResult {
  double makespan_s = 0;  // one isolated step
  // Time per step back to back, once it repeats. `period_exact` is false when it had not settled
  // within the limit of steps: then it is the mean of the later half.
  double period_s = 0;
  bool period_exact = true;
  double bubble_ratio = 0;  // idle rank-seconds over all, of the isolated step
  // No order of the same actions on the same ranks is faster: see bounds.h.
  double lower_bound_s = 0;
  double period_lower_bound_s = 0;
  std::vector<double> step_end_s;  // of options.steps steps back to back
  std::vector<RankResult> ranks;
  int64_t actions = 0;        // of one step, without idle cells
  int64_t messages = 0;       // between different ranks, in one step
  int64_t message_bytes = 0;  // as far as sizes are known
  std::optional<trace::Timeline> timeline;
};

// Errors: kInvalidSchedule (an index out of range, or no rank can go on: the message names what
// each waits for), kInvalidArgument (costs that do not fit the schedule,
// seconds of other than all actions, a timeline of more than 2^26 actions).
// Cost: O(actions) per simulated step, at least 2 million actions a second on one core.
Result<SimResult> Simulate(const schedule::Schedule& schedule, const cost::CostModel& costs,
                           const SimOptions& options = {});

// The makespan alone, for searches. Errors as Simulate.
Result<double> SimulateMakespan(const schedule::Schedule& schedule, const cost::CostModel& costs,
                                const schedule::Transport& transport = {});

}  // namespace penstock::sim
