// Channel: one rank's end of the transport. Tagged messages with credits and deadlines.
//
// Lanes are opened before the first message, on both ends, with the size of the largest message and
// the number of credits K: the receiver keeps K buffers ready (pre-posted receives), and a sender
// waits only while K messages of the lane are undelivered. A credit returns when Receive takes the
// message. A send never waits for a receive of the same rank; lanes do not block each other.
//
// Every wait has a deadline. When one rank closes its end with an error, all waits of the others
// end with kPeerLost and that error's text; when a rank's process ends without a word, with
// kPeerLost, what was waited for, and which rank it was.
//
// Thread safety: one thread per rank calls its Channel.

#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "comm/message.h"
#include "tensor/memory.h"

namespace penstock::comm {

// How long a wait lasted and for whom; for traces and deadlines.
using Clock = std::chrono::steady_clock;

struct LaneOptions {
  int64_t max_bytes = 0;  // largest payload
  int32_t credits = 1;
};

// Edge of the control lanes on which rank 0 says what a cut is weighed by, before anything is set
// up.
inline constexpr int32_t kCutEdge = 4;

// Bytes of message buffers that a rank holds for one end of a lane.
int64_t LaneBufferBytes(const LaneOptions& options, bool receiving, bool across_processes);

// A message that was taken: its header and payload. The payload stays valid until the Message is
// destroyed.
class Message {
 public:
  Message(MessageHeader header, std::span<const std::byte> payload, Clock::time_point arrived,
          std::function<void()> release)
      : header_(header), payload_(payload), arrived_(arrived), release_(std::move(release)) {}

  Message(Message&& other) noexcept
      : header_(other.header_),
        payload_(other.payload_),
        arrived_(other.arrived_),
        release_(std::move(other.release_)) {
    other.release_ = nullptr;
  }

  Message& operator=(Message&&) = delete;

  ~Message() {
    if (release_) {
      release_();
    }
  }

  const MessageHeader& header() const { return header_; }

  std::span<const std::byte> payload() const { return payload_; }

  // When it lay ready, whether or not the receiver looked: between threads exactly; between
  // processes when the receiver's channel first noticed, at the latest when it was taken.
  Clock::time_point arrived() const { return arrived_; }

 private:
  MessageHeader header_;
  std::span<const std::byte> payload_;
  Clock::time_point arrived_;
  std::function<void()> release_;
};

// Cumulative counters of one rank.
struct ChannelCounters {
  int64_t messages_sent = 0;
  int64_t bytes_sent = 0;  // payloads only
  double waited_s = 0;     // that sends waited for room
};

class Channel {
 public:
  virtual ~Channel() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual bool across_processes() const = 0;

  // Opens this rank's end (as source or target). Buffers come from `account`, category kMessages.
  // REQUIRES: this rank is lane.source or lane.target; both ends open it with the same options.
  virtual Result<> Open(const Lane& lane, const LaneOptions& options, MemoryAccount& account) = 0;

  // Sends the concatenation of `parts` (their bytes must equal header.payload_bytes()). Returns
  // when the parts may be reused. Errors: kDeadlineExceeded (no credit within `deadline_s`),
  // kPeerLost.
  virtual Result<> Send(const MessageHeader& header,
                        std::span<const std::span<const std::byte>> parts, double deadline_s) = 0;

  // Takes the message of that lane and tag, waiting for it. `deadline_s` <= 0 waits without end
  // (only for an idle decider's next plan). Errors: kDeadlineExceeded naming lane and tag,
  // kPeerLost.
  virtual Result<Message> Receive(const Lane& lane, const Tag& tag, double deadline_s) = 0;

  // Takes the lane's oldest message whatever its tag (for lanes whose next tag the receiver can't
  // know: step plans).
  virtual Result<Message> ReceiveNext(const Lane& lane, double deadline_s) = 0;

  // True when ReceiveNext on this lane would not wait.
  virtual bool Ready(const Lane& lane) = 0;

  // Ends this rank's part with an error that the peers will report. Across processes this ends
  // them.
  virtual void Fail(const Error& error) = 0;

  // True once any rank has failed (always false across processes: they are ended).
  virtual bool failed() const = 0;

  // The error of the rank that failed first, with its own code (never across processes).
  virtual std::optional<Error> failure() const = 0;

  // Across processes, kPeerLost once the process of a rank on this machine has ended. For whoever
  // waits by asking Ready; Send and Receive look themselves.
  virtual std::optional<Error> ended() = 0;

  virtual const ChannelCounters& counters() const = 0;
};

// Ranks that are threads of this process: `size` ends of one hub. Thread-safe between ends. `spin`:
// a rank that waits looks for two milliseconds before it sleeps, which saves the time to wake it;
// where every thread has a core to itself.
std::vector<std::unique_ptr<Channel>> CreateInProcessChannels(int size, bool spin = false);

// ---- MPI: one process per rank. In a build without MPI these say so. ----

// True when the process was started by mpirun (or srun) with more than one rank, or with one.
bool LaunchedByMpi();
// Initializes MPI once per process. Errors: kUnsupported in a build without MPI.
Result<std::unique_ptr<Channel>> CreateMpiChannel();
// Ends MPI in an orderly way (after a run without errors). Harmless when MPI was never initialized.
void FinalizeMpi();
// Tells the other ranks that this one is about to say why it ends the run, so that those who notice
// it meanwhile keep silent. Harmless when MPI was never initialized.
void TellMpiRanksOfFailure();
// Ends all ranks at once with this exit status. Harmless when MPI was never initialized.
void AbortMpi(int status);

}  // namespace penstock::comm
