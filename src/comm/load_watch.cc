#include "comm/load_watch.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace penstock::comm {
namespace {

constexpr double kBeatsPerDeadline = 5;
constexpr double kNoWaitS = 1e-9;

// Edges of control lanes, beside those of serving (0, 1), kCutEdge and those of training (1000 and
// on).
enum : int32_t { kBeatEdge = 2, kWordEdge };

Lane LaneOf(int32_t edge, int32_t source, int32_t target) {
  return {LaneKind::kControl, source, target, edge};
}

constexpr LaneOptions kBeats = {1, 2};
constexpr LaneOptions kWords = {1, 1};

std::chrono::duration<double> Seconds(double s) {
  return std::chrono::duration<double>(s);
}

constexpr std::byte kNothing{};
constexpr std::span<const std::byte> kOneByte(&kNothing, 1);

}  // namespace

LoadWatch::LoadWatch(Channel& channel, double deadline_s)
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
    for (const auto& [edge, options] :
         {std::pair(kBeatEdge, kBeats), std::pair(kWordEdge, kWords)}) {
      PENSTOCK_TRY(channel_.Open(LaneOf(edge, channel_.rank(), other), options, account));
      PENSTOCK_TRY(channel_.Open(LaneOf(edge, other, channel_.rank()), options, account));
    }
  }
  return {};
}

void LoadWatch::Beat() {
  const Clock::time_point now = Clock::now();
  if (now - beat_ < Seconds(deadline_s_ / kBeatsPerDeadline)) {
    return;
  }
  beat_ = now;
  for (const int32_t other : peers_) {
    // Refused for want of room: a beat is there already. Whoever is lost is noticed by Await.
    static_cast<void>(
        channel_.Send({LaneOf(kBeatEdge, channel_.rank(), other), {beats_, 0}, DType::kU8, 1, 1, 0},
                      std::span(&kOneByte, 1), kNoWaitS));
  }
  ++beats_;
}

void LoadWatch::Hear() {
  for (size_t i = 0; i < peers_.size(); ++i) {
    const Lane lane = LaneOf(kBeatEdge, peers_[i], channel_.rank());
    while (!channel_.failed() && channel_.Ready(lane)) {
      if (!channel_.ReceiveNext(lane, deadline_s_).ok()) {
        return;  // a rank has failed; whoever waits for it hears that too
      }
      heard_[i] = Clock::now();
    }
  }
}

Result<> LoadWatch::CheckHeard(int32_t peer) const {
  const auto at = std::find(peers_.begin(), peers_.end(), peer) - peers_.begin();
  PENSTOCK_CHECK(static_cast<size_t>(at) < peers_.size(), "rank 0 is on one side");
  if (Clock::now() - heard_[static_cast<size_t>(at)] > Seconds(deadline_s_)) {
    return MakeError(ErrorCode::kDeadlineExceeded,
                     "[comm.watch] rank {} has heard nothing of rank {} for {:.1f} s while it "
                     "loads: it has stopped, or reads slower than --deadline allows",
                     channel_.rank(), peer, deadline_s_);
  }
  if (const auto ended = channel_.ended()) {
    return MakeError(ErrorCode::kPeerLost, "[comm.watch] rank {} waited for rank {} to load; {}",
                     channel_.rank(), peer, ended->message);
  }
  if (const auto failure = channel_.failure()) {
    return MakeError(ErrorCode::kPeerLost, "[comm.watch] a rank has failed: {}", failure->message);
  }
  return {};
}

Result<> LoadWatch::Await(std::span<const int32_t> peers, const There& there) {
  std::fill(heard_.begin(), heard_.end(), Clock::now());
  std::vector<int32_t> missing(peers.begin(), peers.end());
  while (true) {
    Beat();
    Hear();
    for (size_t i = 0; i < missing.size();) {
      PENSTOCK_TRY_ASSIGN(const bool is_there, there(missing[i]));
      if (is_there) {
        missing.erase(missing.begin() + static_cast<ptrdiff_t>(i));
      } else {
        PENSTOCK_TRY(CheckHeard(missing[i++]));
      }
    }
    if (missing.empty()) {
      return {};
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

Result<> LoadWatch::AwaitMessage(const Lane& lane) {
  return Await(std::span(&lane.source, 1),
               [&](int32_t) -> Result<bool> { return channel_.Ready(lane); });
}

Result<> LoadWatch::Send(const MessageHeader& header,
                         std::span<const std::span<const std::byte>> parts) {
  std::fill(heard_.begin(), heard_.end(), Clock::now());
  while (true) {
    const Result<> sent = channel_.Send(header, parts, deadline_s_ / kBeatsPerDeadline);
    if (sent.ok() || sent.error().code != ErrorCode::kDeadlineExceeded) {
      return sent;
    }
    Beat();
    Hear();
    PENSTOCK_TRY(CheckHeard(header.lane.target));
  }
}

Result<> LoadWatch::Tell(int32_t peer) {
  const Lane lane = LaneOf(kWordEdge, channel_.rank(), peer);
  return channel_.Send({lane, {0, 0}, DType::kU8, 1, 1, 0}, std::span(&kOneByte, 1), deadline_s_);
}

Result<> LoadWatch::Meet() {
  const auto take = [&](int32_t peer) -> Result<bool> {
    const Lane lane = LaneOf(kWordEdge, peer, channel_.rank());
    if (!channel_.Ready(lane)) {
      return false;
    }
    PENSTOCK_TRY(channel_.ReceiveNext(lane, deadline_s_));
    return true;
  };
  if (channel_.rank() > 0) {
    PENSTOCK_TRY(Tell(0));
    return Await(peers_, take);
  }
  PENSTOCK_TRY(Await(peers_, take));
  for (const int32_t other : peers_) {
    PENSTOCK_TRY(Tell(other));
  }
  return {};
}

int64_t PlannedWatchBytes(int32_t rank, int32_t ranks, bool across) {
  int64_t one = 0;
  for (const LaneOptions& options : {kBeats, kWords}) {
    one += LaneBufferBytes(options, true, across) + LaneBufferBytes(options, false, across);
  }
  return rank == 0 ? (ranks - 1) * one : one;
}

}  // namespace penstock::comm
