#include "serve/load_watch.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace penstock::serve {
namespace {

constexpr double kBeatsPerDeadline = 5;
constexpr double kNoWaitS = 1e-9;

// Beside set-up (edge 1) and whole control messages (edge 0).
comm::Lane BeatLane(int32_t source, int32_t target) {
  return {comm::LaneKind::kControl, source, target, 2};
}

comm::LaneOptions Options() {
  return {1, 2};
}

std::chrono::duration<double> Seconds(double s) {
  return std::chrono::duration<double>(s);
}

}  // namespace

LoadWatch::LoadWatch(comm::Channel& channel, double deadline_s)
    : channel_(channel), deadline_s_(deadline_s) {
  if (channel.rank() > 0) {
    peers_.push_back(0);
  } else {
    for (int32_t other = 1; other < channel.size(); ++other) {
      peers_.push_back(other);
    }
  }
  heard_.resize(peers_.size());
}

Result<> LoadWatch::Open(MemoryAccount& account) {
  for (const int32_t other : peers_) {
    PENSTOCK_TRY(channel_.Open(BeatLane(channel_.rank(), other), Options(), account));
    PENSTOCK_TRY(channel_.Open(BeatLane(other, channel_.rank()), Options(), account));
  }
  return {};
}

void LoadWatch::Beat() {
  const comm::Clock::time_point now = comm::Clock::now();
  if (now - beat_ < Seconds(deadline_s_ / kBeatsPerDeadline)) {
    return;
  }
  beat_ = now;
  const std::byte nothing{};
  const std::span<const std::byte> part(&nothing, 1);
  for (const int32_t other : peers_) {
    // Refused for want of room: a beat is there already. Whoever is lost is noticed by Await.
    static_cast<void>(
        channel_.Send({BeatLane(channel_.rank(), other), {beats_, 0}, DType::kU8, 1, 1, 0},
                      std::span(&part, 1), kNoWaitS));
  }
  ++beats_;
}

void LoadWatch::Hear() {
  for (size_t i = 0; i < peers_.size(); ++i) {
    const comm::Lane lane = BeatLane(peers_[i], channel_.rank());
    while (channel_.Ready(lane)) {
      if (!channel_.ReceiveNext(lane, deadline_s_).ok()) {
        return;  // a rank has failed; the control lane says so too
      }
      heard_[i] = comm::Clock::now();
    }
  }
}

Result<> LoadWatch::Await(ControlLink& control) {
  std::fill(heard_.begin(), heard_.end(), comm::Clock::now());
  std::vector<bool> there(peers_.size(), false);
  while (true) {
    Beat();
    Hear();
    bool all = true;
    for (size_t i = 0; i < peers_.size(); ++i) {
      if (there[i]) {
        continue;
      }
      if (control.Ready(peers_[i])) {
        PENSTOCK_TRY(control.Receive(peers_[i], deadline_s_, 0));
        there[i] = true;
        continue;
      }
      all = false;
      if (comm::Clock::now() - heard_[i] > Seconds(deadline_s_)) {
        return MakeError(
            ErrorCode::kDeadlineExceeded,
            "[serve.load] rank {} has heard nothing of rank {} for {:.1f} s while it "
            "loads its weights: it has stopped, or reads slower than --deadline allows",
            channel_.rank(), peers_[i], deadline_s_);
      }
    }
    if (all) {
      return {};
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

int64_t PlannedWatchBytes(int32_t rank, int32_t ranks, bool across) {
  const int64_t one = comm::LaneBufferBytes(Options(), true, across) +
                      comm::LaneBufferBytes(Options(), false, across);
  return rank == 0 ? (ranks - 1) * one : one;
}

}  // namespace penstock::serve
