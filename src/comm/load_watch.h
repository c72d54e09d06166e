// While ranks prepare (data, weights, checkpoints): short messages between rank 0 and each other
// one, both ways, so that a rank that stalls is noticed within the deadline, however long the work
// itself takes.
//
// Thread safety: one thread per rank, the one that calls its channel.

#pragma once

#include <functional>
#include <span>
#include <vector>

#include "comm/channel.h"

namespace penstock::comm {

class LoadWatch {
 public:
  LoadWatch(Channel& channel, double deadline_s);

  // Opens the lanes. Errors: the account's.
  Result<> Open(MemoryAccount& account);

  // Says that this rank gets on. Call it often: it sends at most five times per deadline and never
  // waits (where the last beats were not read yet there is nothing to add).
  void Beat();

  // Whether what is awaited of a peer is there; may take it.
  using There = std::function<Result<bool>(int32_t peer)>;

  // Waits, beating, until `there` has been true once for each of `peers` (of rank 0: any others; of
  // the others: rank 0). Errors: kDeadlineExceeded naming a rank that said nothing for the length
  // of the deadline; kPeerLost; those of `there`.
  Result<> Await(std::span<const int32_t> peers, const There& there);

  // Waits like this for a message of the lane, which it does not take. The lane comes from or goes
  // to rank 0.
  Result<> AwaitMessage(const Lane& lane);

  // Sends like this: however long it takes until there is a credit, as long as the target beats.
  Result<> Send(const MessageHeader& header, std::span<const std::span<const std::byte>> parts);

  // Returns when every rank has called it.
  Result<> Meet();

 private:
  void Hear();
  Result<> CheckHeard(int32_t peer) const;
  Result<> Tell(int32_t peer);

  Channel& channel_;
  double deadline_s_;
  std::vector<int32_t> peers_;
  std::vector<Clock::time_point> heard_;  // per peer
  Clock::time_point beat_{};
  int64_t beats_ = 0;
};

// Bytes that Open takes on a rank.
int64_t PlannedWatchBytes(int32_t rank, int32_t ranks, bool across_processes);

}  // namespace penstock::comm
