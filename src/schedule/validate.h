// Proof before execution: a schedule that runs has passed Validate.
//
// What is proven: every (stage, micro-batch, slice) has exactly one F and, unless nothing runs
// backward, one B or one I and one W, on the rank that holds the stage; order holds on each rank
// and across ranks; every message has its other end and is there before it is needed; no rank waits
// for ever under the transport's rule; values are not read after their release; the saved
// activations of each rank stay within a limit. The brute-force checker in validate_test.cc shares
// no code with this.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "schedule/schedule.h"
#include "schedule/transport.h"

namespace penstock::schedule {

enum class ProblemKind : uint8_t {
  kParse,      // the file can't be read
  kMissing,    // an action that must be there is not
  kDuplicate,  // an action that must be there once is there twice
  kOrder,      // on one rank, an action stands before one that it needs
  kDeadlock,   // ranks wait for each other
  kUnmatched,  // a SEND without RECV, a RECV without SEND, a WAIT without what it waits for, a
               // barrier that a rank lacks
  kRange,      // a stage, micro-batch, slice or peer outside the schedule's
  kPlacement,  // an action on a rank that does not hold its stage
  kMemory,     // more saved activations than the limit
  kShape,      // the header contradicts the lists, or a cell holds what it can't
};

// "parse", "missing", ...
std::string_view ProblemKindText(ProblemKind kind);

struct Problem {
  ProblemKind kind = ProblemKind::kParse;
  int rank = -1;        // -1: not of one rank
  int position = -1;    // cell in the rank's row, from 0, idle cells counted; -1: not at one cell
  std::string action;   // text form, may be empty
  std::string message;  // what is wrong, and what would be legal where that is easy to say
};

struct ValidateOptions {
  Transport transport;  // for lowered schedules; compute-only ones have free data flow
  // Most saved activations per rank: none (empty), one for all ranks, or one per rank. In shares:
  // saved (stage, micro-batch) pairs over v; in bytes where activation_bytes is given.
  std::vector<double> activation_limit;
  std::vector<double> activation_bytes;  // per stage, of one micro-batch; empty: count shares
  int max_problems = 50;                 // listed; further ones are only counted
};

struct Report {
  std::vector<Problem> problems;
  int64_t problem_count = 0;  // also those that are not listed
  // Per rank, in shares. An activation lives from the start of F (of R where it is recomputed) to
  // the end of its B or W; in an overlapped pair F counts before B releases. Forward only: while F
  // runs.
  std::vector<double> peak_activations;
  std::vector<double> peak_bytes;  // per rank; empty without activation_bytes
  // Cells of the longest rank when every compute cell takes one slot and messages none; 0 where the
  // schedule can't run.
  int64_t makespan_slots = 0;
  // Per rank: most weight-gradient contributions that come before those of earlier micro-batches
  // and must be held back, so that gradients add up in ascending order.
  std::vector<int64_t> held_gradients;

  bool ok() const { return problem_count == 0; }
};

// Linear in the number of actions; memory about 40 bytes per (stage, micro-batch, slice), never on
// the word of a header: a header that claims far more than there are actions is a `missing` problem
// at once.
Report Validate(const Schedule& schedule, const ValidateOptions& options = {});

// The same as a Result: kInvalidSchedule with the first problems and the grid around the first
// place.
Result<> Prove(const Schedule& schedule, const ValidateOptions& options = {});

// For people: a line per problem, then the grid with the place of the first one marked. "" where
// there is none.
std::string FormatProblems(const Schedule& schedule, const Report& report);

}  // namespace penstock::schedule
