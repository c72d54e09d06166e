// Ranks as threads: a lane is a ring of K buffers under the hub's lock of the receiving rank.

#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>

#include "comm/channel.h"

namespace penstock::comm {
namespace {

using std::chrono::duration;

constexpr auto kLook = std::chrono::milliseconds(2);

struct LaneOrder {
  bool operator()(const Lane& a, const Lane& b) const {
    return std::tie(a.kind, a.source, a.target, a.edge) <
           std::tie(b.kind, b.source, b.target, b.edge);
  }
};

// One buffer of a lane: free, filled (delivered, not taken) or taken (being read).
struct Slot {
  enum class State : uint8_t { kFree, kWriting, kFilled, kTaken };
  State state = State::kFree;
  int64_t order = 0;
  MessageHeader header;
  Clock::time_point arrived;
  Buffer buffer;
};

struct LaneState {
  LaneOptions options;
  std::vector<Slot> slots;
  int64_t next_order = 0;
};

// Everything that waits for one receiving rank, senders included.
struct Mailbox {
  std::mutex mutex;
  std::condition_variable changed;
  std::atomic<uint64_t> changes{0};  // for those that look without the lock

  void Notify() {
    changes.fetch_add(1, std::memory_order_release);
    changed.notify_all();
  }

  std::map<Lane, LaneState, LaneOrder> lanes;
};

struct Hub {
  Hub(int size, bool spins) : spin(spins), mailboxes(static_cast<size_t>(size)) {}

  const bool spin;
  std::vector<Mailbox> mailboxes;
  std::mutex error_mutex;
  std::optional<Error> error;
  std::atomic<bool> failed{false};

  void Fail(const Error& first) {
    {
      const std::lock_guard lock(error_mutex);
      if (!error) {
        error = first;
      }
    }
    failed.store(true);
    for (Mailbox& box : mailboxes) {
      const std::lock_guard lock(box.mutex);
      box.Notify();
    }
  }

  std::optional<Error> First() {
    const std::lock_guard lock(error_mutex);
    return error;
  }

  Error PeerError() {
    const std::optional<Error> first = First();
    return Error{ErrorCode::kPeerLost, first ? first->message : "a rank ended"};
  }
};

class InProcessChannel final : public Channel {
 public:
  InProcessChannel(std::shared_ptr<Hub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}

  int rank() const override { return rank_; }

  int size() const override { return static_cast<int>(hub_->mailboxes.size()); }

  bool across_processes() const override { return false; }

  bool failed() const override { return hub_->failed.load(); }

  std::optional<Error> failure() const override { return hub_->First(); }

  std::optional<Error> ended() override { return std::nullopt; }

  const ChannelCounters& counters() const override { return counters_; }

  Result<> Open(const Lane& lane, const LaneOptions& options, MemoryAccount& account) override {
    PENSTOCK_CHECK(lane.source == rank_ || lane.target == rank_, "a rank opens its own lanes");
    if (lane.target != rank_) {
      return {};  // the buffers are the receiver's
    }
    LaneState state;
    state.options = options;
    state.slots.resize(static_cast<size_t>(options.credits) +
                       1);  // K undelivered and the one being read
    for (Slot& slot : state.slots) {
      PENSTOCK_TRY_ASSIGN(slot.buffer,
                          Buffer::Allocate(account, MemoryCategory::kMessages, options.max_bytes));
    }
    Mailbox& box = Box(lane);
    const std::lock_guard lock(box.mutex);
    box.lanes[lane] = std::move(state);
    box.Notify();
    return {};
  }

  Result<> Send(const MessageHeader& header, std::span<const std::span<const std::byte>> parts,
                double deadline_s) override {
    Mailbox& box = Box(header.lane);
    std::unique_lock lock(box.mutex);
    Slot* slot = nullptr;
    LaneState* lane = nullptr;
    const auto find = [&] {
      lane = FindLane(box, header.lane);
      slot = lane == nullptr ? nullptr : FreeSlot(*lane);
      return slot != nullptr;
    };
    bool ready = find();
    if (!ready) {
      const Clock::time_point start = Clock::now();
      ready = Wait(box, lock, deadline_s, find);
      counters_.waited_s += duration<double>(Clock::now() - start).count();
    }
    if (hub_->failed.load()) {
      return hub_->PeerError();
    }
    if (!ready) {
      return MakeError(
          ErrorCode::kDeadlineExceeded,
          "[comm.send] rank {} waited {:.1f} s for rank {} to take {} (step {}, micro-batch {})",
          rank_, deadline_s, header.lane.target, LaneText(header.lane), header.tag.step,
          header.tag.micro_batch);
    }
    PENSTOCK_CHECK(header.payload_bytes() <= lane->options.max_bytes, "a message fits its lane");
    slot->state = Slot::State::kWriting;
    slot->order = lane->next_order++;
    lock.unlock();
    slot->header = header;
    std::byte* to = slot->buffer.data();
    int64_t bytes = 0;
    for (const auto& part : parts) {
      if (!part.empty()) {
        std::memcpy(to + bytes, part.data(), part.size());
      }
      bytes += static_cast<int64_t>(part.size());
    }
    PENSTOCK_CHECK(bytes == header.payload_bytes(), "the parts are the payload");
    lock.lock();
    slot->arrived = Clock::now();
    slot->state = Slot::State::kFilled;
    box.Notify();
    counters_.messages_sent += 1;
    counters_.bytes_sent += bytes;
    return {};
  }

  Result<Message> Receive(const Lane& lane, const Tag& tag, double deadline_s) override {
    return Take(lane, &tag, deadline_s);
  }

  Result<Message> ReceiveNext(const Lane& lane, double deadline_s) override {
    return Take(lane, nullptr, deadline_s);
  }

  bool Ready(const Lane& lane) override {
    Mailbox& box = Box(lane);
    const std::lock_guard lock(box.mutex);
    LaneState* state = FindLane(box, lane);
    return hub_->failed.load() || (state != nullptr && FilledSlot(*state, nullptr) != nullptr);
  }

  void Fail(const Error& error) override { hub_->Fail(error); }

 private:
  Mailbox& Box(const Lane& lane) { return hub_->mailboxes[static_cast<size_t>(lane.target)]; }

  static LaneState* FindLane(Mailbox& box, const Lane& lane) {
    const auto it = box.lanes.find(lane);
    return it == box.lanes.end() ? nullptr : &it->second;
  }

  // A buffer to write into, while fewer than K messages are undelivered.
  static Slot* FreeSlot(LaneState& lane) {
    int32_t undelivered = 0;
    Slot* free = nullptr;
    for (Slot& slot : lane.slots) {
      if (slot.state == Slot::State::kFree) {
        free = &slot;
      } else if (slot.state != Slot::State::kTaken) {
        ++undelivered;
      }
    }
    return undelivered < lane.options.credits ? free : nullptr;
  }

  static Slot* FilledSlot(LaneState& lane, const Tag* tag) {
    Slot* found = nullptr;
    for (Slot& slot : lane.slots) {
      if (slot.state == Slot::State::kFilled && (tag == nullptr || slot.header.tag == *tag) &&
          (found == nullptr || slot.order < found->order)) {
        found = &slot;
      }
    }
    return found;
  }

  // Looks for a short while whether `stop` has come.
  template <class Condition>
  static bool Look(const Mailbox& box, std::unique_lock<std::mutex>& lock, const Condition& stop) {
    const Clock::time_point end = Clock::now() + kLook;
    while (!stop()) {
      const uint64_t seen = box.changes.load(std::memory_order_acquire);
      lock.unlock();
      bool late = false;
      while (box.changes.load(std::memory_order_acquire) == seen && !late) {
        for (int i = 0; i < 64; ++i) {
          _mm_pause();
        }
        late = Clock::now() >= end;
      }
      lock.lock();
      if (late) {
        return stop();
      }
    }
    return true;
  }

  // Waits until `done`, the deadline, or a failure of any rank. False when the deadline came first.
  template <class Condition>
  bool Wait(Mailbox& box, std::unique_lock<std::mutex>& lock, double deadline_s, Condition done) {
    const auto stop = [&] { return hub_->failed.load() || done(); };
    if (hub_->spin && Look(box, lock, stop)) {
      return true;
    }
    if (deadline_s <= 0) {
      box.changed.wait(lock, stop);
      return true;
    }
    return box.changed.wait_for(lock, duration<double>(deadline_s), stop);
  }

  Result<Message> Take(const Lane& lane, const Tag* tag, double deadline_s) {
    PENSTOCK_CHECK(lane.target == rank_, "a rank receives its own messages");
    Mailbox& box = Box(lane);
    std::unique_lock lock(box.mutex);
    LaneState* state = FindLane(box, lane);
    PENSTOCK_CHECK(state != nullptr, "the lane is open");
    Slot* slot = nullptr;
    const bool ready = Wait(box, lock, deadline_s, [&] {
      slot = FilledSlot(*state, tag);
      return slot != nullptr;
    });
    if (slot == nullptr && hub_->failed.load()) {
      return hub_->PeerError();
    }
    if (!ready) {
      const std::string which =
          tag == nullptr ? ""
                         : fmt::format(" (step {}, micro-batch {})", tag->step, tag->micro_batch);
      return MakeError(
          ErrorCode::kDeadlineExceeded,
          "[comm.receive] rank {} waited {:.1f} s for {}{}: rank {} is late or has stopped", rank_,
          deadline_s, LaneText(lane), which, lane.source);
    }
    slot->state = Slot::State::kTaken;
    box.Notify();
    return Message(slot->header,
                   {slot->buffer.data(), static_cast<size_t>(slot->header.payload_bytes())},
                   slot->arrived, [&box, slot] {
                     const std::lock_guard release(box.mutex);
                     slot->state = Slot::State::kFree;
                     box.Notify();
                   });
  }

  std::shared_ptr<Hub> hub_;
  int rank_;
  ChannelCounters counters_;
};

}  // namespace

int64_t LaneBufferBytes(const LaneOptions& options, bool receiving, bool across_processes) {
  const int64_t header = across_processes ? static_cast<int64_t>(kHeaderBytes) : 0;
  if (receiving) {
    return (options.credits + 1) * (options.max_bytes + header);
  }
  return across_processes ? options.credits * (options.max_bytes + header) : 0;
}

std::vector<std::unique_ptr<Channel>> CreateInProcessChannels(int size, bool spin) {
  auto hub = std::make_shared<Hub>(size, spin);
  std::vector<std::unique_ptr<Channel>> channels;
  for (int rank = 0; rank < size; ++rank) {
    channels.push_back(std::make_unique<InProcessChannel>(hub, rank));
  }
  return channels;
}

}  // namespace penstock::comm
