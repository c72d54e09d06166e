#include "comm/peer_watch.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

namespace penstock::comm {
namespace {

// A process that does nothing until it is killed.
class Sleeper {
 public:
  Sleeper() : pid_(::fork()) {
    if (pid_ == 0) {
      while (true) {
        ::pause();
      }
    }
  }

  ~Sleeper() {
    Kill();
    ::waitpid(pid_, nullptr, 0);
  }

  void Kill() const { ::kill(pid_, SIGKILL); }

  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

// The kernel needs a moment to end a process.
int EndedSoon(PeerWatch& watch, int preferred) {
  int ended = -1;
  for (int tries = 0; tries < 500 && ended < 0; ++tries) {
    ended = watch.Ended(preferred);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return ended;
}

TEST(PeerWatch, ProcessesThatEndAreNoticedBeforeAnybodyCollectsThem) {
  const Sleeper first;
  const Sleeper second;
  ProcessName names[3] = {ProcessName::Mine(), ProcessName::Mine(), ProcessName::Mine()};
  names[1].pid = first.pid();
  names[2].pid = second.pid();
  PeerWatch watch(names, 0);
  EXPECT_EQ(watch.Ended(1), -1);
  second.Kill();
  EXPECT_EQ(EndedSoon(watch, 1), 2);
  first.Kill();
  for (int tries = 0; tries < 500 && watch.Ended(1) != 1; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(watch.Ended(1), 1);
  EXPECT_EQ(watch.Ended(2), 2);
}

TEST(PeerWatch, ProcessesOfOtherMachinesCountAsRunning) {
  const Sleeper other;
  ProcessName names[2] = {ProcessName::Mine(), ProcessName::Mine()};
  EXPECT_NE(names[0].machine, 0U);
  names[1].machine ^= 1;
  names[1].pid = other.pid();
  other.Kill();
  PeerWatch watch(names, 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(watch.Ended(1), -1);
}

}  // namespace
}  // namespace penstock::comm
