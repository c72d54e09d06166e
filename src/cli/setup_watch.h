// Ctrl-C while a run is still being prepared: reading text, loading, trying a step. Nothing of that
// is worth keeping, and none of it asks whether to stop, so a thread watches and ends the process.

#pragma once

#include <atomic>
#include <functional>
#include <thread>

namespace penstock::cli {

class SetupWatch {
 public:
  // `say`: what an interrupted run prints, on the watching thread, right before the process ends
  // with this exit status. Null: another rank, a process of its own, speaks, and is given time to.
  SetupWatch(int status, std::function<void()> say);
  ~SetupWatch();
  SetupWatch(const SetupWatch&) = delete;
  SetupWatch& operator=(const SetupWatch&) = delete;

  // From here on the run looks after interrupts itself. Does not return where one came before.
  void Over();

 private:
  enum State : int { kPreparing, kOver, kEnding };

  void Watch();

  int status_;
  std::function<void()> say_;
  std::atomic<int> state_ = kPreparing;
  std::thread thread_;
};

}  // namespace penstock::cli
