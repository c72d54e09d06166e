// What Engine works out once per schedule: checks, durations, channels.

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "sim/engine.h"

namespace penstock::sim {

using schedule::Action;
using schedule::Edge;
using schedule::EdgeKind;
using schedule::OpKind;
using schedule::TransportKind;

namespace {

// More credits than this are no limit.
constexpr int kMostCredits = 1 << 16;
constexpr int64_t kMostCells = int64_t{1} << 27;

bool IsWaitSend(OpKind kind) {
  return kind == OpKind::kWaitSendForward || kind == OpKind::kWaitSendBackward;
}

bool IsBackwardMessage(OpKind kind) {
  return kind == OpKind::kSendBackward || kind == OpKind::kRecvBackward ||
         kind == OpKind::kWaitSendBackward;
}

// The stage at the other end of a SEND, RECV or WAIT_SEND.
int OtherStage(const Action& action) {
  if (action.peer_stage >= 0)
    return action.peer_stage;
  const bool later = action.kind == OpKind::kSendForward || action.kind == OpKind::kRecvBackward ||
                     action.kind == OpKind::kWaitSendForward;
  return action.stage.value() + (later ? 1 : -1);
}

}  // namespace

Engine::Engine(const schedule::Schedule& schedule, const cost::CostModel& costs,
               const schedule::Transport& transport)
    : schedule_(&schedule),
      costs_(&costs),
      transport_(transport),
      free_flow_(!schedule.lowered),
      stages_(schedule.num_stages()),
      micro_batches_(schedule.total_micro_batches()),
      slices_(schedule.slices) {}

Result<Engine> Engine::Make(const schedule::Schedule& schedule, const cost::CostModel& costs,
                            const schedule::Transport& transport) {
  if (schedule.micro_batches < 1 || schedule.steps < 1 || schedule.slices < 1 ||
      schedule.ranks.size() != static_cast<size_t>(schedule.num_ranks())) {
    return MakeError(ErrorCode::kInvalidSchedule,
                     "[sim.engine] {} micro-batches, {} steps, {} slices, programs of {} ranks, "
                     "wanted at least 1 each and programs of {}",
                     schedule.micro_batches, schedule.steps, schedule.slices, schedule.ranks.size(),
                     schedule.num_ranks());
  }
  const int64_t triples = static_cast<int64_t>(schedule.num_stages()) *
                          schedule.total_micro_batches() * std::min(schedule.slices, 65536);
  if (triples > schedule.CountActions() || schedule.slices > 65536) {
    return MakeError(ErrorCode::kInvalidSchedule,
                     "[sim.engine] {} actions, wanted at least one F for each of {} stages, {} "
                     "micro-batches and {} slices",
                     schedule.CountActions(), schedule.num_stages(), schedule.total_micro_batches(),
                     schedule.slices);
  }
  PENSTOCK_TRY(cost::CheckCosts(costs, schedule));
  Engine engine(schedule, costs, transport);
  if (engine.transport_.credits > kMostCredits)
    engine.transport_.kind = TransportKind::kBuffered;
  const int directions = schedule.placement.num_directions();
  for (int d = 0; d < directions; ++d) {
    for (int s = 0; s < engine.stages_; ++s)
      engine.rank_of_.push_back(schedule.placement.RankOf(StageId(s), d).value());
  }
  if (directions > 1) {
    for (int64_t j = 0; j < engine.micro_batches_; ++j) {
      engine.directions_.push_back(
          static_cast<uint8_t>(schedule.DirectionOf(MicroBatchId(static_cast<int32_t>(j)))));
    }
  }
  for (size_t r = 0; r < schedule.ranks.size(); ++r) {
    for (size_t i = 0; i < schedule.ranks[r].size(); ++i)
      PENSTOCK_TRY(engine.CheckAction(static_cast<int>(r), i, schedule.ranks[r][i]));
  }
  engine.MakeDurations();
  engine.MakeChainChannels();
  engine.long_into_.resize(static_cast<size_t>(engine.stages_));
  engine.long_from_.resize(static_cast<size_t>(engine.stages_));
  if (engine.free_flow_) {
    engine.AddFreeFlowEdges();
  } else {
    PENSTOCK_TRY(engine.AddMessageChannels());
  }
  const int64_t slots = engine.LongSlot(static_cast<int>(engine.channels_.size()));
  if (slots > kMostCells / engine.micro_batches_ / engine.slices_) {
    return MakeError(
        ErrorCode::kUnsupported,
        "[sim.engine] {} values of {} micro-batches in {} slices, wanted at most {} in "
        "all",
        slots, engine.micro_batches_, engine.slices_, kMostCells);
  }
  engine.cells_.resize(static_cast<size_t>(slots * engine.micro_batches_ * engine.slices_));
  engine.posted_.resize(engine.cells_.size() -
                        static_cast<size_t>(engine.CellOf(2 * engine.stages_, 0, 0)));
  engine.ranks_.resize(schedule.ranks.size());
  if (schedule.ring) {
    engine.ring_.assign(static_cast<size_t>(schedule.micro_batches * schedule.slices), Cell{0, 0});
  }
  return engine;
}

Result<> Engine::UseSeconds(const std::vector<std::vector<ActionSeconds>>* seconds) {
  measured_ = seconds;
  bool fits = seconds == nullptr || seconds->size() == schedule_->ranks.size();
  for (size_t r = 0; fits && seconds != nullptr && r < seconds->size(); ++r)
    fits = (*seconds)[r].size() == schedule_->ranks[r].size();
  if (!fits) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[sim.engine] seconds of other actions than {} has, wanted one of each",
                     schedule_->name);
  }
  return {};
}

Result<> Engine::CheckAction(int rank, size_t position, const Action& action) const {
  if (action.kind == OpKind::kIdle || action.kind == OpKind::kBarrier)
    return {};
  const bool has_micro_batch = schedule::IsCompute(action.kind) ||
                               schedule::IsMessage(action.kind) || IsWaitSend(action.kind);
  bool good = action.stage.valid() && action.stage.value() < stages_;
  if (has_micro_batch) {
    good = good && action.micro_batch.valid() && action.micro_batch.value() < micro_batches_ &&
           action.slice < slices_;
  }
  if (schedule::IsMessage(action.kind) || IsWaitSend(action.kind)) {
    const int other = OtherStage(action);
    good = good && other >= 0 && other < stages_;
    if (free_flow_ && schedule::IsMessage(action.kind)) {
      return MakeError(ErrorCode::kInvalidSchedule,
                       "[sim.engine] rank {}, position {}: {} in a compute-only schedule, wanted "
                       "a lowered one",
                       rank, position, schedule::ActionText(action, schedule_->edges));
    }
  }
  if (good && schedule::IsCompute(action.kind))
    good = RankOf(action.stage.value(), DirectionOf(action)) == rank;
  if (good)
    return {};
  return MakeError(ErrorCode::kInvalidSchedule,
                   "[sim.engine] rank {}, position {}: {}, wanted a stage of this rank below {}, a "
                   "micro-batch below {} and a slice below {}",
                   rank, position, schedule::ActionText(action, schedule_->edges), stages_,
                   micro_batches_, slices_);
}

void Engine::MakeDurations() {
  seconds_.resize(static_cast<size_t>(schedule::kOpKindCount * stages_));
  for (int k = 0; k < schedule::kOpKindCount; ++k) {
    for (int s = 0; s < stages_; ++s) {
      seconds_[static_cast<size_t>(k * stages_ + s)] =
          costs_->StageSeconds(static_cast<OpKind>(k), StageId(s));
    }
  }
  if (slices_ == 1 && costs_->micro_batch_scale.empty())
    return;
  scale_.reserve(static_cast<size_t>(micro_batches_ * slices_));
  for (int64_t j = 0; j < micro_batches_; ++j) {
    const double scale =
        costs_->micro_batch_scale.empty()
            ? 1.0
            : costs_->micro_batch_scale[static_cast<size_t>(j % schedule_->micro_batches)];
    for (int k = 0; k < slices_; ++k) {
      scale_.push_back(scale * (costs_->slice_scale.empty()
                                    ? 1.0 / slices_
                                    : costs_->slice_scale[static_cast<size_t>(k)]));
    }
  }
}

void Engine::SetLink(Channel& channel) {
  if (channel.from == channel.to)
    return;
  const cost::LinkCost& link = costs_->Link(RankId(channel.from), RankId(channel.to));
  channel.latency_s = link.latency_s;
  channel.transfer_s = link.TransferSeconds(channel.bytes);
  if (link.occupied && channel.transfer_s > 0) {
    const auto [it, added] =
        link_ids_.try_emplace({channel.from, channel.to}, static_cast<int32_t>(link_ids_.size()));
    channel.link = it->second;
    if (added)
      link_free_s_.push_back(0);
  }
}

void Engine::MakeChainChannels() {
  const int directions = schedule_->placement.num_directions();
  chain_channels_ = directions * 2 * stages_;
  channels_.resize(static_cast<size_t>(chain_channels_));
  for (int d = 0; d < directions; ++d) {
    for (int s = 0; s < stages_; ++s) {
      // Forward into s; into stage 0 only around the ring.
      if (s > 0 || schedule_->ring) {
        const int from = s > 0 ? s - 1 : stages_ - 1;
        Channel& forward = channels_[static_cast<size_t>(ChainChannel(false, s, d))];
        forward.from = RankOf(from, d);
        forward.to = RankOf(s, d);
        forward.bytes = costs_->stages[static_cast<size_t>(from)].output_bytes / slices_;
        forward.awaited = schedule::MakeAction(OpKind::kForward, StageId(from), MicroBatchId());
        SetLink(forward);
      }
      if (s + 1 < stages_) {
        Channel& backward = channels_[static_cast<size_t>(ChainChannel(true, s, d))];
        backward.from = RankOf(s + 1, d);
        backward.to = RankOf(s, d);
        backward.bytes = (costs_->stages[static_cast<size_t>(s + 1)].gradient_bytes +
                          schedule::LongGradientBytes(*schedule_, StageId(s))) /
                         slices_;
        backward.awaited =
            schedule::MakeAction(OpKind::kBackwardInput, StageId(s + 1), MicroBatchId());
        SetLink(backward);
      }
    }
  }
}

uint64_t Engine::MessageKey(bool backward, int value, int from, int to, int direction) {
  uint64_t key = static_cast<uint64_t>(value);
  key = key << 15 | static_cast<uint64_t>(from);
  key = key << 15 | static_cast<uint64_t>(to);
  return key << 2 | static_cast<uint64_t>(direction) << 1 | static_cast<uint64_t>(backward);
}

int32_t Engine::AddLongChannel(uint64_t key, int from, int to, int direction, int64_t bytes) {
  const auto [it, added] = long_channels_.try_emplace(key, static_cast<int32_t>(channels_.size()));
  if (added) {
    Channel channel;
    channel.from = RankOf(from, direction);
    channel.to = RankOf(to, direction);
    channel.direction = direction;
    channel.bytes = bytes / slices_;
    channel.awaited = schedule::MakeAction(OpKind::kForward, StageId(from), MicroBatchId());
    SetLink(channel);
    channels_.push_back(channel);
  }
  return it->second;
}

void Engine::AddFreeFlowEdges() {
  for (size_t e = 0; e < schedule_->edges.size(); ++e) {
    const Edge& edge = schedule_->edges[e];
    if (edge.kind != EdgeKind::kValue || edge.from.value() < 0)
      continue;
    const int from = edge.from.value();
    for (int d = 0; d < schedule_->placement.num_directions(); ++d) {
      // Once to each other rank, for the first of its stages that reads it: further ones follow by
      // the chain and find it there. On its own rank the chain orders the two already.
      std::map<int, int> first_reader;
      for (const StageId to : edge.to) {
        if (to.value() <= from || to.value() >= stages_ || RankOf(from, d) == RankOf(to.value(), d))
          continue;
        const auto [it, added] = first_reader.try_emplace(RankOf(to.value(), d), to.value());
        if (!added)
          it->second = std::min(it->second, to.value());
      }
      for (const auto& [rank, to] : first_reader) {
        const int32_t channel = AddLongChannel(
            MessageKey(false, static_cast<int>(e) + 1, from, to, d), from, to, d, edge.bytes);
        long_into_[static_cast<size_t>(to)].push_back(channel);
        long_from_[static_cast<size_t>(from)].push_back(channel);
      }
    }
  }
}

Result<> Engine::AddMessageChannels() {
  for (const auto& program : schedule_->ranks) {
    for (const Action& action : program) {
      if (!schedule::IsMessage(action.kind))
        continue;
      const bool receives = schedule::IsRecv(action.kind);
      const bool backward = IsBackwardMessage(action.kind);
      const int other = OtherStage(action);
      const int from = receives ? other : action.stage.value();
      const int to = receives ? action.stage.value() : other;
      const int direction = DirectionOf(action);
      int32_t channel = 0;
      if (action.value == 0 && to == from + (backward ? -1 : 1)) {
        channel = ChainChannel(backward, to, direction);
      } else {
        int64_t bytes = 0;
        if (action.value > 0 && action.value <= schedule_->edges.size())
          bytes = schedule_->edges[action.value - 1U].bytes;
        const size_t before = channels_.size();
        channel = AddLongChannel(MessageKey(backward, action.value, from, to, direction), from, to,
                                 direction, bytes);
        if (channels_.size() > before && !backward)
          long_into_[static_cast<size_t>(to)].push_back(channel);
      }
      Channel& c = channels_[static_cast<size_t>(channel)];
      if (!c.used) {
        c.used = true;
        c.awaited = action;
        c.awaited.kind = backward ? OpKind::kSendBackward : OpKind::kSendForward;
        c.awaited.stage = StageId(from);
        c.awaited.peer_stage =
            static_cast<int16_t>(action.value == 0 && to == from + (backward ? -1 : 1) ? -1 : to);
        if (transport_.kind == TransportKind::kCredits)
          c.taken_s.assign(static_cast<size_t>(transport_.credits), 0.0);
      }
    }
  }
  return {};
}

int Engine::MessageChannel(const Action& action) const {
  const bool receives = schedule::IsRecv(action.kind);
  const bool backward = IsBackwardMessage(action.kind);
  const int other = OtherStage(action);
  const int from = receives ? other : action.stage.value();
  const int to = receives ? action.stage.value() : other;
  const int direction = DirectionOf(action);
  if (action.value == 0 && to == from + (backward ? -1 : 1))
    return ChainChannel(backward, to, direction);
  const auto it = long_channels_.find(MessageKey(backward, action.value, from, to, direction));
  return it == long_channels_.end() ? -1 : it->second;
}

int64_t Engine::MessageCell(const Action& action, int channel) const {
  int64_t slot = 0;
  if (channel < chain_channels_) {
    slot = channel % (2 * stages_);
  } else {
    slot = LongSlot(channel);
  }
  return CellOf(slot, action.micro_batch.value(), action.slice);
}

}  // namespace penstock::sim
