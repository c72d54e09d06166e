// Runs the schedule under its transport's rule, each rank as far as it can go. The rules only ever
// let more happen the more has happened, so the end does not depend on the order in which ranks are
// visited: a rank that is left waiting waits for ever.

#include <algorithm>

#include "schedule/proof/collectives.h"
#include "schedule/proof/proof.h"

namespace penstock::schedule {
namespace {

constexpr int64_t kNotYet = -1;

enum class WaitFor : uint8_t { kNothing, kCompute, kSend, kRoom, kPartner, kOthers };

// What a blocked rank waits for: an action of another rank.
struct Wait {
  WaitFor what = WaitFor::kNothing;
  int rank = -1;
  int64_t index = -1;
};

class Runner {
 public:
  explicit Runner(Proof& proof)
      : proof_(proof),
        schedule_(proof.schedule),
        kind_(proof.options.transport.kind),
        collectives_(proof),
        next_(proof.schedule.ranks.size(), 0),
        clock_(proof.schedule.ranks.size(), 0),
        arrived_(proof.schedule.ranks.size(), false),
        forward_end_(proof.triples.size(), kNotYet),
        input_end_(proof.triples.size(), kNotYet),
        sent_(proof.messages.size(), kNotYet),
        taken_(proof.messages.size(), kNotYet),
        sends_(static_cast<size_t>(proof.num_channels), 0),
        takes_(static_cast<size_t>(proof.num_channels)) {
    proof.start_slot.resize(proof.schedule.ranks.size());
    if (!proof.options.activation_limit.empty()) {
      for (size_t r = 0; r < proof.start_slot.size(); ++r)
        proof.start_slot[r].assign(proof.schedule.ranks[r].size(), -1);
    }
  }

  void Run() {
    for (int r = schedule_.num_ranks() - 1; r >= 0; --r)
      awake_.push_back(r);
    while (!awake_.empty()) {
      const int rank = awake_.back();
      awake_.pop_back();
      while (Step(rank)) {
      }
    }
    for (size_t r = 0; r < next_.size(); ++r) {
      if (next_[r] < schedule_.ranks[r].size())
        return ReportDeadlock(static_cast<int>(r));
    }
    proof_.result.makespan_slots =
        clock_.empty() ? 0 : *std::max_element(clock_.begin(), clock_.end());
  }

 private:
  const Action& At(int rank, int64_t index) const {
    return schedule_.ranks[static_cast<size_t>(rank)][static_cast<size_t>(index)];
  }

  // Runs one action of `rank`; false when it is at its end or must wait.
  bool Step(int rank) {
    const auto& program = schedule_.ranks[static_cast<size_t>(rank)];
    size_t& next = next_[static_cast<size_t>(rank)];
    if (next >= program.size())
      return false;
    const Action& a = program[next];
    if (proof_.Usable(rank, a)) {
      const size_t before = next;
      if (!Execute(rank, a))
        return false;
      if (next != before)
        return true;  // a rendezvous has moved both sides on
    }
    ++next;
    return true;
  }

  bool Execute(int rank, const Action& a) {
    if (IsCompute(a.kind))
      return Compute(rank, a);
    if (IsSend(a.kind))
      return Send(rank, a);
    if (IsRecv(a.kind))
      return Receive(rank, a);
    if (collectives_.Concerns(a))
      return Meet(rank, a);
    return true;
  }

  // --- Computation ---

  bool Compute(int rank, const Action& a) {
    int64_t ready = 0;
    if (!InputsThere(rank, a, ready))
      return false;
    int64_t& clock = clock_[static_cast<size_t>(rank)];
    // The second part of an overlapped pair shares the slot of the first, if its input is there.
    const int64_t start = std::max(a.joined ? clock - 1 : clock, ready);
    clock = std::max(clock, start + 1);
    auto& slots = proof_.start_slot[static_cast<size_t>(rank)];
    if (!slots.empty())
      slots[next_[static_cast<size_t>(rank)]] = static_cast<int32_t>(start);
    const size_t triple = proof_.triples.IndexOf(a);
    if (a.kind == OpKind::kForward) {
      forward_end_[triple] = start + 1;
      WakeStage(a.stage.value() + 1, a.micro_batch);
      if (schedule_.ring && a.stage.value() + 1 == schedule_.num_stages())
        WakeStage(0, a.micro_batch);
    } else if (a.kind == OpKind::kBackward || a.kind == OpKind::kBackwardInput) {
      input_end_[triple] = start + 1;
      WakeStage(a.stage.value() - 1, a.micro_batch);
    }
    return true;
  }

  void WakeStage(int stage, MicroBatchId micro_batch) {
    if (stage >= 0 && stage < schedule_.num_stages())
      awake_.push_back(schedule_.RankOf(StageId(stage), micro_batch).value());
  }

  // Inputs from other ranks; those of the same rank are a matter of its order.
  bool InputsThere(int rank, const Action& a, int64_t& ready) const {
    return FindMissingInput(rank, a, ready).what == WaitFor::kNothing;
  }

  Wait FindMissingInput(int rank, const Action& a, int64_t& ready) const {
    const bool forward = a.kind == OpKind::kForward;
    if (!forward && a.kind != OpKind::kBackward && a.kind != OpKind::kBackwardInput)
      return {};
    const int s = a.stage.value();
    const int source = s + (forward ? -1 : 1);
    if (forward && s == 0 && schedule_.ring && a.micro_batch.value() >= schedule_.micro_batches) {
      const MicroBatchId before(a.micro_batch.value() - schedule_.micro_batches);
      const Wait wait =
          MissingCompute(rank, schedule_.num_stages() - 1, before, a.slice, true, ready);
      if (wait.what != WaitFor::kNothing)
        return wait;
    }
    if (proof_.has_messages) {
      if (kind_ != TransportKind::kPosted)
        return {};
      const auto& heads = forward ? proof_.forward_message : proof_.backward_message;
      for (int32_t id = heads[proof_.triples.IndexOf(a)]; id >= 0;
           id = proof_.messages[static_cast<size_t>(id)].next_of_forward) {
        const Wait wait = MissingSend(id, ready);
        if (wait.what != WaitFor::kNothing)
          return wait;
      }
      return {};
    }
    if (source < 0 || source >= schedule_.num_stages())
      return {};
    return MissingCompute(rank, source, a.micro_batch, a.slice, forward, ready);
  }

  Wait MissingCompute(int rank, int stage, MicroBatchId micro_batch, int slice, bool forward,
                      int64_t& ready) const {
    const int producer_rank = schedule_.RankOf(StageId(stage), micro_batch).value();
    if (producer_rank == rank)
      return {};
    const size_t triple = proof_.triples.IndexOf(stage, micro_batch.value(), slice);
    const int64_t end = forward ? forward_end_[triple] : input_end_[triple];
    const int32_t index = forward ? proof_.triples[triple].forward : proof_.triples[triple].input;
    if (end == kNotYet && index >= 0)
      return {WaitFor::kCompute, producer_rank, index};
    ready = std::max(ready, end);
    return {};
  }

  Wait MissingSend(int32_t id, int64_t& ready) const {
    const Message& message = proof_.messages[static_cast<size_t>(id)];
    if (!Whole(message))
      return {};
    const int64_t sent = sent_[static_cast<size_t>(id)];
    if (sent == kNotYet)
      return {WaitFor::kSend, message.send_rank, message.send_index};
    ready = std::max(ready, sent);
    return {};
  }

  // --- Messages ---

  // Both ends are there, on different ranks; others were reported and do not block.
  static bool Whole(const Message& m) {
    return m.send_rank >= 0 && m.recv_rank >= 0 && m.send_rank != m.recv_rank;
  }

  int32_t MessageAt(int rank) const {
    return proof_.message_of[static_cast<size_t>(rank)][next_[static_cast<size_t>(rank)]];
  }

  bool HasRoom(int32_t channel, int64_t& time) const {
    if (kind_ != TransportKind::kCredits)
      return true;
    const auto& takes = takes_[static_cast<size_t>(channel)];
    const int64_t free_from =
        sends_[static_cast<size_t>(channel)] - proof_.options.transport.credits;
    if (free_from < 0)
      return true;
    if (free_from >= static_cast<int64_t>(takes.size()))
      return false;
    time = std::max(time, takes[static_cast<size_t>(free_from)]);
    return true;
  }

  bool Send(int rank, const Action&) {
    const int32_t id = MessageAt(rank);
    if (id < 0 || !Whole(proof_.messages[static_cast<size_t>(id)]))
      return true;
    const Message& message = proof_.messages[static_cast<size_t>(id)];
    if (kind_ == TransportKind::kRendezvous)
      return MeetPartner(rank, id, message.recv_rank, message.recv_index);
    int64_t& clock = clock_[static_cast<size_t>(rank)];
    if (!HasRoom(message.channel, clock))
      return false;
    ++sends_[static_cast<size_t>(message.channel)];
    sent_[static_cast<size_t>(id)] = clock;
    awake_.push_back(message.recv_rank);
    return true;
  }

  bool Receive(int rank, const Action&) {
    const int32_t id = MessageAt(rank);
    if (id < 0 || !Whole(proof_.messages[static_cast<size_t>(id)]))
      return true;
    const Message& message = proof_.messages[static_cast<size_t>(id)];
    if (kind_ == TransportKind::kRendezvous)
      return MeetPartner(rank, id, message.send_rank, message.send_index);
    if (kind_ == TransportKind::kPosted)
      return true;
    int64_t& clock = clock_[static_cast<size_t>(rank)];
    if (sent_[static_cast<size_t>(id)] == kNotYet)
      return false;
    clock = std::max(clock, sent_[static_cast<size_t>(id)]);
    taken_[static_cast<size_t>(id)] = clock;
    takes_[static_cast<size_t>(message.channel)].push_back(clock);
    awake_.push_back(message.send_rank);
    return true;
  }

  // Rendezvous: both sides stand at the message, and both move on.
  bool MeetPartner(int rank, int32_t id, int partner, int32_t partner_index) {
    if (next_[static_cast<size_t>(partner)] != static_cast<size_t>(partner_index))
      return false;
    const int64_t time =
        std::max(clock_[static_cast<size_t>(rank)], clock_[static_cast<size_t>(partner)]);
    clock_[static_cast<size_t>(rank)] = clock_[static_cast<size_t>(partner)] = time;
    sent_[static_cast<size_t>(id)] = taken_[static_cast<size_t>(id)] = time;
    ++next_[static_cast<size_t>(rank)];
    ++next_[static_cast<size_t>(partner)];
    awake_.push_back(partner);
    return true;
  }

  // --- Barriers and reductions between ranks ---

  bool Meet(int rank, const Action& a) {
    int64_t& clock = clock_[static_cast<size_t>(rank)];
    std::vector<bool>::reference arrived = arrived_[static_cast<size_t>(rank)];
    if (a.kind != OpKind::kWaitReduceGrad && !arrived) {
      collectives_.Arrive(rank, a, clock);
      arrived = true;
      for (const int member : collectives_.Members(a)) {
        if (member != rank)
          awake_.push_back(member);
      }
    }
    const bool must_wait = a.kind == OpKind::kWaitReduceGrad || collectives_.Blocks(rank, a);
    if (must_wait && !collectives_.Complete(rank, a, clock))
      return false;
    arrived = false;
    return true;
  }

  // --- Deadlock ---

  Wait FindWait(int rank) const {
    const auto at = static_cast<int64_t>(next_[static_cast<size_t>(rank)]);
    const Action& a = At(rank, at);
    int64_t ignored = 0;
    if (IsCompute(a.kind))
      return FindMissingInput(rank, a, ignored);
    if (IsMessage(a.kind)) {
      const int32_t id = MessageAt(rank);
      const Message& m = proof_.messages[static_cast<size_t>(id)];
      if (kind_ == TransportKind::kRendezvous) {
        return IsSend(a.kind) ? Wait{WaitFor::kPartner, m.recv_rank, m.recv_index}
                              : Wait{WaitFor::kPartner, m.send_rank, m.send_index};
      }
      if (IsRecv(a.kind))
        return {WaitFor::kSend, m.send_rank, m.send_index};
      return {WaitFor::kRoom, m.recv_rank, FirstUntaken(m.channel)};
    }
    const int laggard = collectives_.Laggard(rank, a);
    return {WaitFor::kOthers, laggard,
            collectives_.NextIndex(laggard, a, next_[static_cast<size_t>(laggard)])};
  }

  // The RECV that makes room on a full channel: the first in its rank's list.
  int64_t FirstUntaken(int32_t channel) const {
    int64_t first = -1;
    for (size_t id = 0; id < proof_.messages.size(); ++id) {
      const Message& m = proof_.messages[id];
      if (m.channel == channel && sent_[id] != kNotYet && taken_[id] == kNotYet &&
          (first < 0 || m.recv_index < first)) {
        first = m.recv_index;
      }
    }
    return first;
  }

  void ReportDeadlock(int start) {
    std::vector<int> seen_at(next_.size(), -1);
    std::vector<int> path;
    std::vector<Wait> waits;
    int rank = start;
    while (seen_at[static_cast<size_t>(rank)] < 0) {
      seen_at[static_cast<size_t>(rank)] = static_cast<int>(path.size());
      path.push_back(rank);
      waits.push_back(FindWait(rank));
      rank = waits.back().rank;
      if (rank < 0 ||
          next_[static_cast<size_t>(rank)] >= schedule_.ranks[static_cast<size_t>(rank)].size())
        break;
    }
    const size_t first = rank >= 0 && seen_at[static_cast<size_t>(rank)] >= 0
                             ? static_cast<size_t>(seen_at[static_cast<size_t>(rank)])
                             : 0;
    const int at = path[first];
    proof_.problems.Add(ProblemKind::kDeadlock, at,
                        static_cast<int64_t>(next_[static_cast<size_t>(at)]),
                        [&] { return Chain(path, waits, first); });
  }

  std::string Chain(const std::vector<int>& path, const std::vector<Wait>& waits,
                    size_t first) const {
    std::string rule(TransportKindText(kind_));
    if (kind_ == TransportKind::kCredits)
      rule += fmt::format(", {} per edge and direction", proof_.options.transport.credits);
    if (!proof_.has_messages)
      rule = "compute-only: free data flow";
    std::string text = fmt::format("{} ranks wait for each other ({})", path.size() - first, rule);
    for (size_t i = first; i < path.size(); ++i) {
      const int rank = path[i];
      const Wait& wait = waits[i];
      const auto next = static_cast<int64_t>(next_[static_cast<size_t>(rank)]);
      text += fmt::format("\n  rank {} stands at cell {}, {}: waits for rank {} to ", rank,
                          proof_.problems.CellOf(rank, next), proof_.problems.TextAt(rank, next),
                          wait.rank);
      if (wait.index < 0) {
        text += "come to it";
        continue;
      }
      const std::string action = proof_.problems.TextAt(wait.rank, wait.index);
      const int cell = proof_.problems.CellOf(wait.rank, wait.index);
      text += wait.what == WaitFor::kRoom
                  ? fmt::format("make room with {} at cell {}", action, cell)
                  : fmt::format("do {} at cell {}", action, cell);
    }
    return text + Hint(path, waits, first);
  }

  // An action of a rank's list that would stand elsewhere.
  struct Move {
    int rank;
    int64_t from;
    int64_t to;
  };

  // Moves that would let the cycle go on: an awaited action that could run now comes first; a RECV
  // that holds up what others wait for stands right before what needs it.
  std::vector<Move> MovesThatHelp(const std::vector<int>& path, const std::vector<Wait>& waits,
                                  size_t first) const {
    std::vector<Move> moves;
    for (size_t i = first; i < path.size(); ++i) {
      const Wait& wait = waits[i];
      if (wait.index >= 0 && CouldRunNow(wait.rank, At(wait.rank, wait.index), wait.index)) {
        moves.push_back(
            {wait.rank, wait.index, static_cast<int64_t>(next_[static_cast<size_t>(wait.rank)])});
      }
    }
    for (size_t i = first; i < path.size(); ++i) {
      const auto next = static_cast<int64_t>(next_[static_cast<size_t>(path[i])]);
      const int64_t reader = ReaderOf(path[i], next);
      if (reader > next + 1)
        moves.push_back({path[i], next, reader - 1});
    }
    return moves;
  }

  // Where the computation stands that a RECV brings its input; -1: nowhere after it, or no RECV.
  int64_t ReaderOf(int rank, int64_t index) const {
    const Action& recv = At(rank, index);
    if (!IsRecv(recv.kind))
      return -1;
    const TripleTable::Entry& entry = proof_.triples[proof_.triples.IndexOf(recv)];
    const int32_t reader = recv.kind == OpKind::kRecvForward ? entry.forward : entry.input;
    return reader > index ? reader : -1;
  }

  bool IsLegalWith(const Move& move) const {
    Schedule moved = schedule_;
    auto& program = moved.ranks[static_cast<size_t>(move.rank)];
    const auto from = program.begin() + move.from;
    const auto to = program.begin() + move.to;
    const auto [low, high] = std::minmax(from, to);
    if (std::any_of(low, high + 1, [](const Action& a) { return a.joined; }))
      return false;  // cells would fall apart
    if (from < to) {
      std::rotate(from, from + 1, to + 1);
    } else {
      std::rotate(to, from, from + 1);
    }
    ValidateOptions options = proof_.options;
    options.activation_limit.clear();
    options.max_problems = 0;  // none is worded, so this does not come here again
    return Validate(moved, options).ok();
  }

  // One move that makes the schedule legal; else one that leads on.
  std::string Hint(const std::vector<int>& path, const std::vector<Wait>& waits,
                   size_t first) const {
    constexpr size_t kTried = 4;
    std::vector<Move> moves = MovesThatHelp(path, waits, first);
    if (moves.empty())
      return "";
    moves.resize(std::min(moves.size(), kTried));
    const auto legal = std::find_if(moves.begin(), moves.end(),
                                    [this](const Move& move) { return IsLegalWith(move); });
    const Move& move = legal == moves.end() ? moves.front() : *legal;
    return fmt::format(
        "\n  {}: {} on rank {} at cell {} instead of {}",
        legal == moves.end() ? "a first step towards a legal order" : "nearest legal order",
        proof_.problems.TextAt(move.rank, move.from), move.rank,
        proof_.problems.CellOf(move.rank, move.to), proof_.problems.CellOf(move.rank, move.from));
  }

  bool CouldRunNow(int rank, const Action& a, int64_t index) const {
    const auto next = static_cast<int32_t>(next_[static_cast<size_t>(rank)]);
    const int32_t id =
        IsMessage(a.kind) ? proof_.message_of[static_cast<size_t>(rank)][static_cast<size_t>(index)]
                          : -1;
    if (IsRecv(a.kind)) {
      return id >= 0 &&
             (kind_ == TransportKind::kRendezvous || sent_[static_cast<size_t>(id)] != kNotYet);
    }
    if (IsSend(a.kind)) {
      const TripleTable::Entry& made = proof_.triples[proof_.triples.IndexOf(a)];
      const int32_t maker = a.kind == OpKind::kSendForward ? made.forward : made.input;
      int64_t ignored = 0;
      return id >= 0 && a.value == 0 && maker >= 0 && maker < next &&
             HasRoom(proof_.messages[static_cast<size_t>(id)].channel, ignored);
    }
    if (!IsCompute(a.kind))
      return false;
    int64_t ignored = 0;
    if (FindMissingInput(rank, a, ignored).what != WaitFor::kNothing)
      return false;
    auto done_here = [&](int32_t needed) { return needed < next; };
    const int s = a.stage.value();
    const int j = a.micro_batch.value();
    const auto& triples = proof_.triples;
    const TripleTable::Entry& own = triples[triples.IndexOf(a)];
    auto local = [&](int stage) {
      return stage >= 0 && stage < schedule_.num_stages() &&
             schedule_.RankOf(StageId(stage), a.micro_batch) == RankId(rank);
    };
    switch (a.kind) {
      case OpKind::kForward:
        return (!local(s - 1) || done_here(triples[triples.IndexOf(s - 1, j, a.slice)].forward)) &&
               (a.slice == 0 || done_here(triples[triples.IndexOf(s, j, a.slice - 1)].forward));
      case OpKind::kBackwardWeight:
        return done_here(own.input);
      case OpKind::kRecompute:
        return done_here(own.forward);
      default:
        return done_here(own.forward) && done_here(own.recompute) &&
               done_here(triples[triples.IndexOf(s, j, schedule_.slices - 1)].forward) &&
               (!local(s + 1) || done_here(triples[triples.IndexOf(s + 1, j, a.slice)].input)) &&
               (a.slice + 1 == schedule_.slices ||
                done_here(triples[triples.IndexOf(s, j, a.slice + 1)].input));
    }
  }

  Proof& proof_;
  const Schedule& schedule_;
  TransportKind kind_;
  Collectives collectives_;
  std::vector<size_t> next_;
  std::vector<int64_t> clock_;
  std::vector<bool> arrived_;  // at the collective that the rank stands at
  std::vector<int64_t> forward_end_;
  std::vector<int64_t> input_end_;
  std::vector<int64_t> sent_;
  std::vector<int64_t> taken_;
  std::vector<int64_t> sends_;               // per channel
  std::vector<std::vector<int64_t>> takes_;  // per channel, times in order
  std::vector<int> awake_;
};

}  // namespace

void RunToEnd(Proof& proof) {
  Runner(proof).Run();
}

}  // namespace penstock::schedule
