// The executor's messages, faults and errors.

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>

#include "runtime/fault.h"
#include "runtime/train_executor.h"

namespace penstock::runtime {

using schedule::Action;
using schedule::OpKind;

namespace {

int64_t NowNs() {
  return comm::Clock::now().time_since_epoch().count();
}

}  // namespace

comm::Lane TrainExecutor::LaneOf(const TrainLink& link) const {
  comm::Lane lane = link.lane;
  lane.source += m_.first_channel;
  lane.target += m_.first_channel;
  return lane;
}

comm::MessageHeader TrainExecutor::HeaderFor(const TrainLink& link, TrainUnit& unit) const {
  int64_t elements = 0;
  bool same_rows = true;
  for (const ValueId id : link.values) {
    elements += unit.RowsOf(id) * unit.plan().width(id);
    same_rows = same_rows && unit.RowsOf(id) == unit.sizes().rows;
  }
  const int64_t rows = same_rows ? unit.sizes().rows : 1;
  return {LaneOf(link), {step(), unit.index()},          DType::kF32,
          rows,         rows == 0 ? 0 : elements / rows, NowNs()};
}

std::vector<Tensor> TrainExecutor::ValuesToSend(const TrainLink& link, TrainUnit& unit,
                                                bool forward) {
  std::vector<Tensor> values;
  for (const ValueId id : link.values) {
    values.push_back(forward ? unit.Value(id) : unit.Gradient(id));
  }
  return values;
}

Result<int64_t> TrainExecutor::Send(const Action& action) {
  const TrainLink& link = m_.links->Find(program_.schedule(), action);
  TrainUnit& unit = UnitOf(action);
  const bool forward = action.kind == OpKind::kSendForward;
  for (const ValueId id : link.values) {
    // Nobody behind the boundary read it in a way that gives a gradient.
    if (!forward && !unit.HasGradient(id)) {
      PENSTOCK_TRY_ASSIGN(const Tensor none, unit.MakeGradient(*m_.runner.pool, id));
      if (!dry()) {
        m_.runner.device->Fill(none, 0.0F);
      }
    }
  }
  int64_t bytes = 0;
  if (!dry()) {
    const std::vector<Tensor> values = ValuesToSend(link, unit, forward);
    std::vector<std::span<const std::byte>> parts;
    for (const Tensor& value : values) {
      bytes += value.bytes();
      if (value.contiguous()) {
        parts.emplace_back(value.Bytes());
        continue;
      }
      for (int64_t row = 0; row < value.rows(); ++row) {
        parts.emplace_back(value.Rows(row, 1).Bytes());
      }
    }
    PENSTOCK_TRY(m_.channel->Send(HeaderFor(link, unit), parts, m_.spec->deadline_s));
  }
  for (const ValueId id : link.values) {
    if (forward) {
      unit.Read(id);
    } else {
      unit.DropGradient(id);
    }
  }
  return bytes;
}

Result<int64_t> TrainExecutor::Receive(const Action& action) {
  const TrainLink& link = m_.links->Find(program_.schedule(), action);
  TrainUnit& unit = UnitOf(action);
  if (!dry()) {
    return TakeMessage(action, link, unit);
  }
  for (const ValueId id : link.values) {
    if (action.kind == OpKind::kRecvForward) {
      PENSTOCK_TRY(unit.DefineReceived(*m_.runner.pool, id));
    } else {
      PENSTOCK_TRY(unit.MakeGradient(*m_.runner.pool, id));
    }
  }
  return 0;
}

Result<int64_t> TrainExecutor::TakeMessage(const Action& action, const TrainLink& link,
                                           TrainUnit& unit) {
  const bool forward = action.kind == OpKind::kRecvForward;
  const double start_s = m_.recorder->Now();
  const comm::Lane lane = LaneOf(link);
  PENSTOCK_TRY_ASSIGN(const comm::Message message,
                      m_.channel->Receive(lane, {step(), unit.index()}, m_.spec->deadline_s));
  const double taken_s = m_.recorder->Now();
  const comm::MessageHeader wanted = HeaderFor(link, unit);
  if (message.header().type != wanted.type || message.header().rows != wanted.rows ||
      message.header().columns != wanted.columns) {
    return MakeError(ErrorCode::kInternal,
                     "[runtime.train] got a message of {} x {}, wanted {} x {}",
                     message.header().rows, message.header().columns, wanted.rows, wanted.columns);
  }
  const std::byte* from = message.payload().data();
  for (const ValueId id : link.values) {
    Tensor to;
    if (forward) {
      PENSTOCK_TRY(unit.DefineReceived(*m_.runner.pool, id));
      to = unit.Has(id) ? unit.Value(id) : Tensor();
    } else {
      PENSTOCK_TRY_ASSIGN(to, unit.MakeGradient(*m_.runner.pool, id));
    }
    const auto row_bytes = static_cast<size_t>(unit.plan().width(id)) * 4;
    for (int64_t row = 0; row < unit.RowsOf(id); ++row, from += row_bytes) {
      if (!to.empty()) {
        std::memcpy(to.Row<float>(row).data(), from, row_bytes);
      }
    }
  }
  const double end_s = m_.recorder->Now();
  const int64_t bytes = message.header().payload_bytes();
  Action send = action;
  send.kind = forward ? OpKind::kSendForward : OpKind::kSendBackward;
  send.stage = schedule::PeerStage(action);
  if (action.peer_stage >= 0) {
    send.peer_stage = static_cast<int16_t>(action.stage.value());
  }
  const RankId source(link.lane.source);
  const double sent_s = end_s - static_cast<double>(NowNs() - message.header().sent_ns) * 1e-9;
  m_.recorder->RecordMessageWait(send, source, start_s, taken_s, sent_s);
  m_.recorder->Record(action, static_cast<int>(step()), taken_s, end_s,
                      static_cast<int>(unit.sizes().rows), bytes);
  m_.recorder->RecordMessage(send, source, static_cast<int>(step()), sent_s, taken_s, bytes);
  return bytes;
}

double TrainExecutor::RecordSendWait(const Action& send, double start_s, double waited_s) {
  if (waited_s <= 0) {
    return 0;
  }
  Action taking = send;
  taking.kind = send.kind == OpKind::kSendForward ? OpKind::kRecvForward : OpKind::kRecvBackward;
  taking.stage = schedule::PeerStage(send);
  if (send.peer_stage >= 0) {
    taking.peer_stage = static_cast<int16_t>(send.stage.value());
  }
  const RankId target(m_.links->Find(program_.schedule(), send).lane.target);
  m_.recorder->RecordWait(trace::WaitCause::kImbalance, taking, target, start_s,
                          start_s + waited_s);
  return waited_s;
}

Error TrainExecutor::Named(const Error& error, const Action& action) const {
  if (error.code == ErrorCode::kPeerLost && !m_.channel->across_processes()) {
    return error;  // the words of the rank that failed
  }
  return Error{
      error.code,
      fmt::format("rank {}, action {} of step {}: {}", m_.rank + m_.first_channel,
                  schedule::ActionText(action, program_.schedule().edges), step(), error.message)};
}

// The first action of that kind and stage in the step.
Result<> TrainExecutor::InjectFault(const Action& action) {
  const std::optional<Fault>& fault = m_.spec->fault;
  if (!fault || fault_done_ || program_.schedule().forward_only ||
      fault->stage != action.stage.value() || fault->action != action.kind ||
      fault->step != step()) {
    return {};
  }
  fault_done_ = true;
  const std::string where = schedule::ActionText(action, program_.schedule().edges);
  if (fault->kind == Fault::Kind::kFail) {
    return MakeError(ErrorCode::kInternal, "[runtime.fault] {}: a declared fault", where);
  }
  if (fault->kind == Fault::Kind::kDie && m_.channel->across_processes()) {
    std::raise(SIGKILL);
  }
  // Silent until the others have noticed. Alone nobody could.
  const comm::Clock::time_point start = comm::Clock::now();
  const auto alone = [&] {
    return m_.channel->size() == 1 &&
           comm::Clock::now() - start > std::chrono::duration<double>(m_.spec->deadline_s);
  };
  while (!m_.channel->failed() && !alone()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return MakeError(ErrorCode::kPeerLost, "[runtime.fault] {}: stopped by a declared fault", where);
}

}  // namespace penstock::runtime
