#include "sim/engine.h"

#include <fmt/format.h>

#include <algorithm>

namespace penstock::sim {

using schedule::Action;
using schedule::OpKind;
using schedule::TransportKind;
using trace::WaitCause;

Result<> Engine::RunStep(std::vector<trace::RankTotals>* totals,
                         std::vector<trace::RankTimeline>* record) {
  totals_ = totals;
  record_ = record;
  messages_ = 0;
  message_bytes_ = 0;
  std::fill(cells_.begin(), cells_.end(), Cell{});
  std::fill(posted_.begin(), posted_.end(), uint8_t{0});
  std::copy(ring_.begin(), ring_.end(), cells_.begin());  // the first slot is stage 0, forward
  ready_.clear();
  for (size_t r = 0; r < ranks_.size(); ++r) {
    const std::vector<Action>& program = schedule_->ranks[r];
    ranks_[r].next = program.data();
    ranks_[r].end = program.data() + program.size();
    ranks_[r].block = Block::kNone;
    ready_.push_back(static_cast<int32_t>(ranks_.size() - 1 - r));
  }
  while (!ready_.empty()) {
    const int rank = ready_.back();
    ready_.pop_back();
    if (totals_ != nullptr) {
      Advance<true>(rank);
    } else {
      Advance<false>(rank);
    }
  }
  for (const Rank& rank : ranks_) {
    if (rank.next != rank.end)
      return Stuck();
  }
  return {};
}

void Engine::Barrier(std::vector<trace::RankTotals>* totals,
                     std::vector<trace::RankTimeline>* record) {
  const double end_s = End();
  const auto slowest = std::max_element(
      ranks_.begin(), ranks_.end(), [](const Rank& a, const Rank& b) { return a.now_s < b.now_s; });
  const Action barrier = schedule::MakeAction(OpKind::kBarrier, StageId(), MicroBatchId());
  for (size_t r = 0; r < ranks_.size(); ++r) {
    double& now_s = ranks_[r].now_s;
    if (totals != nullptr && now_s < end_s) {
      (*totals)[r].AddIdle(WaitCause::kBarrier, now_s, end_s);
      if (record != nullptr) {
        (*record)[r].waits.push_back({barrier,
                                      RankId(static_cast<int32_t>(slowest - ranks_.begin())),
                                      WaitCause::kBarrier, now_s, end_s});
      }
    }
    now_s = end_s;
  }
}

double Engine::End() const {
  double end_s = 0;
  for (const Rank& rank : ranks_)
    end_s = std::max(end_s, rank.now_s);
  return end_s;
}

std::vector<double> Engine::State() const {
  std::vector<double> state;
  for (const Rank& rank : ranks_)
    state.push_back(rank.now_s);
  state.insert(state.end(), link_free_s_.begin(), link_free_s_.end());
  for (const Cell& cell : ring_)
    state.push_back(cell.arrival_s);
  for (const Channel& channel : channels_) {
    const auto size = static_cast<int64_t>(channel.taken_s.size());
    for (int64_t i = channel.taken - size; i < channel.taken; ++i)
      state.push_back(i < 0 ? 0.0 : channel.taken_s[static_cast<size_t>(i % size)]);
  }
  return state;
}

Error Engine::Stuck() const {
  std::string text;
  int shown = 0;
  for (size_t r = 0; r < ranks_.size() && shown < 6; ++r) {
    const Rank& rank = ranks_[r];
    if (rank.next == rank.end)
      continue;
    ++shown;
    const char* reason = rank.block == Block::kCredit    ? "waits for room to send"
                         : rank.block == Block::kBarrier ? "waits for the other ranks"
                                                         : "waits for its input";
    text += fmt::format("{}rank {} at position {} ({}) {}", text.empty() ? "" : "; ", r,
                        rank.next - schedule_->ranks[r].data(),
                        schedule::ActionText(*rank.next, schedule_->edges), reason);
  }
  return MakeError(
      ErrorCode::kInvalidSchedule,
      "[sim.engine] no rank can go on{}: {}\nWanted a schedule that `penstock check` "
      "accepts under the same transport.",
      free_flow_ ? ""
                 : fmt::format(" (transport {})", schedule::TransportKindText(transport_.kind)),
      text);
}

template <bool kAccount>
void Engine::Advance(int rank) {
  Rank& state = ranks_[static_cast<size_t>(rank)];
  while (state.next != state.end && Do<kAccount>(rank, *state.next))
    ++state.next;
}

template <bool kAccount>
bool Engine::Do(int rank, const Action& action) {
  switch (action.kind) {
    case OpKind::kForward:
      return AwaitInputs<kAccount>(rank, action, false) && Compute<kAccount>(rank, action);
    case OpKind::kBackward:
    case OpKind::kBackwardInput:
      return AwaitInputs<kAccount>(rank, action, true) && Compute<kAccount>(rank, action);
    case OpKind::kBackwardWeight:
    case OpKind::kRecompute:
    case OpKind::kOptimizer:
      return Compute<kAccount>(rank, action);
    case OpKind::kSendForward:
    case OpKind::kSendBackward:
      return Send<kAccount>(rank, action);
    case OpKind::kRecvForward:
    case OpKind::kRecvBackward:
      return Receive<kAccount>(rank, action);
    case OpKind::kWaitSendForward:
    case OpKind::kWaitSendBackward: {
      // The message left when it was sent; what has to be waited for is its arrival.
      const int channel = MessageChannel(action);
      if (transport_.kind == TransportKind::kPosted && channel >= 0) {
        IdleUntil<kAccount>(rank,
                            cells_[static_cast<size_t>(MessageCell(action, channel))].arrival_s,
                            WaitCause::kCommunication, channel, action);
      }
      return true;
    }
    case OpKind::kBarrier:
      return AtBarrier<kAccount>(rank, action);
    default:
      return Other<kAccount>(rank, action);
  }
}

template <bool kAccount>
bool Engine::AwaitInputs(int rank, const Action& action, bool backward) {
  const int stage = action.stage.value();
  const bool posted = !free_flow_ && transport_.kind == TransportKind::kPosted;
  if (!free_flow_ && !posted && ring_.empty())
    return true;  // the RECV before it waited
  const bool chain = backward ? stage + 1 < stages_ : stage > 0 || !ring_.empty();
  if (chain) {
    const int channel = ChainChannel(backward, stage, DirectionOf(action));
    const Channel& c = channels_[static_cast<size_t>(channel)];
    const bool around = stage == 0 && !backward;
    if (free_flow_ || around || (posted && c.from != c.to)) {
      const int64_t cell =
          CellOf(ChainSlot(backward, stage), action.micro_batch.value(), action.slice);
      if (!Await<kAccount>(rank, cell, channel, action))
        return false;
    }
  }
  if (backward)
    return true;
  for (const int32_t channel : long_into_[static_cast<size_t>(stage)]) {
    if (channels_[static_cast<size_t>(channel)].direction != DirectionOf(action))
      continue;
    const int64_t cell = CellOf(LongSlot(channel), action.micro_batch.value(), action.slice);
    if (free_flow_ ||
        (posted && posted_[static_cast<size_t>(cell - CellOf(2 * stages_, 0, 0))] != 0)) {
      if (!Await<kAccount>(rank, cell, channel, action))
        return false;
    }
  }
  return true;
}

template <bool kAccount>
bool Engine::Compute(int rank, const Action& action) {
  Rank& state = ranks_[static_cast<size_t>(rank)];
  double duration_s = 0;
  if (measured_ != nullptr) {
    const ActionSeconds measured = MeasuredOf(rank, action);
    state.now_s += measured.before_s;
    duration_s = measured.own_s;
  } else {
    duration_s = seconds_[static_cast<size_t>(static_cast<int>(action.kind) * stages_ +
                                              action.stage.value())];
    if (!scale_.empty() && action.kind != OpKind::kOptimizer) {
      duration_s *= scale_[static_cast<size_t>(
          static_cast<int64_t>(action.micro_batch.value()) * slices_ + action.slice)];
    }
  }
  Spend<kAccount>(rank, action, duration_s);
  if (action.kind == OpKind::kForward) {
    HandOver(action, false, state.now_s);
  } else if (action.kind == OpKind::kBackward || action.kind == OpKind::kBackwardInput) {
    HandOver(action, true, state.now_s);
  }
  return true;
}

template <bool kAccount>
void Engine::Spend(int rank, const Action& action, double seconds) {
  Rank& state = ranks_[static_cast<size_t>(rank)];
  const double start_s = state.now_s;
  state.now_s += seconds;
  if constexpr (kAccount) {
    const auto r = static_cast<size_t>(rank);
    (*totals_)[r].AddSlice(action.kind, start_s, state.now_s);
    if (record_ != nullptr) {
      (*record_)[r].slices.push_back(
          {action, static_cast<int32_t>(action.micro_batch.value() / schedule_->micro_batches), 0,
           start_s, state.now_s, 0});
    }
  }
}

template <bool kAccount>
bool Engine::Other(int rank, const Action& action) {
  if (measured_ != nullptr && action.kind != OpKind::kIdle) {
    const ActionSeconds measured = MeasuredOf(rank, action);
    ranks_[static_cast<size_t>(rank)].now_s += measured.before_s;
    Spend<kAccount>(rank, action, measured.own_s);
  }
  return true;
}

// Sends what a finished action made, where no SEND action does.
void Engine::HandOver(const Action& action, bool backward, double end_s) {
  const int stage = action.stage.value();
  if (!backward && stage + 1 == stages_ && !ring_.empty()) {
    const int64_t next = action.micro_batch.value() + schedule_->micro_batches;
    const int channel = ChainChannel(false, 0, DirectionOf(action));
    if (next < micro_batches_) {
      Deliver(CellOf(0, next, action.slice), channel, end_s, action);
    } else {
      const auto at = static_cast<size_t>(CellOf(0, next - micro_batches_, action.slice));
      ring_[at] = {ArrivalOf(channels_[static_cast<size_t>(channel)], end_s), end_s};
    }
  }
  if (!free_flow_)
    return;
  const int next = backward ? stage - 1 : stage + 1;
  if (next < 0 || next >= stages_)
    return;
  Deliver(CellOf(ChainSlot(backward, next), action.micro_batch.value(), action.slice),
          ChainChannel(backward, next, DirectionOf(action)), end_s, action);
  if (backward)
    return;
  for (const int32_t channel : long_from_[static_cast<size_t>(stage)]) {
    if (channels_[static_cast<size_t>(channel)].direction == DirectionOf(action)) {
      Deliver(CellOf(LongSlot(channel), action.micro_batch.value(), action.slice), channel, end_s,
              action);
    }
  }
}

double Engine::ArrivalOf(const Channel& channel, double sent_s) {
  if (channel.link < 0)
    return sent_s + channel.latency_s + channel.transfer_s;
  double& free_s = link_free_s_[static_cast<size_t>(channel.link)];
  free_s = std::max(free_s, sent_s) + channel.transfer_s;
  return free_s + channel.latency_s;
}

void Engine::Deliver(int64_t cell, int channel, double sent_s, const Action& action) {
  const Channel& c = channels_[static_cast<size_t>(channel)];
  Cell& target = cells_[static_cast<size_t>(cell)];
  target.sent_s = sent_s;
  target.arrival_s = ArrivalOf(c, sent_s);
  if (c.from != c.to) {
    ++messages_;
    message_bytes_ += c.bytes;
    if (record_ != nullptr) {
      Action send = c.awaited;
      send.micro_batch = action.micro_batch;
      send.slice = action.slice;
      if (schedule::IsCompute(send.kind)) {
        send.kind = send.kind == OpKind::kForward ? OpKind::kSendForward : OpKind::kSendBackward;
      }
      (*record_)[static_cast<size_t>(c.to)].received.push_back(
          {send, RankId(c.from), RankId(c.to),
           static_cast<int32_t>(action.micro_batch.value() / schedule_->micro_batches),
           target.sent_s, target.arrival_s, c.bytes});
    }
  }
  if (WaitsFor(c.to, Block::kCell, cell))
    Wake(c.to);
}

namespace {

// The RECV of a SEND.
Action TakerOf(const Action& send) {
  Action recv = send;
  recv.kind = send.kind == OpKind::kSendForward ? OpKind::kRecvForward : OpKind::kRecvBackward;
  recv.stage = schedule::PeerStage(send);
  if (send.peer_stage >= 0)
    recv.peer_stage = static_cast<int16_t>(send.stage.value());
  return recv;
}

}  // namespace

template <bool kAccount>
void Engine::IdleUntil(int rank, double until_s, WaitCause cause, int channel,
                       const Action& action) {
  Rank& state = ranks_[static_cast<size_t>(rank)];
  if (until_s <= state.now_s)
    return;
  if constexpr (kAccount) {
    const auto r = static_cast<size_t>(rank);
    (*totals_)[r].AddIdle(cause, state.now_s, until_s);
    if (record_ != nullptr) {
      const Channel& c = channels_[static_cast<size_t>(channel)];
      const bool sends = schedule::IsSend(action.kind) && c.from == rank;
      Action awaited = c.awaited;
      awaited.micro_batch = action.micro_batch;
      awaited.slice = action.slice;
      if (schedule::IsBackward(awaited.kind))
        awaited.kind = action.kind;
      if (sends)
        awaited = TakerOf(awaited);
      (*record_)[r].waits.push_back(
          {awaited, RankId(sends ? c.to : c.from), cause, state.now_s, until_s});
    }
  }
  state.now_s = until_s;
}

template <bool kAccount>
bool Engine::Await(int rank, int64_t cell, int channel, const Action& action) {
  const Cell& value = cells_[static_cast<size_t>(cell)];
  if (value.arrival_s < 0) {
    BlockOn(rank, Block::kCell, cell);
    return false;
  }
  const double now_s = ranks_[static_cast<size_t>(rank)].now_s;
  if (value.arrival_s > now_s) {
    IdleUntil<kAccount>(rank, std::min(value.sent_s, value.arrival_s), WaitCause::kImbalance,
                        channel, action);
    IdleUntil<kAccount>(rank, value.arrival_s, WaitCause::kCommunication, channel, action);
  }
  return true;
}

template <bool kAccount>
bool Engine::Send(int rank, const Action& action) {
  const int channel = MessageChannel(action);
  Channel& c = channels_[static_cast<size_t>(channel)];
  const int64_t cell = MessageCell(action, channel);
  Rank& state = ranks_[static_cast<size_t>(rank)];
  if (transport_.kind == TransportKind::kRendezvous) {
    Cell& value = cells_[static_cast<size_t>(cell)];
    if (value.arrival_s >= 0)
      return Await<kAccount>(rank, cell, channel, action);  // the RECV came: both end together
    if (!WaitsFor(c.to, Block::kCell, cell)) {
      value.sent_s = state.now_s;
      BlockOn(rank, Block::kCell, cell);
      return false;
    }
    const double met_s = std::max(state.now_s, ranks_[static_cast<size_t>(c.to)].now_s);
    Deliver(cell, channel, met_s, action);
    return Await<kAccount>(rank, cell, channel, action);
  }
  const ActionSeconds measured = MeasuredOf(rank, action);
  if (transport_.kind == TransportKind::kCredits) {
    const int64_t room = c.sent - transport_.credits;  // the RECV of this number has to be over
    if (room >= c.taken) {
      BlockOn(rank, Block::kCredit, channel);
      return false;
    }
    state.now_s += measured.before_s;
    if (room >= 0) {
      IdleUntil<kAccount>(rank, c.taken_s[static_cast<size_t>(room % transport_.credits)],
                          WaitCause::kImbalance, channel, action);
    }
    ++c.sent;
  } else {
    state.now_s += measured.before_s;
  }
  if (measured_ != nullptr)
    Spend<kAccount>(rank, action, measured.own_s);
  Deliver(cell, channel, state.now_s, action);
  return true;
}

template <bool kAccount>
bool Engine::Receive(int rank, const Action& action) {
  const int channel = MessageChannel(action);
  Channel& c = channels_[static_cast<size_t>(channel)];
  const int64_t cell = MessageCell(action, channel);
  if (transport_.kind == TransportKind::kPosted) {
    if (channel >= chain_channels_)
      posted_[static_cast<size_t>(cell - CellOf(2 * stages_, 0, 0))] = 1;
    return true;
  }
  if (transport_.kind == TransportKind::kRendezvous) {
    const Cell& value = cells_[static_cast<size_t>(cell)];
    if (value.arrival_s < 0 && value.sent_s >= 0) {  // the SEND waits
      const double met_s = std::max(ranks_[static_cast<size_t>(rank)].now_s, value.sent_s);
      Deliver(cell, channel, met_s, action);
      Wake(c.from);
    }
  }
  if (measured_ != nullptr && cells_[static_cast<size_t>(cell)].arrival_s >= 0)
    ranks_[static_cast<size_t>(rank)].now_s += MeasuredOf(rank, action).before_s;
  if (!Await<kAccount>(rank, cell, channel, action))
    return false;
  if (transport_.kind == TransportKind::kCredits) {
    c.taken_s[static_cast<size_t>(c.taken % transport_.credits)] =
        ranks_[static_cast<size_t>(rank)].now_s;
    ++c.taken;
    if (WaitsFor(c.from, Block::kCredit, channel))
      Wake(c.from);
  }
  if (measured_ != nullptr)
    Spend<kAccount>(rank, action, MeasuredOf(rank, action).own_s);
  return true;
}

template <bool kAccount>
bool Engine::AtBarrier(int rank, const Action& action) {
  Rank& state = ranks_[static_cast<size_t>(rank)];
  if (barrier_count_ == 0)
    barrier_s_ = 0;
  if (state.now_s >= barrier_s_) {
    barrier_s_ = state.now_s;
    barrier_last_ = rank;
  }
  if (++barrier_count_ < static_cast<int>(ranks_.size())) {
    BlockOn(rank, Block::kBarrier, 0);
    return false;
  }
  barrier_count_ = 0;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    Rank& other = ranks_[r];
    if constexpr (kAccount) {
      if (other.now_s < barrier_s_) {
        (*totals_)[r].AddIdle(WaitCause::kBarrier, other.now_s, barrier_s_);
        if (record_ != nullptr) {
          (*record_)[r].waits.push_back(
              {action, RankId(barrier_last_), WaitCause::kBarrier, other.now_s, barrier_s_});
        }
      }
    }
    other.now_s = barrier_s_;
    if (static_cast<int>(r) != rank) {
      ++other.next;
      Wake(static_cast<int>(r));
    }
  }
  return true;
}

}  // namespace penstock::sim
