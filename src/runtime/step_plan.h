// Step plan: what the next micro-batch consists of. The decider emits them, numbered; every stage
// executes them in order and checks step and shape instead of inferring them.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"

namespace penstock::runtime {

// Which rows of a sequence's slice yield logits.
enum class Select : uint8_t { kNone, kLast, kAll };

// Consecutive rows of one sequence. Position p of the sequence lies in block blocks[pool][p /
// block_tokens].
struct SequenceSlice {
  int32_t sequence = 0;    // the decider's number of the sequence
  bool long_rope = false;  // the sequence's full length asks for LongRoPE's long factors
  Select select = Select::kNone;
  int64_t first_position = 0;
  std::vector<int32_t> tokens;  // ids of the rows
  std::vector<std::vector<int32_t>>
      blocks;  // per block pool, the whole table; -1: fell out of the window

  int64_t rows() const { return static_cast<int64_t>(tokens.size()); }

  int64_t selected() const {
    return select == Select::kAll ? rows() : (select == Select::kLast ? 1 : 0);
  }
};

enum class PlanKind : uint8_t {
  kWork,
  kHeartbeat,  // nothing to do; the decider is alive
  kStop,       // the run is over
};

struct StepPlan {
  PlanKind kind = PlanKind::kWork;
  int64_t step = 0;  // 0, 1, 2, ... over the whole run
  int32_t micro_batch =
      0;  // position in the lap of the ring: step number modulo groups, unless groups were skipped
  std::vector<SequenceSlice> slices;
  std::vector<std::byte>
      note;  // for whoever consumes the logits (sampling parameters); opaque here

  int64_t rows() const;
  int64_t selected() const;
};

// Bounds that a decoded plan is held to, and from which the largest message follows.
struct PlanLimits {
  int64_t max_rows = 0;
  int32_t max_sequences = 0;
  int32_t pools = 1;
  int64_t max_blocks_per_table = 0;
  int64_t max_note_bytes = 0;
};

int64_t MaxPlanBytes(const PlanLimits& limits);

std::vector<std::byte> EncodePlan(const StepPlan& plan);

// Errors: kCorruptData (truncated, counts beyond the limits, a slice without rows, bytes left
// over).
Result<StepPlan> DecodePlan(std::span<const std::byte> bytes, const PlanLimits& limits);

}  // namespace penstock::runtime
