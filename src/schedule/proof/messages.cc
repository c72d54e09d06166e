// Pairs every SEND with its RECV and checks that what a computation needs arrives on its rank
// before it.

#include "schedule/proof/flat_map.h"
#include "schedule/proof/proof.h"

namespace penstock::schedule {
namespace {

class MessageIndex {
 public:
  explicit MessageIndex(Proof& proof)
      : proof_(proof), schedule_(proof.schedule), messages_(proof.triples.size()) {}

  void Run() {
    proof_.message_of.resize(schedule_.ranks.size());
    for (int r = 0; r < schedule_.num_ranks(); ++r)
      IndexRank(r);
    proof_.num_channels = static_cast<int>(channels_.size());
    for (const Message& message : proof_.messages)
      CheckPair(message);
    FindNeeded();
  }

 private:
  // An edge and direction, on one copy of the weights.
  uint64_t ChannelKey(bool forward, uint16_t value, int from, int to, int direction) const {
    return (((uint64_t{forward} * 2 + static_cast<uint64_t>(direction)) << 16 | value) << 32) |
           static_cast<uint64_t>(from) << 16 | static_cast<uint64_t>(to);
  }

  uint64_t MessageKey(int channel, MicroBatchId micro_batch, int slice) const {
    return static_cast<uint64_t>(channel) << 32 |
           (static_cast<uint64_t>(micro_batch.value()) * static_cast<uint64_t>(schedule_.slices) +
            static_cast<uint64_t>(slice));
  }

  void IndexRank(int rank) {
    const auto& program = schedule_.ranks[static_cast<size_t>(rank)];
    auto& message_of = proof_.message_of[static_cast<size_t>(rank)];
    message_of.assign(program.size(), -1);
    for (size_t i = 0; i < program.size(); ++i) {
      const Action& a = program[i];
      if (!IsMessage(a.kind) || !proof_.Usable(rank, a))
        continue;
      const bool forward = a.kind == OpKind::kSendForward || a.kind == OpKind::kRecvForward;
      const int peer = PeerStage(a).value();
      const int from = IsSend(a.kind) ? a.stage.value() : peer;
      const int to = IsSend(a.kind) ? peer : a.stage.value();
      const int direction = schedule_.DirectionOf(a.micro_batch);
      const int channel = channels_.FindOrInsert(ChannelKey(forward, a.value, from, to, direction),
                                                 static_cast<int32_t>(channels_.size()));
      const auto fresh = static_cast<int32_t>(proof_.messages.size());
      const int32_t id = messages_.FindOrInsert(MessageKey(channel, a.micro_batch, a.slice), fresh);
      if (id == fresh)
        proof_.messages.push_back({.channel = channel});
      Message& message = proof_.messages[static_cast<size_t>(id)];
      message_of[i] = IsSend(a.kind) ? Place(message.send_rank, message.send_index, rank, i, id)
                                     : Place(message.recv_rank, message.recv_index, rank, i, id);
    }
  }

  // -1 where this end is there already.
  int32_t Place(int32_t& rank_slot, int32_t& index_slot, int rank, size_t i, int32_t id) {
    if (rank_slot >= 0) {
      const int32_t first_rank = rank_slot;
      const int32_t first = index_slot;
      proof_.problems.Add(ProblemKind::kDuplicate, rank, static_cast<int64_t>(i), [&] {
        return fmt::format("the same message again; the first is on rank {} at cell {}", first_rank,
                           proof_.problems.CellOf(first_rank, first));
      });
      return -1;
    }
    rank_slot = rank;
    index_slot = static_cast<int32_t>(i);
    return id;
  }

  void CheckPair(const Message& m) {
    ProblemList& problems = proof_.problems;
    const bool sent = m.send_rank >= 0;
    const bool received = m.recv_rank >= 0;
    const int rank = sent ? m.send_rank : m.recv_rank;
    const int32_t index = sent ? m.send_index : m.recv_index;
    const Action& a = schedule_.ranks[static_cast<size_t>(rank)][static_cast<size_t>(index)];
    const int peer_rank = schedule_.RankOf(PeerStage(a), a.micro_batch).value();
    if (peer_rank == rank) {
      problems.Add(ProblemKind::kPlacement, rank, index, [&] {
        return fmt::format("stage {} is on the same rank: nothing to send", PeerStage(a));
      });
    } else if (sent != received) {
      problems.Add(ProblemKind::kUnmatched, rank, index, [&] {
        return fmt::format("rank {} has no {} for it", peer_rank, problems.Text(OtherEnd(a)));
      });
    }
    if (sent)
      CheckProduced(rank, index, a);
  }

  // A chain value or gradient is sent after the computation that makes it. (Long values:
  // CheckValues.)
  void CheckProduced(int rank, int32_t index, const Action& send) {
    if (send.value != 0)
      return;
    const TripleTable::Entry& entry = proof_.triples[proof_.triples.IndexOf(send)];
    const int32_t producer = send.kind == OpKind::kSendForward ? entry.forward : entry.input;
    if (producer > index) {
      proof_.problems.Add(ProblemKind::kOrder, rank, index, [&] {
        return fmt::format("before {} at cell {}, which makes what it sends",
                           proof_.problems.TextAt(rank, producer),
                           proof_.problems.CellOf(rank, producer));
      });
    }
  }

  static Action OtherEnd(const Action& a) {
    Action other = a;
    other.stage = PeerStage(a);
    if (a.peer_stage >= 0)
      other.peer_stage = static_cast<int16_t>(a.stage.value());
    switch (a.kind) {
      case OpKind::kSendForward:
        other.kind = OpKind::kRecvForward;
        break;
      case OpKind::kRecvForward:
        other.kind = OpKind::kSendForward;
        break;
      case OpKind::kSendBackward:
        other.kind = OpKind::kRecvBackward;
        break;
      default:
        other.kind = OpKind::kSendBackward;
    }
    return other;
  }

  // What each F, B and I needs from another rank.
  void FindNeeded() {
    proof_.forward_message.assign(proof_.triples.size(), -1);
    proof_.backward_message.assign(proof_.triples.size(), -1);
    for (int rank = 0; rank < schedule_.num_ranks(); ++rank) {
      const auto& program = schedule_.ranks[static_cast<size_t>(rank)];
      for (size_t i = 0; i < program.size(); ++i) {
        const Action& a = program[i];
        if ((a.kind == OpKind::kForward || a.kind == OpKind::kBackward ||
             a.kind == OpKind::kBackwardInput) &&
            proof_.Usable(rank, a)) {
          NeedChain(rank, static_cast<int32_t>(i), a);
        } else if (a.kind == OpKind::kRecvForward && a.value != 0 &&
                   proof_.message_of[static_cast<size_t>(rank)][i] >= 0) {
          // A long value that is received for this stage: its F waits for it where receives do not
          // block.
          const int32_t id = proof_.message_of[static_cast<size_t>(rank)][i];
          int32_t& head = proof_.forward_message[proof_.triples.IndexOf(a)];
          proof_.messages[static_cast<size_t>(id)].next_of_forward = head;
          head = id;
        }
      }
    }
  }

  void NeedChain(int rank, int32_t index, const Action& a) {
    const bool forward = a.kind == OpKind::kForward;
    const int from = a.stage.value() + (forward ? -1 : 1);
    const TripleTable::Entry& entry = proof_.triples[proof_.triples.IndexOf(a)];
    if ((forward ? entry.forward : entry.input) != index)
      return;  // a repetition, reported
    if (from < 0 || from >= schedule_.num_stages() ||
        schedule_.RankOf(StageId(from), a.micro_batch) == RankId(rank))
      return;
    const int direction = schedule_.DirectionOf(a.micro_batch);
    const int channel =
        channels_.Find(ChannelKey(forward, 0, from, a.stage.value(), direction), -1);
    const int32_t id =
        channel < 0 ? -1 : messages_.Find(MessageKey(channel, a.micro_batch, a.slice), -1);
    if (id < 0) {
      Action recv = MakeAction(forward ? OpKind::kRecvForward : OpKind::kRecvBackward, a.stage,
                               a.micro_batch, a.slice);
      proof_.problems.AddAbsent(ProblemKind::kMissing, rank, recv, [&] {
        return fmt::format("{} at cell {} needs it from stage {} on rank {}",
                           proof_.problems.Text(a), proof_.problems.CellOf(rank, index), from,
                           schedule_.RankOf(StageId(from), a.micro_batch));
      });
      return;
    }
    Message& message = proof_.messages[static_cast<size_t>(id)];
    int32_t& head =
        (forward ? proof_.forward_message : proof_.backward_message)[proof_.triples.IndexOf(a)];
    message.next_of_forward = head;
    head = id;
    if (message.recv_rank == rank && message.recv_index > index) {
      proof_.problems.Add(ProblemKind::kOrder, rank, index, [&] {
        return fmt::format("before {} at cell {}, which brings its input",
                           proof_.problems.TextAt(rank, message.recv_index),
                           proof_.problems.CellOf(rank, message.recv_index));
      });
    }
  }

  Proof& proof_;
  const Schedule& schedule_;
  FlatMap channels_;
  FlatMap messages_;
};

}  // namespace

void IndexMessages(Proof& proof) {
  if (proof.has_messages)
    MessageIndex(proof).Run();
}

}  // namespace penstock::schedule
