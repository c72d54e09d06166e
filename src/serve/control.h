// Control messages between rank 0 and the others, beside the schedule's: what to set up, that a
// rank is ready, what it measured.

#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "comm/channel.h"

namespace penstock::serve {

// Text or bytes of any length travel in pieces of at most this size.
inline constexpr int64_t kControlPieceBytes = 64 << 10;

class ControlLink {
 public:
  explicit ControlLink(comm::Channel& channel) : channel_(channel) {}

  // Rank 0 opens lanes from and to every other rank, the others theirs.
  Result<> Open(MemoryAccount& account);

  Result<> Send(int32_t target, std::span<const std::byte> bytes, double deadline_s);
  // True when Receive would not wait for its first piece.
  bool Ready(int32_t source);
  // Calls Progress() after each piece. Errors: kCorruptData when more than `limit_bytes` come.
  Result<std::vector<std::byte>> Receive(int32_t source, double deadline_s, int64_t limit_bytes);

 private:
  comm::Channel& channel_;
};

// Bytes that Open takes on a rank.
int64_t PlannedControlBytes(int32_t rank, int32_t ranks, bool across_processes);

}  // namespace penstock::serve
