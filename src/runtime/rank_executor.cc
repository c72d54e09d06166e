#include "runtime/rank_executor.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>

namespace penstock::runtime {
namespace {

using comm::Lane;
using comm::LaneKind;
using comm::LaneOptions;
using schedule::Action;
using schedule::OpKind;

int64_t NowNs() {
  return comm::Clock::now().time_since_epoch().count();
}

LaneOptions PlanOptions(const PlanLimits& limits, int32_t groups) {
  return {MaxPlanBytes(limits), groups + 2};
}

LaneOptions ResultOptions(int64_t max_result_bytes, int32_t groups) {
  return {max_result_bytes, groups + 1};
}

LaneOptions ForwardOptions(const model::Graph& graph, std::span<const ValueId> values,
                           const RowLimits& limits) {
  return {BoundaryBytes(graph, values, limits), kForwardCredits};
}

// A wait with a little more patience the further its end is from a possible culprit: `place` of
// `ranks` + 2.
double Patience(double deadline_s, int32_t place, int32_t ranks) {
  const double most_s = std::min(2.0, deadline_s / 4);
  return deadline_s + most_s * place / (ranks + 2);
}

comm::MessageHeader BytesHeader(const Lane& lane, int64_t step, int32_t micro_batch, size_t bytes) {
  return {lane, {step, micro_batch}, DType::kU8, static_cast<int64_t>(bytes), 1, NowNs()};
}

}  // namespace

Lane PlanLane(int32_t target) {
  return {LaneKind::kPlan, 0, target, 0};
}

Lane ResultLane(int32_t last_rank) {
  return {LaneKind::kResult, last_rank, 0, 0};
}

Lane ForwardLane(int32_t boundary) {
  return {LaneKind::kForward, boundary, boundary + 1, boundary};
}

double ResultDeadline(double deadline_s, int32_t ranks) {
  return Patience(deadline_s, ranks, ranks);
}

double PlanDeadline(double deadline_s, int32_t ranks) {
  return Patience(deadline_s, ranks + 2, ranks);
}

int64_t PlannedMessageBytes(const model::Graph& graph, const StageSpec& stage, int32_t rank,
                            int32_t ranks, const PlanLimits& limits, int32_t groups,
                            int64_t max_result_bytes, bool across) {
  const LaneOptions plan = PlanOptions(limits, groups);
  const LaneOptions result = ResultOptions(max_result_bytes, groups);
  int64_t bytes = 0;
  if (rank == 0) {
    bytes += (ranks - 1) * comm::LaneBufferBytes(plan, false, across);
    bytes += ranks == 1 && across ? 0 : comm::LaneBufferBytes(result, true, across);
  } else {
    bytes += comm::LaneBufferBytes(plan, true, across);
    bytes +=
        comm::LaneBufferBytes(ForwardOptions(graph, stage.incoming, stage.limits), true, across);
  }
  if (rank == ranks - 1 && rank > 0) {
    bytes += comm::LaneBufferBytes(result, false, across);
  }
  if (rank + 1 < ranks) {
    bytes +=
        comm::LaneBufferBytes(ForwardOptions(graph, stage.outgoing, stage.limits), false, across);
  }
  return bytes;
}

RankExecutor::RankExecutor(const ExecutorSpec& spec, comm::Channel& channel, HeadSink* head,
                           trace::RankRecorder& recorder)
    : spec_(spec), channel_(channel), head_(head), recorder_(recorder) {}

Result<std::unique_ptr<RankExecutor>> RankExecutor::Create(const ExecutorSpec& spec,
                                                           const schedule::Schedule& schedule,
                                                           comm::Channel& channel, HeadSink* head,
                                                           trace::RankRecorder& recorder) {
  std::unique_ptr<RankExecutor> executor(new RankExecutor(spec, channel, head, recorder));
  executor->program_.resize(static_cast<size_t>(spec.groups));
  int32_t last = -1;
  for (const Action& action : schedule.ranks[static_cast<size_t>(spec.stage_index)]) {
    if (action.kind == OpKind::kIdle) {
      continue;
    }
    const int32_t m = action.micro_batch.value();
    if (m < last || m >= spec.groups) {
      return MakeError(ErrorCode::kInvalidSchedule,
                       "[runtime.executor] rank {}: action {} stands after work of micro-batch {}; "
                       "serving runs a lap micro-batch by micro-batch",
                       spec.stage_index, schedule::ActionText(action), last);
    }
    last = m;
    executor->program_[static_cast<size_t>(m)].push_back(action);
  }
  return executor;
}

Result<> RankExecutor::Open(MemoryAccount& account, int64_t max_result_bytes) {
  const int32_t rank = spec_.stage_index;
  const int32_t ranks = channel_.size();
  const LaneOptions plan = PlanOptions(spec_.plan_limits, spec_.groups);
  if (rank == 0) {
    for (int32_t other = 1; other < ranks; ++other) {
      PENSTOCK_TRY(channel_.Open(PlanLane(other), plan, account));
    }
  } else {
    PENSTOCK_TRY(channel_.Open(PlanLane(rank), plan, account));
    PENSTOCK_TRY(channel_.Open(
        ForwardLane(rank - 1),
        ForwardOptions(*spec_.graph, spec_.stage.incoming, spec_.stage.limits), account));
  }
  if (rank + 1 < ranks) {
    PENSTOCK_TRY(channel_.Open(
        ForwardLane(rank), ForwardOptions(*spec_.graph, spec_.stage.outgoing, spec_.stage.limits),
        account));
  }
  if (rank == 0 || rank == ranks - 1) {
    PENSTOCK_TRY(channel_.Open(ResultLane(ranks - 1), ResultOptions(max_result_bytes, spec_.groups),
                               account));
  }
  return {};
}

Result<> RankExecutor::Announce(const StepPlan& plan) {
  if (channel_.size() == 1) {
    return {};
  }
  const std::vector<std::byte> bytes = EncodePlan(plan);
  const std::span<const std::byte> part = bytes;
  const double start_s = recorder_.Now();
  for (int32_t other = 1; other < channel_.size(); ++other) {
    PENSTOCK_TRY(
        channel_.Send(BytesHeader(PlanLane(other), plan.step, plan.micro_batch, bytes.size()),
                      std::span(&part, 1), spec_.deadline_s));
  }
  recorder_.RecordWait(trace::WaitCause::kCommunication, Action(), RankId(), start_s,
                       recorder_.Now());
  return {};
}

Result<> RankExecutor::Serve() {
  while (true) {
    const double start_s = recorder_.Now();
    auto received = channel_.ReceiveNext(PlanLane(spec_.stage_index),
                                         PlanDeadline(spec_.deadline_s, channel_.size()));
    if (!received.ok()) {
      return Named(received.error(), "the next step plan");
    }
    const comm::Message message = std::move(received).value();
    PENSTOCK_TRY_ASSIGN(const StepPlan plan, DecodePlan(message.payload(), spec_.plan_limits));
    if (plan.kind == PlanKind::kStop) {
      return {};
    }
    if (plan.kind == PlanKind::kWork) {
      // The plan is told before stage 0 starts on it.
      const double taken_s = recorder_.Now();
      const double sent_s =
          taken_s - static_cast<double>(NowNs() - message.header().sent_ns) * 1e-9;
      recorder_.RecordMessageWait(
          schedule::MakeAction(OpKind::kForward, StageId(0), MicroBatchId(plan.micro_batch)),
          RankId(0), start_s, taken_s, sent_s);
      PENSTOCK_TRY(Run(plan));
    }
  }
}

Result<> RankExecutor::Run(const StepPlan& plan) {
  if (plan.micro_batch < 0 || plan.micro_batch >= spec_.groups) {
    return MakeError(ErrorCode::kInternal, "[runtime.executor] step {} names micro-batch {} of {}",
                     plan.step, plan.micro_batch, spec_.groups);
  }
  for (const Action& action : program_[static_cast<size_t>(plan.micro_batch)]) {
    PENSTOCK_TRY(InjectFault(action, plan));
    Operation operation = nullptr;
    switch (action.kind) {
      case OpKind::kRecvForward:
        operation = &RankExecutor::Receive;
        break;
      case OpKind::kForward:
        operation = &RankExecutor::Compute;
        break;
      case OpKind::kSendForward:
        operation = &RankExecutor::Send;
        break;
      default:
        return MakeError(ErrorCode::kUnsupported,
                         "[runtime.executor] {}: serving has no such action",
                         schedule::ActionText(action));
    }
    if (const Result<> result = (this->*operation)(action, plan); !result.ok()) {
      return Named(result.error(),
                   fmt::format("action {} of step {}", schedule::ActionText(action), plan.step));
    }
  }
  return {};
}

Error RankExecutor::Named(const Error& error, const std::string& what) const {
  if (error.code == ErrorCode::kPeerLost && !channel_.across_processes()) {
    return error;  // the words of the rank that failed
  }
  return Error{error.code, fmt::format("rank {} (stage {}), {}: {}", spec_.stage_index,
                                       spec_.stage_index, what, error.message)};
}

comm::MessageHeader RankExecutor::HeaderFor(int32_t boundary, std::span<const Tensor> values,
                                            const StepPlan& plan) const {
  int64_t elements = 0;
  bool same_rows = true;
  for (const Tensor& value : values) {
    elements += value.rows() * value.columns();
    same_rows = same_rows && value.rows() == plan.rows();
  }
  const int64_t rows = same_rows ? plan.rows() : elements;
  return {ForwardLane(boundary),
          {plan.step, plan.micro_batch},
          DType::kF32,
          rows,
          rows == 0 ? 0 : elements / rows,
          NowNs()};
}

Result<> RankExecutor::Receive(const Action& action, const StepPlan& plan) {
  const int32_t boundary = spec_.stage_index - 1;
  const double start_s = recorder_.Now();
  PENSTOCK_TRY_ASSIGN(const comm::Message message,
                      channel_.Receive(ForwardLane(boundary), {plan.step, plan.micro_batch},
                                       Patience(spec_.deadline_s, boundary, channel_.size())));
  const double taken_s = recorder_.Now();
  const std::vector<Tensor> values = stage_->Incoming(plan);
  const comm::MessageHeader wanted = HeaderFor(boundary, values, plan);
  if (message.header().type != wanted.type || message.header().rows != wanted.rows ||
      message.header().columns != wanted.columns) {
    return MakeError(ErrorCode::kInternal,
                     "[runtime.executor] got a message of {} x {}, wanted {} x {}",
                     message.header().rows, message.header().columns, wanted.rows, wanted.columns);
  }
  size_t offset = 0;
  for (const Tensor& value : values) {
    const std::span<std::byte> to = value.Bytes();
    std::memcpy(to.data(), message.payload().data() + offset, to.size());
    offset += to.size();
  }
  const double end_s = recorder_.Now();
  const Action send =
      schedule::MakeAction(OpKind::kSendForward, StageId(boundary), action.micro_batch);
  const double sent_s = end_s - static_cast<double>(NowNs() - message.header().sent_ns) * 1e-9;
  recorder_.RecordMessageWait(send, RankId(boundary), start_s, taken_s, sent_s);
  recorder_.Record(action, static_cast<int>(plan.step), taken_s, end_s,
                   static_cast<int>(plan.rows()), static_cast<int64_t>(offset));
  recorder_.RecordMessage(send, RankId(boundary), static_cast<int>(plan.step), sent_s,
                          std::min(taken_s, recorder_.At(message.arrived())),
                          static_cast<int64_t>(offset));
  return {};
}

Result<> RankExecutor::Compute(const Action& action, const StepPlan& plan) {
  const double start_s = recorder_.Now();
  PENSTOCK_TRY(stage_->Forward(plan));
  result_.clear();
  if (head_ != nullptr && plan.selected() > 0) {
    PENSTOCK_TRY_ASSIGN(result_, head_->Consume(plan, stage_->ValueOf(spec_.graph->logits, plan)));
  }
  recorder_.Record(action, static_cast<int>(plan.step), start_s, recorder_.Now(),
                   static_cast<int>(plan.rows()));
  if (head_ != nullptr && plan.selected() > 0) {
    const double sent_s = recorder_.Now();
    PENSTOCK_TRY(SendResult(plan));
    recorder_.RecordWait(trace::WaitCause::kCommunication, action, RankId(0), sent_s,
                         recorder_.Now());
  }
  return {};
}

Result<> RankExecutor::SendResult(const StepPlan& plan) {
  const std::span<const std::byte> part = result_;
  return channel_.Send(
      BytesHeader(ResultLane(spec_.stage_index), plan.step, plan.micro_batch, result_.size()),
      std::span(&part, 1), spec_.deadline_s);
}

Result<> RankExecutor::Send(const Action& action, const StepPlan& plan) {
  const std::vector<Tensor> values = stage_->Outgoing(plan);
  std::vector<std::span<const std::byte>> parts;
  int64_t bytes = 0;
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
  const double start_s = recorder_.Now();
  const double deadline_s =
      Patience(spec_.deadline_s, channel_.size() - 2 - spec_.stage_index, channel_.size());
  PENSTOCK_TRY(channel_.Send(HeaderFor(spec_.stage_index, values, plan), parts, deadline_s));
  recorder_.Record(action, static_cast<int>(plan.step), start_s, recorder_.Now(),
                   static_cast<int>(plan.rows()), bytes);
  return {};
}

Result<> RankExecutor::InjectFault(const Action& action, const StepPlan& plan) {
  if (!spec_.fault || spec_.fault->stage != spec_.stage_index ||
      spec_.fault->action != action.kind || spec_.fault->step != plan.step) {
    return {};
  }
  const std::string where =
      fmt::format("rank {} (stage {}), action {} of step {}", spec_.stage_index, spec_.stage_index,
                  schedule::ActionText(action), plan.step);
  switch (spec_.fault->kind) {
    case Fault::Kind::kFail:
      return MakeError(ErrorCode::kInternal, "[runtime.fault] {}: a declared fault", where);
    case Fault::Kind::kDie:
      if (channel_.across_processes()) {
        std::raise(SIGKILL);
      }
      break;
    case Fault::Kind::kStall:
      break;
  }
  // A thread that stalls or ends without a word: it is silent until the others have noticed. Alone
  // nobody could.
  const comm::Clock::time_point start = comm::Clock::now();
  const auto alone = [&] {
    return channel_.size() == 1 &&
           comm::Clock::now() - start > std::chrono::duration<double>(spec_.deadline_s);
  };
  while (!channel_.failed() && !alone()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return MakeError(ErrorCode::kPeerLost, "[runtime.fault] {}: stopped by a declared fault", where);
}

}  // namespace penstock::runtime
