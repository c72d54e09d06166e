// While ranks load: short messages between rank 0 and each other one, both ways, so that a rank
// that stalls is noticed within the deadline, however long loading takes.
//
// Thread safety: one thread per rank, the one that calls its channel.

#pragma once

#include <vector>

#include "comm/channel.h"
#include "serve/control.h"

namespace penstock::serve {

class LoadWatch {
 public:
  LoadWatch(comm::Channel& channel, double deadline_s);

  // Opens the lanes. Errors: the account's.
  Result<> Open(MemoryAccount& account);

  // Says that this rank gets on. Call it often: it sends at most five times per deadline and never
  // waits (where the last beats were not read yet there is nothing to add).
  void Beat();

  // Waits until the others (rank 0: all of them; the rest: rank 0) have sent an empty control
  // message, beating meanwhile. Errors: kDeadlineExceeded naming a rank that said nothing for the
  // length of the deadline; kPeerLost.
  Result<> Await(ControlLink& control);

 private:
  void Hear();

  comm::Channel& channel_;
  double deadline_s_;
  std::vector<int32_t> peers_;
  std::vector<comm::Clock::time_point> heard_;  // per peer
  comm::Clock::time_point beat_{};
  int64_t beats_ = 0;
};

// Bytes that Open takes on a rank.
int64_t PlannedWatchBytes(int32_t rank, int32_t ranks, bool across_processes);

}  // namespace penstock::serve
