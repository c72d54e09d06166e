#include "cli/setup_watch.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "cli/model_flags.h"
#include "comm/channel.h"

namespace penstock::cli {
namespace {

constexpr auto kLook = std::chrono::milliseconds(50);
constexpr auto kOthersSpeak = std::chrono::milliseconds(500);

}  // namespace

SetupWatch::SetupWatch(int status, std::function<void()> say)
    : status_(status), say_(std::move(say)), thread_([this] { Watch(); }) {}

SetupWatch::~SetupWatch() {
  Over();
  thread_.join();
}

void SetupWatch::Over() {
  int expected = kPreparing;
  state_.compare_exchange_strong(expected, kOver);
  while (state_ == kEnding) {
    std::this_thread::sleep_for(kLook);
  }
}

void SetupWatch::Watch() {
  while (state_ == kPreparing) {
    int expected = kPreparing;
    if (Interrupted() && state_.compare_exchange_strong(expected, kEnding)) {
      if (say_) {
        say_();
      } else {
        std::this_thread::sleep_for(kOthersSpeak);
      }
      std::fflush(nullptr);
      if (comm::LaunchedByMpi()) {
        AbortAll(status_);
      }
      std::_Exit(status_);
    }
    std::this_thread::sleep_for(kLook);
  }
}

}  // namespace penstock::cli
