// The chain of actions that decides when a timeline ends.

#pragma once

#include <string>
#include <vector>

#include "base/json_reader.h"
#include "trace/timeline.h"

namespace penstock::trace {

struct PathStep {
  RankId rank;
  Slice slice;        // the action
  double lead_s = 0;  // time between the end of the step before and its start: a message in
                      // flight, or in a measured timeline anything
  bool hop = false;   // the step before is on another rank
};

// From the first action to the last one to end. Backwards from the latest end: an action that
// started when the one before it on its rank ended follows that one; one that started after a wait
// follows the action that the wait names. Needs waits and messages on record. O(slices log slices).
std::vector<PathStep> CriticalPath(const Timeline& timeline);

// [{"rank","action","start_s","end_s","lead_s"}].
Json CriticalPathJson(const Timeline& timeline, const std::vector<PathStep>& path);

// The actions of the path in order, "rank 0: 0F0 0F1 > rank 1: 1F1 1B1 > ...", in lines of at most
// `width` columns that end with a newline. Of a path of more than `most` actions the first and the
// last ones.
std::string CriticalPathChain(const Timeline& timeline, const std::vector<PathStep>& path,
                              size_t width, size_t most);

// "12 F 12 s, 8 B 16 s, 6 hops 0.6 s": what the path consists of.
std::string CriticalPathSummary(const std::vector<PathStep>& path);

}  // namespace penstock::trace
