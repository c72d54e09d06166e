// Passes: each takes a schedule and gives a changed copy. One file each under passes/. All are
// linear in the number of actions unless they say otherwise, and none but AddCommunication proves
// its input: run Validate where a schedule comes from outside.
//
// Errors (all): kInvalidSchedule where the input is not of the form that the pass needs, naming
// rank and action.

#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/result.h"
#include "schedule/schedule.h"

namespace penstock::schedule {

// Every B becomes I and, in the next cell, W. In an overlapped pair I takes B's place.
Result<Schedule> SplitBackward(const Schedule& schedule);

// Every I that is directly followed by the W of the same stage, micro-batch and slice becomes B.
// Undoes SplitBackward outside overlapped pairs; there, only an I at the end of its cell is merged.
Result<Schedule> MergeBackward(const Schedule& schedule);

enum class LongRoute : uint8_t {
  kNearest,   // from the stage that had the value last: neighbours where every stage reads
  kDirect,    // from the stage that made it
  kCheapest,  // whatever way link_seconds makes the fastest, also through stages that do not read
              // it
};

// Seconds of a message of `bytes` (0: not known) between two different ranks.
using LinkSeconds = std::function<double(RankId from, RankId to, int64_t bytes)>;

struct LowerOptions {
  LongRoute route = LongRoute::kNearest;
  bool naive =
      false;  // long values go over every hop of the chain again, also to ranks that hold them
  int credits = 1;  // room that the result may count on, per edge and direction
  // Each RECV stands where its sender has got to, in one order of all messages over all ranks: no
  // deadlock under any transport, rendezvous too. Ranks then wait for each other more than they
  // need to; `credits` has no effect.
  bool rendezvous = false;
  LinkSeconds link_seconds;  // for kCheapest; null: all links alike, which is kNearest
};

// Adds SEND and RECV. The chain's value goes to the next stage, its gradient back, where the ranks
// differ; a long value goes once to each rank that holds one of its readers, which is the least
// that can be sent (gradients of long values travel with the chain's). With kCheapest it may take a
// detour over ranks in between, each of which then holds it: where two fast links are faster than a
// slow one; among equally fast ways the one with the fewest messages, then from the nearest stage.
// RECVs stand right before the computation that needs them, earlier only where a sender would
// otherwise wait for room; a SEND stands right after the computation that makes its value.
// Overlapped pairs are taken apart, so that each part waits for its own input and sends at its own
// end. The result is free of deadlock for this many credits and more, not under rendezvous, where
// two neighbours that both send first never meet (1F1B does so in its steady state); with
// `rendezvous` under all. Proves its input first. Cost O(n log p).
Result<Schedule> AddCommunication(const Schedule& schedule, const LowerOptions& options = {});

// Takes all SEND, RECV, WAIT_SEND and FREE actions out: compute-only again.
Result<Schedule> RemoveCommunication(const Schedule& schedule);

// A WAIT for every SEND that has none: WAIT_SEND_F before the backward of its stage and micro-batch
// (forward only: before the stage's next SEND_F), WAIT_SEND_B before the stage's next SEND_B; what
// is left at the end of the list.
Result<Schedule> AddWaits(const Schedule& schedule);
// Without any WAIT.
Result<Schedule> RemoveWaits(const Schedule& schedule);

// R before the B or I of every (stage, micro-batch, slice) of these stages (empty: all), so that
// only the stage's input is kept from F on. Left out where the backward directly follows its own F.
// Schedules that have R for a triple keep it.
Result<Schedule> PlaceRecompute(const Schedule& schedule, const std::vector<StageId>& stages = {});

// FREE for each long value on each rank after its last use there: F, B, I, W or R of a stage that
// reads it, or its last SEND; right after F where its maker's rank does not use it. REQUIRES:
// lowered, no FREE yet.
Result<Schedule> ReleaseValues(const Schedule& schedule);

struct StepEndOptions {
  bool reduce = true;     // REDUCE_GRAD for every stage, and for every tied edge on both owners
  bool optimizer = true;  // OPT for every stage
};

// What ends a training step: the reduction over replicas of a stage right after its last B or W;
// reductions between ranks (two copies of the weights, tied weights) at the end of the lists in one
// order, so that they cannot wait for each other; then OPT. REQUIRES: one step, none of these
// actions yet.
Result<Schedule> AddStepEnd(const Schedule& schedule, const StepEndOptions& options = {});

// `steps` copies one after another, micro-batches counted on; with `barrier` a BARRIER between
// them. REQUIRES: one step.
Result<Schedule> UnrollSteps(const Schedule& schedule, int steps, bool barrier);

// Without idle cells.
Result<Schedule> RemoveIdle(const Schedule& schedule);

}  // namespace penstock::schedule
