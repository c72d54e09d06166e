// Adds SEND and RECV by running the schedule: F, I and W take one unit, B two, messages none. The
// programs written down are those of an execution that came to its end with the given credits,
// which proves that one exists.

#include <algorithm>
#include <functional>
#include <queue>
#include <tuple>
#include <vector>

#include "schedule/passes.h"
#include "schedule/passes/links.h"
#include "schedule/validate.h"

namespace penstock::schedule {
namespace {

constexpr int64_t kNotYet = -1;

class Lowering {
 public:
  Lowering(const Schedule& schedule, const LowerOptions& options, Schedule& out)
      : in_(schedule),
        out_(out),
        credits_(static_cast<size_t>(options.credits)),
        rendezvous_(options.rendezvous),
        table_(FindLinks(schedule, options)),
        per_link_(static_cast<size_t>(schedule.total_micro_batches()) *
                  static_cast<size_t>(schedule.slices)),
        messages_(table_.links.size() * per_link_),
        waiting_in_link_(table_.links.size()),
        stuck_sender_(table_.links.size(), -1),
        ranks_(schedule.ranks.size()) {}

  bool Run() {
    for (size_t r = 0; r < ranks_.size(); ++r)
      Wake(static_cast<int>(r), 0);
    while (!runnable_.empty()) {
      const auto [time, rank] = runnable_.top();
      runnable_.pop();
      RankState& state = ranks_[static_cast<size_t>(rank)];
      if (!state.queued || state.clock != time)
        continue;
      state.queued = false;
      Advance(rank);
    }
    for (size_t r = 0; r < ranks_.size(); ++r) {
      if (ranks_[r].next < in_.ranks[r].size())
        return false;
    }
    return true;
  }

  // The first rank that could not go on, and its action.
  Error Stuck() const {
    for (size_t r = 0; r < ranks_.size(); ++r) {
      if (ranks_[r].next >= in_.ranks[r].size())
        continue;
      return MakeError(ErrorCode::kInvalidSchedule,
                       "[schedule.lower] {}: rank {} can't run {}, its inputs never come; wanted a "
                       "schedule that passes its proof",
                       in_.name, r, ActionText(in_.ranks[r][ranks_[r].next], in_.edges));
    }
    return MakeError(ErrorCode::kInternal, "[schedule.lower] nothing is stuck");
  }

 private:
  enum class Phase { kReceive, kCompute, kSend };

  struct RankState {
    size_t next = 0;  // action of the input
    Phase phase = Phase::kReceive;
    size_t at = 0;  // link within the phase
    int64_t clock = 0;
    bool queued = false;
    bool at_barrier = false;
    size_t barriers = 0;        // passed
    std::vector<int> requests;  // links of which this rank should take a message as soon as it can
  };

  struct MessageState {
    int64_t sent = kNotYet;
    bool taken = false;
  };

  void Wake(int rank, int64_t time) {
    RankState& state = ranks_[static_cast<size_t>(rank)];
    state.clock = std::max(state.clock, time);
    state.queued = true;
    runnable_.emplace(state.clock, rank);
  }

  size_t IdOf(int link, const Action& a) const {
    return static_cast<size_t>(link) * per_link_ +
           static_cast<size_t>(a.micro_batch.value()) * static_cast<size_t>(in_.slices) + a.slice;
  }

  Action MessageAction(int link, size_t id, bool send) const {
    const Link& l = table_.links[static_cast<size_t>(link)];
    const size_t at = id - static_cast<size_t>(link) * per_link_;
    const OpKind kind = l.forward ? (send ? OpKind::kSendForward : OpKind::kRecvForward)
                                  : (send ? OpKind::kSendBackward : OpKind::kRecvBackward);
    Action a = MakeAction(kind, StageId(send ? l.from : l.to),
                          MicroBatchId(static_cast<int32_t>(at / static_cast<size_t>(in_.slices))),
                          static_cast<int>(at % static_cast<size_t>(in_.slices)));
    a.value = l.value;
    const int peer = send ? l.to : l.from;
    if (peer != l.from + (l.forward ? 1 : -1) && send)
      a.peer_stage = static_cast<int16_t>(peer);
    if (!send && peer != l.to + (l.forward ? -1 : 1))
      a.peer_stage = static_cast<int16_t>(peer);
    return a;
  }

  int ReceiverOf(int link) const {
    const Link& l = table_.links[static_cast<size_t>(link)];
    return in_.placement.RankOf(StageId(l.to), l.direction).value();
  }

  const std::vector<int>* LinksOf(const Action& a, bool before) const {
    const int d = in_.DirectionOf(a.micro_batch);
    const auto stage = static_cast<size_t>(a.stage.value());
    if (a.kind == OpKind::kForward)
      return before ? &table_.before_forward[d][stage] : &table_.after_forward[d][stage];
    if (a.kind == OpKind::kBackward || a.kind == OpKind::kBackwardInput) {
      return before ? &table_.before_backward[d][stage] : &table_.after_backward[d][stage];
    }
    return nullptr;
  }

  void Emit(int rank, const Action& a) { out_.ranks[static_cast<size_t>(rank)].push_back(a); }

  // Runs `rank` until it waits or another rank is behind it in time.
  void Advance(int rank) {
    RankState& state = ranks_[static_cast<size_t>(rank)];
    while (true) {
      TakeRequested(rank);
      if (!Step(rank))
        return;
      if (!runnable_.empty() && std::get<0>(runnable_.top()) < state.clock)
        return Wake(rank, state.clock);
    }
  }

  // Does one thing; false when the rank waits (it will be woken) or is at its end.
  bool Step(int rank) {
    RankState& state = ranks_[static_cast<size_t>(rank)];
    const auto& program = in_.ranks[static_cast<size_t>(rank)];
    if (state.next >= program.size())
      return false;
    Action a = program[state.next];
    if (state.phase == Phase::kReceive) {
      const auto* links = LinksOf(a, true);
      if (links != nullptr && state.at < links->size())
        return Receive(rank, (*links)[state.at], a);
      state.phase = Phase::kCompute;
      state.at = 0;
    }
    if (state.phase == Phase::kCompute) {
      if (a.kind == OpKind::kBarrier && !PassBarrier(rank))
        return false;
      if (!LapDone(rank, a))
        return false;
      a.joined = false;
      if (a.kind != OpKind::kIdle)
        Emit(rank, a);
      state.clock += a.kind == OpKind::kBackward ? 2 : IsCompute(a.kind) ? 1 : 0;
      FinishLap(a, state.clock);
      state.phase = Phase::kSend;
      return true;
    }
    const auto* links = LinksOf(a, false);
    if (links != nullptr && state.at < links->size())
      return Send(rank, (*links)[state.at], a);
    state.phase = Phase::kReceive;
    state.at = 0;
    ++state.next;
    return true;
  }

  bool Receive(int rank, int link, const Action& a) {
    RankState& state = ranks_[static_cast<size_t>(rank)];
    const size_t id = IdOf(link, a);
    if (!messages_[id].taken) {
      if (messages_[id].sent == kNotYet)
        return false;  // its SEND wakes this rank
      state.clock = std::max(state.clock, messages_[id].sent);
      Take(rank, link, id);
    }
    ++state.at;
    return true;
  }

  bool Send(int rank, int link, const Action& a) {
    RankState& state = ranks_[static_cast<size_t>(rank)];
    auto& waiting = waiting_in_link_[static_cast<size_t>(link)];
    const int receiver = ReceiverOf(link);
    if (rendezvous_)
      return Meet(rank, receiver, link, IdOf(link, a));
    if (waiting.size() >= credits_) {
      stuck_sender_[static_cast<size_t>(link)] = rank;
      ranks_[static_cast<size_t>(receiver)].requests.push_back(link);
      if (!ranks_[static_cast<size_t>(receiver)].queued)
        Wake(receiver, state.clock);
      return false;
    }
    const size_t id = IdOf(link, a);
    Emit(rank, MessageAction(link, id, true));
    messages_[id].sent = state.clock;
    waiting.push_back(id);
    ++state.at;
    // Wakes a receiver that waits for this message; one that waits for something else looks and
    // waits on.
    if (!ranks_[static_cast<size_t>(receiver)].queued)
      Wake(receiver, state.clock);
    return true;
  }

  // Both ends at once, each after what its rank has done so far: what is written down in this order
  // can be run in this order, so that no rank ever waits for one that waits.
  bool Meet(int rank, int receiver, int link, size_t id) {
    RankState& state = ranks_[static_cast<size_t>(rank)];
    RankState& other = ranks_[static_cast<size_t>(receiver)];
    Emit(rank, MessageAction(link, id, true));
    Emit(receiver, MessageAction(link, id, false));
    state.clock = std::max(state.clock, other.clock);
    messages_[id].sent = state.clock;
    messages_[id].taken = true;
    ++state.at;
    Wake(receiver, state.clock);
    return true;
  }

  void Take(int rank, int link, size_t id) {
    auto& waiting = waiting_in_link_[static_cast<size_t>(link)];
    waiting.erase(std::find(waiting.begin(), waiting.end(), id));
    messages_[id].taken = true;
    Emit(rank, MessageAction(link, id, false));
    int& sender = stuck_sender_[static_cast<size_t>(link)];
    if (sender >= 0) {
      Wake(sender, ranks_[static_cast<size_t>(rank)].clock);
      sender = -1;
    }
  }

  // A sender waits for room: takes the first message of that link before its turn, unless room was
  // made meanwhile.
  void TakeRequested(int rank) {
    RankState& state = ranks_[static_cast<size_t>(rank)];
    for (size_t i = 0; i < state.requests.size(); ++i) {
      const int link = state.requests[i];
      if (stuck_sender_[static_cast<size_t>(link)] < 0)
        continue;
      const auto& waiting = waiting_in_link_[static_cast<size_t>(link)];
      if (!waiting.empty())
        Take(rank, link, waiting.front());
    }
    state.requests.clear();
  }

  bool PassBarrier(int rank) {
    RankState& state = ranks_[static_cast<size_t>(rank)];
    if (arrivals_.size() <= state.barriers)
      arrivals_.resize(state.barriers + 1, 0);
    size_t& arrivals = arrivals_[state.barriers];
    if (!state.at_barrier) {
      state.at_barrier = true;
      if (++arrivals == ranks_.size()) {
        for (size_t r = 0; r < ranks_.size(); ++r) {
          if (static_cast<int>(r) != rank)
            Wake(static_cast<int>(r), state.clock);
        }
      }
    }
    if (arrivals < ranks_.size())
      return false;
    state.at_barrier = false;
    ++state.barriers;
    return true;
  }

  // Decoding: the first stage's F waits for the last stage's F of the lap before.
  bool LapDone(int rank, const Action& a) {
    if (!in_.ring || a.kind != OpKind::kForward || a.stage.value() != 0 ||
        a.micro_batch.value() < in_.micro_batches)
      return true;
    if (lap_end_.empty())
      lap_end_.assign(per_link_, kNotYet);
    const size_t before = LapIndex(a.micro_batch.value() - in_.micro_batches, a.slice);
    if (lap_end_[before] == kNotYet)
      return false;
    RankState& state = ranks_[static_cast<size_t>(rank)];
    state.clock = std::max(state.clock, lap_end_[before]);
    return true;
  }

  void FinishLap(const Action& a, int64_t time) {
    if (!in_.ring || a.kind != OpKind::kForward || a.stage.value() + 1 != in_.num_stages())
      return;
    if (lap_end_.empty())
      lap_end_.assign(per_link_, kNotYet);
    lap_end_[LapIndex(a.micro_batch.value(), a.slice)] = time;
    const int first = in_.RankOf(StageId(0), a.micro_batch).value();
    if (!ranks_[static_cast<size_t>(first)].queued)
      Wake(first, time);
  }

  size_t LapIndex(int micro_batch, int slice) const {
    return static_cast<size_t>(micro_batch) * static_cast<size_t>(in_.slices) +
           static_cast<size_t>(slice);
  }

  using Entry = std::tuple<int64_t, int>;
  const Schedule& in_;
  Schedule& out_;
  size_t credits_;
  bool rendezvous_;
  LinkTable table_;
  size_t per_link_;
  std::vector<MessageState> messages_;
  std::vector<std::vector<size_t>> waiting_in_link_;  // sent and not taken, in order
  std::vector<int> stuck_sender_;  // per link: the rank that waits for room, or -1
  std::vector<RankState> ranks_;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> runnable_;
  std::vector<size_t> arrivals_;  // per barrier
  std::vector<int64_t> lap_end_;
};

}  // namespace

// Many long edges times many micro-batches: refused before the table of messages is allocated.
static Result<> CheckMessageCount(const Schedule& schedule, const LowerOptions& options) {
  constexpr double kMost = 1 << 27;
  const size_t links = FindLinks(schedule, options).links.size();
  const double messages =
      static_cast<double>(links) * schedule.total_micro_batches() * schedule.slices;
  if (messages > kMost) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[schedule.lower] {:.0f} messages over {} links, wanted at most {:.0f}",
                     messages, links, kMost);
  }
  return {};
}

static bool HasMessages(const Schedule& schedule) {
  return std::any_of(schedule.ranks.begin(), schedule.ranks.end(), [](const auto& program) {
    return std::any_of(program.begin(), program.end(),
                       [](const Action& a) { return IsMessage(a.kind); });
  });
}

Result<Schedule> AddCommunication(const Schedule& schedule, const LowerOptions& options) {
  if (options.credits < 1) {
    return MakeError(ErrorCode::kInvalidArgument, "[schedule.lower] {} credits, wanted at least 1",
                     options.credits);
  }
  if (schedule.lowered || HasMessages(schedule)) {
    return MakeError(
        ErrorCode::kInvalidSchedule,
        "[schedule.lower] {} has communication already, wanted a compute-only schedule",
        schedule.name);
  }
  PENSTOCK_TRY(Prove(schedule));
  PENSTOCK_TRY(CheckMessageCount(schedule, options));
  Schedule out = schedule;
  out.lowered = true;
  for (auto& program : out.ranks)
    program.clear();
  Lowering lowering(schedule, options, out);
  if (!lowering.Run())
    return lowering.Stuck();
  return out;
}

}  // namespace penstock::schedule
