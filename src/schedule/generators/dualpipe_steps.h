// The eight steps that DualPipe and DualPipeV share.

#pragma once

#include "schedule/schedule.h"

namespace penstock::schedule {

// One rank's two streams: stream 0 enters the pipeline near this rank, stream 1 far from it.
struct DualStreams {
  int stage[2];
  int first_micro_batch[2];  // of the stream
  int count[2];              // micro-batches of the stream that exist; further ones are left out
};

// Appends the program of `rank`. `depth`: ranks from the entry to the turn; `position`: 0 at the
// entry, depth-1 at the turn; `per_stream`: micro-batches per stream that the formula runs with.
// REQUIRES: per_stream >= 2 * depth.
void WriteDualPipe(Schedule& schedule, int rank, int depth, int position, int per_stream,
                   const DualStreams& streams);

}  // namespace penstock::schedule
