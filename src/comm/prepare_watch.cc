#include "comm/prepare_watch.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

namespace penstock::comm {
namespace {

constexpr double kBeatsPerDeadline = 5;
constexpr double kNoWaitS = 1e-9;
constexpr int32_t kBeatEdge = 5;  // beside those of load_watch.cc and kCutEdge
constexpr LaneOptions kBeats = {1, 2};
constexpr std::byte kNothing{};
constexpr std::span<const std::byte> kOneByte(&kNothing, 1);

Lane BeatLane(int32_t target) {
  return {LaneKind::kControl, 0, target, kBeatEdge};
}

class BeatingChannel final : public Channel {
 public:
  BeatingChannel(std::unique_ptr<Channel> channel, double deadline_s)
      : channel_(std::move(channel)), deadline_s_(deadline_s) {}

  ~BeatingChannel() override { Quiet(); }

  Result<> Start() {
    for (int32_t other = 1; other < channel_->size(); ++other) {
      PENSTOCK_TRY(channel_->Open(BeatLane(other), kBeats, account_));
    }
    thread_ = std::thread([this] { Beat(); });
    return {};
  }

  int rank() const override { return channel_->rank(); }

  int size() const override { return channel_->size(); }

  bool across_processes() const override { return channel_->across_processes(); }

  Result<> Open(const Lane& lane, const LaneOptions& options, MemoryAccount& account) override {
    return Quiet().Open(lane, options, account);
  }

  Result<> Send(const MessageHeader& header, std::span<const std::span<const std::byte>> parts,
                double deadline_s) override {
    return Quiet().Send(header, parts, deadline_s);
  }

  Result<Message> Receive(const Lane& lane, const Tag& tag, double deadline_s) override {
    return Quiet().Receive(lane, tag, deadline_s);
  }

  Result<Message> ReceiveNext(const Lane& lane, double deadline_s) override {
    return Quiet().ReceiveNext(lane, deadline_s);
  }

  bool Ready(const Lane& lane) override { return Quiet().Ready(lane); }

  void Fail(const Error& error) override { Quiet().Fail(error); }

  bool failed() const override { return channel_->failed(); }

  std::optional<Error> failure() const override { return channel_->failure(); }

  std::optional<Error> ended() override { return Quiet().ended(); }

  const ChannelCounters& counters() const override { return channel_->counters(); }

 private:
  // The channel for this thread alone.
  Channel& Quiet() {
    if (thread_.joinable()) {
      {
        const std::lock_guard lock(mutex_);
        used_ = true;
      }
      changed_.notify_all();
      thread_.join();
    }
    return *channel_;
  }

  void Beat() {
    std::unique_lock lock(mutex_);
    int64_t beats = 0;
    do {
      for (int32_t other = 1; other < channel_->size(); ++other) {
        // Refused for want of room: beats are there already.
        static_cast<void>(channel_->Send({BeatLane(other), {beats, 0}, DType::kU8, 1, 1, 0},
                                         std::span(&kOneByte, 1), kNoWaitS));
      }
      ++beats;
    } while (!changed_.wait_for(lock,
                                std::chrono::duration<double>(deadline_s_ / kBeatsPerDeadline),
                                [this] { return used_; }));
  }

  MemoryAccount account_;  // outlives the channel, which holds buffers of it
  std::unique_ptr<Channel> channel_;
  double deadline_s_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool used_ = false;
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<Channel>> BeatUntilUsed(std::unique_ptr<Channel> channel,
                                               double deadline_s) {
  auto beating = std::make_unique<BeatingChannel>(std::move(channel), deadline_s);
  PENSTOCK_TRY(beating->Start());
  return std::unique_ptr<Channel>(std::move(beating));
}

Result<> AwaitWhileBeating(Channel& channel, const Lane& lane, double deadline_s,
                           MemoryAccount& account) {
  const Lane beats = BeatLane(channel.rank());
  PENSTOCK_TRY(channel.Open(beats, kBeats, account));
  Clock::time_point heard = Clock::now();
  while (!channel.Ready(lane)) {
    while (channel.Ready(beats)) {
      PENSTOCK_TRY(channel.ReceiveNext(beats, deadline_s));
      heard = Clock::now();
    }
    if (Clock::now() - heard > std::chrono::duration<double>(deadline_s)) {
      return MakeError(ErrorCode::kDeadlineExceeded,
                       "[comm.watch] rank {} has heard nothing of rank 0 for {:.1f} s, and waits "
                       "for what is to be run: rank 0 has stopped",
                       channel.rank(), deadline_s);
    }
    if (const auto ended = channel.ended()) {
      return MakeError(ErrorCode::kPeerLost,
                       "[comm.watch] rank {} waited for rank 0 to say what is to be run; {}",
                       channel.rank(), ended->message);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return {};
}

}  // namespace penstock::comm
