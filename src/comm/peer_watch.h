// Whether the processes of other ranks still run, for those on this machine: a rank that was killed
// is noticed at once instead of after a deadline.
//
// Thread safety: none; one thread per rank.

#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace penstock::comm {

// Names a process among those of all machines. Plain bytes, to be exchanged.
struct ProcessName {
  // Its boot and process-id namespace; where PENSTOCK_MACHINE is set, also that name, so that ranks
  // of one machine can be rehearsed as ranks of several.
  uint64_t machine = 0;
  int64_t pid = 0;

  static ProcessName Mine();
};

class PeerWatch {
 public:
  // `names`: one per rank. A rank of another machine, or one that can't be watched, counts as
  // running: one that ends without a word is then noticed by whoever waits for its message, when
  // the deadline is over, unless the launcher ends all ranks before.
  PeerWatch(std::span<const ProcessName> names, int rank);
  ~PeerWatch();
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

  // A rank whose process has ended, `preferred` if it is one of them; -1: none. One system call.
  int Ended(int preferred);

 private:
  std::vector<int> handles_;  // per rank, -1: not watched
};

}  // namespace penstock::comm
