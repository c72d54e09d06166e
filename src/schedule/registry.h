// The schedules that Penstock knows by name. A new one is a file in generators/ and a line in
// registry.cc.

#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "schedule/schedule.h"

namespace penstock::schedule {

struct GeneratorOptions {
  int ranks = 1;          // p
  int micro_batches = 1;  // m
  int chunks = 0;         // v; 0: the generator's default
  int slices = 0;         // sequence slices per micro-batch; 0: the generator's default
};

struct GeneratorInfo {
  std::string_view name;
  std::string_view summary;  // one line
  PlacementKind placement;
  int default_chunks;  // v where none is asked for
  bool any_chunks;     // takes other v than the default
  int default_slices;  // 1 where the schedule does not slice
  bool backward;       // false: forward-only
  Result<Schedule> (*make)(
      const GeneratorOptions& options);  // options with chunks and slices filled in and checked
};

// In the order of the documentation.
std::span<const GeneratorInfo> Generators();

// Null when there is none of this name.
const GeneratorInfo* FindGenerator(std::string_view name);

// A legal compute-only schedule for any ranks, micro-batches and chunks of at least 1, no idle
// cells, W of one stage ascending by micro-batch. Time and memory O(actions). Errors:
// kInvalidArgument (unknown name with the nearest one; a number below 1; chunks or slices that this
// schedule does not take; more than kMaxStages stages or kMaxGenerated (stage,
// micro-batch, slice) triples), before anything is allocated.
Result<Schedule> Generate(std::string_view name, const GeneratorOptions& options);

inline constexpr int64_t kMaxGenerated = int64_t{1} << 24;

}  // namespace penstock::schedule
