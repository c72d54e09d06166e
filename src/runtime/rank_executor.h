// Rank executor: runs a proven forward schedule on one rank, step plan by step plan, action by
// action.
//
// A lap of the schedule has one micro-batch per group; a step plan says which micro-batch it is,
// and the executor runs that micro-batch's actions of its rank's list, in their order. Each action
// is looked up in a table of operations (RECV_F, F, SEND_F). What ran is recorded under the
// action's name; what was waited for as well.

#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "comm/channel.h"
#include "runtime/fault.h"
#include "runtime/head_sink.h"
#include "runtime/stage.h"
#include "runtime/step_plan.h"
#include "schedule/schedule.h"
#include "trace/timeline.h"

namespace penstock::runtime {

struct ExecutorSpec {
  const model::Graph* graph = nullptr;
  StageSpec stage;
  int32_t stage_index = 0;  // equals the rank
  PlanLimits plan_limits;
  int32_t groups = 1;  // micro-batches of a lap
  double deadline_s = 30;
  std::optional<Fault> fault;
};

// Lanes that carry plans and results; their sizes follow from the limits.
comm::Lane PlanLane(int32_t target);
comm::Lane ResultLane(int32_t last_rank);
comm::Lane ForwardLane(int32_t boundary);

// How long rank 0 waits for a result, and another rank for its next plan: a little longer than any
// stage waits for its neighbour, so that whoever waits for the culprit itself is the first to
// speak.
double ResultDeadline(double deadline_s, int32_t ranks);
double PlanDeadline(double deadline_s, int32_t ranks);

// Credits of the forward lanes, with which the schedule is proven.
inline constexpr int32_t kForwardCredits = 2;

// Message bytes that a rank holds, from the same figures that Open uses.
int64_t PlannedMessageBytes(const model::Graph& graph, const StageSpec& stage, int32_t rank,
                            int32_t ranks, const PlanLimits& limits, int32_t groups,
                            int64_t max_result_bytes, bool across_processes);

// Not thread-safe; everything that it is given must outlive it.
class RankExecutor {
 public:
  // `schedule` is lowered and proven, with one stage per rank. `head` is for the last rank only,
  // else null. Errors: kInvalidSchedule (micro-batches of a rank's list are interleaved).
  static Result<std::unique_ptr<RankExecutor>> Create(const ExecutorSpec& spec,
                                                      const schedule::Schedule& schedule,
                                                      comm::Channel& channel, HeadSink* head,
                                                      trace::RankRecorder& recorder);

  // Opens this rank's lanes. `max_result_bytes` is the sink's bound (all ranks pass the same).
  Result<> Open(MemoryAccount& account, int64_t max_result_bytes);

  void SetStage(Stage& stage) { stage_ = &stage; }

  // Runs the plan's actions. On the last rank the result is sent to rank 0 (also when that is
  // itself).
  Result<> Run(const StepPlan& plan);

  // Rank 0: sends a plan to every other rank.
  Result<> Announce(const StepPlan& plan);

  // Other ranks: takes plans and runs them until a stop.
  Result<> Serve();

 private:
  using Operation = Result<> (RankExecutor::*)(const schedule::Action& action,
                                               const StepPlan& plan);

  RankExecutor(const ExecutorSpec& spec, comm::Channel& channel, HeadSink* head,
               trace::RankRecorder& recorder);

  Result<> Receive(const schedule::Action& action, const StepPlan& plan);
  Result<> Compute(const schedule::Action& action, const StepPlan& plan);
  Result<> Send(const schedule::Action& action, const StepPlan& plan);
  Result<> InjectFault(const schedule::Action& action, const StepPlan& plan);
  Result<> SendResult(const StepPlan& plan);
  comm::MessageHeader HeaderFor(int32_t boundary, std::span<const Tensor> values,
                                const StepPlan& plan) const;
  // With this rank and what it was at in front, unless the words are another rank's.
  Error Named(const Error& error, const std::string& what) const;

  ExecutorSpec spec_;
  comm::Channel& channel_;
  HeadSink* head_;
  trace::RankRecorder& recorder_;
  Stage* stage_ = nullptr;
  std::vector<std::vector<schedule::Action>> program_;  // per micro-batch of a lap
  std::vector<std::byte> result_;
};

}  // namespace penstock::runtime
