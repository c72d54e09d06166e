// Ranks as processes over MPI point-to-point messages.
//
// A rank that gives up tells the others (kEndTag) before it ends them all, so that they leave the
// word to it; a process that ends without that is noticed by PeerWatch.
//
// Each lane is one MPI tag; the receiver keeps K + 1 receives posted (K undelivered messages and
// the one being read), the sender owns K buffers. A credit is a one-byte message back on the lane's
// tag plus kCreditTag. Waits poll, first without pause, then with short sleeps.
//
// MPI's own waits can not be given a deadline: MPI_Init and the exchange behind it end when every
// rank is there (OpenMPI's ranks wait in PMIx for what the others say of themselves), MPI_Finalize
// when every rank has come. MeetingWatch counts the time of both. Elsewhere nothing waits in MPI:
// messages of a rank that is stopped, or on a machine that is lost, are late for their deadline.

#define OMPI_SKIP_MPICXX 1  // only the C interface
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <cstdlib>
#include <cstring>
#include <deque>
#include <list>
#include <optional>
#include <thread>

#include "base/cores.h"
#include "comm/channel.h"
#include "comm/meeting_watch.h"
#include "comm/peer_watch.h"

namespace penstock::comm {
namespace {

constexpr int kCreditTag = 16384;
constexpr double kDrainLimit_s = 30;
constexpr double kLook_s = 2e-3;

// How often a wait looks after the others, how long messages of an ended rank may still be on
// their way, how much later than the one that waits for it the other ranks complain, and how long
// a rank that was told of a failure waits to be ended.
constexpr double kWatch_s = 0.02;
constexpr double kOnTheWay_s = 0.05;
constexpr double kOthersLater_s = 0.4;
constexpr double kToldWait_s = 5;

constexpr int kKinds = 8;  // room for LaneKind in a tag
constexpr int32_t kMaxEdges = kCreditTag / kKinds;
constexpr int kEndTag = kCreditTag - 1;  // of no LaneKind: the sender has failed and said why

int MpiTag(const Lane& lane) {
  return static_cast<int>(lane.kind) + kKinds * lane.edge;
}

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Ranks of this job on this machine, as far as its launcher says.
int RanksHere() {
  const char* local = std::getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
  int ranks = local != nullptr ? std::atoi(local) : 0;
  if (ranks <= 0) {
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  }
  return ranks;
}

// Sender's end: K buffers, each free or in flight.
struct OutLane {
  Lane lane;
  LaneOptions options;
  int32_t credits = 0;

  struct Slot {
    Buffer buffer;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  std::vector<Slot> slots;
  std::byte credit_byte{};
  MPI_Request credit_request = MPI_REQUEST_NULL;
};

// Receiver's end: K + 1 buffers, each posted, filled or taken.
struct InLane {
  Lane lane;
  LaneOptions options;

  struct Slot {
    enum class State : uint8_t { kPosted, kFilled, kTaken };
    State state = State::kPosted;
    Buffer buffer;
    MPI_Request request = MPI_REQUEST_NULL;
    MessageHeader header;
    Clock::time_point arrived;
    int64_t order = 0;
  };

  std::vector<Slot> slots;
  std::deque<size_t> posted;  // slots in the order in which their receives were posted, which is
                              // the order in which they match
  int64_t next_order = 0;
};

// A lane from a rank to itself.
struct LocalMessage {
  MessageHeader header;
  Clock::time_point arrived;
  std::vector<std::byte> payload;
};

struct LocalLane {
  Lane lane;
  std::list<LocalMessage> waiting;
  std::list<LocalMessage> taken;
};

class MpiChannel final : public Channel {
 public:
  MpiChannel() {
    MPI_Comm_dup(MPI_COMM_WORLD, &comm_);
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &size_);
    const ProcessName mine = ProcessName::Mine();
    std::vector<ProcessName> names(static_cast<size_t>(size_));
    MPI_Allgather(&mine, sizeof mine, MPI_BYTE, names.data(), sizeof mine, MPI_BYTE, comm_);
    watch_.emplace(names, rank_);
    MPI_Irecv(&end_byte_, 1, MPI_BYTE, MPI_ANY_SOURCE, kEndTag, MPI_COMM_WORLD, &end_request_);
  }

  ~MpiChannel() override {
    DrainSends();
    Cancel(end_request_);
    for (InLane& lane : in_) {
      for (InLane::Slot& slot : lane.slots) {
        Cancel(slot.request);
      }
    }
    for (OutLane& lane : out_) {
      Cancel(lane.credit_request);
      for (OutLane::Slot& slot : lane.slots) {
        Cancel(slot.request);
      }
    }
  }

  int rank() const override { return rank_; }

  int size() const override { return size_; }

  bool across_processes() const override { return true; }

  bool failed() const override { return false; }

  std::optional<Error> failure() const override { return std::nullopt; }

  std::optional<Error> ended() override {
    if (const int ended = Look(-1); ended >= 0) {
      return MakeError(ErrorCode::kPeerLost, "{}", EndedText(ended));
    }
    return std::nullopt;
  }

  const ChannelCounters& counters() const override { return counters_; }

  Result<> Open(const Lane& lane, const LaneOptions& options, MemoryAccount& account) override {
    PENSTOCK_CHECK(lane.source == rank_ || lane.target == rank_, "a rank opens its own lanes");
    if (lane.edge >= kMaxEdges) {  // its tag would be that of another lane's credits
      return MakeError(ErrorCode::kUnsupported,
                       "[comm.mpi] {} is edge {}: over MPI there are at most {}; use fewer stages",
                       LaneText(lane), lane.edge, kMaxEdges);
    }
    const int64_t bytes = options.max_bytes + static_cast<int64_t>(kHeaderBytes);
    if (bytes > INT32_MAX) {
      return MakeError(
          ErrorCode::kUnsupported,
          "[comm.mpi] a message of {} bytes: MPI carries at most {} at once; lower --prefill-chunk",
          bytes, INT32_MAX);
    }
    if (lane.source == lane.target) {
      local_.push_back(LocalLane{lane, {}, {}});
      return {};
    }
    if (lane.source == rank_) {
      OutLane& out = out_.emplace_back();
      out.lane = lane;
      out.options = options;
      out.credits = options.credits;
      out.slots.resize(static_cast<size_t>(options.credits));
      for (OutLane::Slot& slot : out.slots) {
        PENSTOCK_TRY_ASSIGN(slot.buffer,
                            Buffer::Allocate(account, MemoryCategory::kMessages, bytes));
      }
      PostCredit(out);
      return {};
    }
    InLane& in = in_.emplace_back();
    in.lane = lane;
    in.options = options;
    in.slots.resize(static_cast<size_t>(options.credits) + 1);
    for (size_t i = 0; i < in.slots.size(); ++i) {
      PENSTOCK_TRY_ASSIGN(in.slots[i].buffer,
                          Buffer::Allocate(account, MemoryCategory::kMessages, bytes));
      Post(in, i);
    }
    return {};
  }

  Result<> Send(const MessageHeader& header, std::span<const std::span<const std::byte>> parts,
                double deadline_s) override {
    if (header.lane.source == header.lane.target) {
      return SendLocal(header, parts);
    }
    OutLane& out = Out(header.lane);
    PENSTOCK_CHECK(header.payload_bytes() <= out.options.max_bytes, "a message fits its lane");
    OutLane::Slot* slot = nullptr;
    bool at_once = true;
    const Waited waited = Wait(deadline_s, out.lane.target, [&] {
      slot = out.credits > 0 ? FreeSlot(out) : nullptr;
      at_once = at_once && slot != nullptr;
      return slot != nullptr;
    });
    counters_.waited_s += at_once ? 0 : waited.seconds;
    if (corrupt_) {
      return *corrupt_;
    }
    if (slot == nullptr) {
      return Gave(
          waited, "send",
          fmt::format("for rank {} to take {} (step {}, micro-batch {})", header.lane.target,
                      LaneText(header.lane), header.tag.step, header.tag.micro_batch),
          "");
    }
    const auto encoded = EncodeHeader(header);
    std::memcpy(slot->buffer.data(), encoded.data(), encoded.size());
    int64_t bytes = static_cast<int64_t>(kHeaderBytes);
    for (const auto& part : parts) {
      if (!part.empty()) {
        std::memcpy(slot->buffer.data() + bytes, part.data(), part.size());
      }
      bytes += static_cast<int64_t>(part.size());
    }
    PENSTOCK_CHECK(bytes == header.payload_bytes() + static_cast<int64_t>(kHeaderBytes),
                   "the parts are the payload");
    --out.credits;
    MPI_Isend(slot->buffer.data(), static_cast<int>(bytes), MPI_BYTE, out.lane.target,
              MpiTag(out.lane), comm_, &slot->request);
    counters_.messages_sent += 1;
    counters_.bytes_sent += header.payload_bytes();
    Progress();
    return {};
  }

  Result<Message> Receive(const Lane& lane, const Tag& tag, double deadline_s) override {
    return Take(lane, &tag, deadline_s);
  }

  Result<Message> ReceiveNext(const Lane& lane, double deadline_s) override {
    return Take(lane, nullptr, deadline_s);
  }

  bool Ready(const Lane& lane) override {
    if (lane.source == lane.target) {
      return !Local(lane).waiting.empty();
    }
    Progress();
    return Filled(In(lane), nullptr) != nullptr;
  }

  void Fail(const Error&) override { AbortMpi(3); }

 private:
  // A send that is under way reads its buffer until the receiver has it (a send can't be taken
  // back), so the buffers must stay until then. The limit is for peers that no longer receive.
  void DrainSends() {
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (finalized != 0 || corrupt_) {
      return;
    }
    Wait(kDrainLimit_s, -1, [&] {
      for (const OutLane& lane : out_) {
        for (const OutLane::Slot& slot : lane.slots) {
          if (slot.request != MPI_REQUEST_NULL) {
            return false;
          }
        }
      }
      return true;
    });
  }

  static void Cancel(MPI_Request& request) {
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (request != MPI_REQUEST_NULL && finalized == 0) {
      MPI_Cancel(&request);
      MPI_Request_free(&request);
    }
  }

  template <class Lanes>
  static auto& Find(Lanes& lanes, const Lane& lane) {
    for (auto& candidate : lanes) {
      if (candidate.lane == lane) {
        return candidate;
      }
    }
    PENSTOCK_CHECK(false, "the lane is open");
    return lanes.front();
  }

  OutLane& Out(const Lane& lane) { return Find(out_, lane); }

  InLane& In(const Lane& lane) { return Find(in_, lane); }

  LocalLane& Local(const Lane& lane) { return Find(local_, lane); }

  void Post(InLane& in, size_t index) {
    InLane::Slot& slot = in.slots[index];
    slot.state = InLane::Slot::State::kPosted;
    MPI_Irecv(slot.buffer.data(), static_cast<int>(slot.buffer.size()), MPI_BYTE, in.lane.source,
              MpiTag(in.lane), comm_, &slot.request);
    in.posted.push_back(index);
  }

  void PostCredit(OutLane& out) const {
    MPI_Irecv(&out.credit_byte, 1, MPI_BYTE, out.lane.target, MpiTag(out.lane) + kCreditTag, comm_,
              &out.credit_request);
  }

  static OutLane::Slot* FreeSlot(OutLane& out) {
    for (OutLane::Slot& slot : out.slots) {
      if (slot.request == MPI_REQUEST_NULL) {
        return &slot;
      }
    }
    return nullptr;
  }

  static InLane::Slot* Filled(InLane& in, const Tag* tag) {
    InLane::Slot* found = nullptr;
    for (InLane::Slot& slot : in.slots) {
      if (slot.state == InLane::Slot::State::kFilled &&
          (tag == nullptr || slot.header.tag == *tag) &&
          (found == nullptr || slot.order < found->order)) {
        found = &slot;
      }
    }
    return found;
  }

  // Moves every lane forward as far as it goes without waiting.
  void Progress() {
    for (OutLane& out : out_) {
      ProgressOut(out);
    }
    for (InLane& in : in_) {
      ProgressIn(in);
    }
  }

  void ProgressOut(OutLane& out) const {
    for (OutLane::Slot& slot : out.slots) {
      if (slot.request != MPI_REQUEST_NULL) {
        int done = 0;
        MPI_Test(&slot.request, &done, MPI_STATUS_IGNORE);
      }
    }
    int done = 1;
    while (done != 0) {
      MPI_Test(&out.credit_request, &done, MPI_STATUS_IGNORE);
      if (done != 0) {
        ++out.credits;
        PostCredit(out);
      }
    }
  }

  void ProgressIn(InLane& in) {
    while (!in.posted.empty()) {
      InLane::Slot& slot = in.slots[in.posted.front()];
      int done = 0;
      MPI_Status status;
      MPI_Test(&slot.request, &done, &status);
      if (done == 0) {
        return;
      }
      int bytes = 0;
      MPI_Get_count(&status, MPI_BYTE, &bytes);
      in.posted.pop_front();
      auto header = DecodeHeader({slot.buffer.data(), static_cast<size_t>(bytes)});
      if (!header.ok()) {
        corrupt_ = header.error();
      } else if (header->payload_bytes() + static_cast<int64_t>(kHeaderBytes) != bytes ||
                 !(header->lane == in.lane)) {
        corrupt_ = MakeError(ErrorCode::kCorruptData,
                             "[comm.mpi] a message of {} says {} with {} bytes, got {}",
                             LaneText(in.lane), LaneText(header->lane), header->payload_bytes(),
                             bytes - static_cast<int>(kHeaderBytes));
      } else {
        slot.header = *header.operator->();
      }
      slot.arrived = Clock::now();
      slot.state = InLane::Slot::State::kFilled;
      slot.order = in.next_order++;
    }
  }

  // How a wait ended: how long it took, and the rank that will never answer, if that is why.
  struct Waited {
    double seconds = 0;
    int ended = -1;
  };

  // A rank whose process has ended long enough ago that nothing of it is under way any more, and,
  // where it is not `awaited` itself, that those who wait for it have spoken. -1: none.
  int Look(int awaited) {
    if (SecondsSince(watched_) < kWatch_s) {
      return -1;
    }
    watched_ = Clock::now();
    WaitForTheEndIfTold();
    const int ended = watch_->Ended(awaited);
    if (ended < 0) {
      return -1;
    }
    if (!first_ended_) {
      first_ended_ = Clock::now();
    }
    const double patience_s = ended == awaited ? kOnTheWay_s : kOthersLater_s;
    return SecondsSince(*first_ended_) > patience_s ? ended : -1;
  }

  // A rank has failed, said why, and is about to end everybody.
  void WaitForTheEndIfTold() {
    int told = 0;
    if (end_request_ != MPI_REQUEST_NULL) {
      MPI_Test(&end_request_, &told, MPI_STATUS_IGNORE);
    }
    if (told != 0) {
      std::this_thread::sleep_for(std::chrono::duration<double>(kToldWait_s));
    }
  }

  static std::string EndedText(int ended) {
    return fmt::format("the process of rank {} has ended: it was killed, or it crashed", ended);
  }

  // The error of a wait that ended without what was awaited.
  Error Gave(const Waited& waited, std::string_view function, const std::string& awaited,
             const std::string& late) const {
    if (waited.ended >= 0) {
      return MakeError(ErrorCode::kPeerLost, "[comm.{}] rank {} waited {:.1f} s {}; {}", function,
                       rank_, waited.seconds, awaited, EndedText(waited.ended));
    }
    return MakeError(ErrorCode::kDeadlineExceeded, "[comm.{}] rank {} waited {:.1f} s {}{}",
                     function, rank_, waited.seconds, awaited, late);
  }

  template <class Condition>
  Waited Wait(double deadline_s, int awaited, Condition done) {
    const Clock::time_point start = Clock::now();
    int polls = 0;
    while (true) {
      Progress();
      if (corrupt_ || done()) {
        return {SecondsSince(start), -1};
      }
      if (deadline_s > 0 && SecondsSince(start) > deadline_s) {
        return {deadline_s, -1};
      }
      if (polls > 40) {
        if (const int ended = Look(awaited); ended >= 0) {
          Progress();
          return done() ? Waited{} : Waited{SecondsSince(start), ended};
        }
      }
      // About 20 us without pause: the common case in a full pipeline; with a core for each rank a
      // few milliseconds, as to be woken takes longer. Then give the core away.
      if (++polls > 40 && (!own_core_ || SecondsSince(start) > kLook_s)) {
        std::this_thread::sleep_for(std::chrono::microseconds(polls > 400 ? 200 : 20));
      } else {
        std::this_thread::yield();
      }
    }
  }

  Result<> SendLocal(const MessageHeader& header,
                     std::span<const std::span<const std::byte>> parts) {
    LocalMessage message{header, Clock::now(), {}};
    for (const auto& part : parts) {
      message.payload.insert(message.payload.end(), part.begin(), part.end());
    }
    Local(header.lane).waiting.push_back(std::move(message));
    return {};
  }

  Result<Message> TakeLocal(const Lane& lane, const Tag* tag) {
    LocalLane& local = Local(lane);
    for (auto it = local.waiting.begin(); it != local.waiting.end(); ++it) {
      if (tag == nullptr || it->header.tag == *tag) {
        local.taken.splice(local.taken.end(), local.waiting, it);
        return Message(it->header, it->payload, it->arrived,
                       [&local, it] { local.taken.erase(it); });
      }
    }
    return MakeError(ErrorCode::kInternal, "[comm.mpi] rank {} waits for a message from itself: {}",
                     rank_, LaneText(lane));
  }

  Result<Message> Take(const Lane& lane, const Tag* tag, double deadline_s) {
    if (lane.source == lane.target) {
      return TakeLocal(lane, tag);
    }
    InLane& in = In(lane);
    InLane::Slot* slot = nullptr;
    const Waited waited = Wait(deadline_s, lane.source, [&] {
      slot = Filled(in, tag);
      return slot != nullptr;
    });
    if (corrupt_) {
      return *corrupt_;
    }
    if (slot == nullptr) {
      const std::string which =
          tag == nullptr ? ""
                         : fmt::format(" (step {}, micro-batch {})", tag->step, tag->micro_batch);
      return Gave(waited, "receive", fmt::format("for {}{}", LaneText(lane), which),
                  fmt::format(": rank {} is late or has stopped", lane.source));
    }
    slot->state = InLane::Slot::State::kTaken;
    ReturnCredit(in);
    const auto index = static_cast<size_t>(slot - in.slots.data());
    return Message(
        slot->header,
        {slot->buffer.data() + kHeaderBytes, static_cast<size_t>(slot->header.payload_bytes())},
        slot->arrived, [this, &in, index] { Post(in, index); });
  }

  void ReturnCredit(const InLane& in) {
    static const std::byte kCredit{1};
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Isend(&kCredit, 1, MPI_BYTE, in.lane.source, MpiTag(in.lane) + kCreditTag, comm_, &request);
    MPI_Request_free(&request);
  }

  // Its own, so that a following channel never meets what is left of this one. Kept until the
  // process ends: to free it, all ranks would have to meet.
  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 1;
  bool own_core_ = RanksHere() <= UsableCores();
  std::list<OutLane> out_;
  std::list<InLane> in_;
  std::list<LocalLane> local_;
  std::optional<Error> corrupt_;
  std::optional<PeerWatch> watch_;
  Clock::time_point watched_{};
  std::optional<Clock::time_point> first_ended_;
  std::byte end_byte_{};
  MPI_Request end_request_ = MPI_REQUEST_NULL;
  ChannelCounters counters_;
};

// Whoever does not hear it in time says something, too.
void TellTheOthers() {
  static const std::byte kByte{1};
  int rank = 0;
  int size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  std::vector<MPI_Request> requests;
  for (int other = 0; other < size; ++other) {
    if (other != rank) {
      MPI_Isend(&kByte, 1, MPI_BYTE, other, kEndTag, MPI_COMM_WORLD, &requests.emplace_back());
    }
  }
  int done = 0;
  for (int tries = 0; tries < 20 && done == 0; ++tries) {
    MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE);
    if (done == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
}

bool Initialized() {
  int initialized = 0;
  int finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  return initialized != 0 && finalized == 0;
}

}  // namespace

#if defined(__SANITIZE_ADDRESS__)
// The leak checker asks this when a process ends. What MPI and its plugins keep cannot be told from
// what others lose: the plugins are unloaded by then, so that suppressions find no name. Runs as
// threads check the rest of the program.
extern "C" int __lsan_is_turned_off();  // NOLINT(bugprone-reserved-identifier)

extern "C" int __lsan_is_turned_off() {  // NOLINT(bugprone-reserved-identifier)
  int initialized = 0;
  MPI_Initialized(&initialized);
  return initialized;
}
#endif

bool LaunchedByMpi() {
  return std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr || std::getenv("PMI_SIZE") != nullptr;
}

Result<std::unique_ptr<Channel>> CreateMpiChannel(const MeetingLimit& limit) {
  const MeetingWatch watch(limit, "to start");
  if (!Initialized()) {
    int provided = 0;
    if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS) {
      return MakeError(ErrorCode::kInternal, "[comm.mpi] MPI_Init_thread failed");
    }
    if (provided < MPI_THREAD_SERIALIZED) {  // prepare_watch.h beats from a thread
      return MakeError(ErrorCode::kUnsupported,
                       "[comm.mpi] this MPI takes calls of one thread only, wanted "
                       "MPI_THREAD_SERIALIZED");
    }
  }
  return std::unique_ptr<Channel>(std::make_unique<MpiChannel>());
}

Result<std::unique_ptr<Channel>> CreateMpiChannel() {
  return CreateMpiChannel(MeetingLimit());
}

void FinalizeMpi() {
  FinalizeMpi(MeetingLimit());
}

void FinalizeMpi(const MeetingLimit& limit) {
  if (Initialized()) {
    const MeetingWatch watch(limit, "to end");
    MPI_Finalize();
  }
}

void TellMpiRanksOfFailure() {
  if (Initialized()) {
    TellTheOthers();
  }
}

void AbortMpi(int status) {
  if (Initialized()) {
    MPI_Abort(MPI_COMM_WORLD, status);
  }
}

}  // namespace penstock::comm
