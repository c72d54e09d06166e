// Deadlines for MPI's own meetings. All ranks meet when MPI starts and when it ends, and MPI waits
// there without end for one that never comes: its process is stopped, is another program, or has
// ended before MPI knew of it. No message can be awaited then, so a thread counts the time.
//
// Thread safety: made and destroyed by one thread; `on_late` runs on the watching one.

#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/result.h"

namespace penstock::comm {

class Channel;

// What is done about a meeting that takes too long.
struct MeetingLimit {
  double seconds = 0;  // 0: it may take as long as it likes
  // Called once, after `seconds` in which this process itself ran, with kDeadlineExceeded naming
  // the ranks that are missed and what their processes do. MPI can't be asked to stop: it should
  // end the process.
  std::function<void(const Error&)> on_late;
};

// CreateMpiChannel and FinalizeMpi of channel.h under a limit. All ranks meet in both. Called
// again, by all ranks, when the channel before is destroyed, the first gives a fresh one for
// another run.
Result<std::unique_ptr<Channel>> CreateMpiChannel(const MeetingLimit& limit);
void FinalizeMpi(const MeetingLimit& limit);

class MeetingWatch {
 public:
  // `meeting`: what it waits for, as in "to start".
  MeetingWatch(MeetingLimit limit, std::string meeting);
  ~MeetingWatch();  // all ranks have met
  MeetingWatch(const MeetingWatch&) = delete;
  MeetingWatch& operator=(const MeetingWatch&) = delete;

 private:
  void Watch();

  MeetingLimit limit_;
  std::string meeting_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool met_ = false;
  std::thread thread_;
};

// This rank and the number of ranks as the launcher's environment says; 0 of 1 where it says
// nothing.
struct LaunchedRank {
  int rank = 0;
  int ranks = 1;

  static LaunchedRank Mine();
};

// Other ranks of this job that can not come to a meeting, and why, from the processes of this
// machine: "rank 2: its process 123 (sh) is stopped". Empty where all look well, or nothing can be
// known. Reads /proc.
std::string AbsentRanksText();

}  // namespace penstock::comm
