// Runs one program of a rank, once per step: looks each action up in a table of operations. Dry: no
// arithmetic and no messages, only memory, for planning.

#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "base/result.h"
#include "comm/channel.h"
#include "runtime/train_gradient_sums.h"
#include "runtime/train_links.h"
#include "runtime/train_memory.h"
#include "runtime/train_parameters.h"
#include "runtime/train_program.h"
#include "runtime/train_rank.h"
#include "runtime/train_stage_runner.h"
#include "trace/timeline.h"

namespace penstock::runtime {

// What an executor works with. Dry: channel, recorder, sums and parameters are null.
struct TrainMeans {
  const TrainSpec* spec = nullptr;
  int32_t rank = 0;           // in the replica
  int32_t first_channel = 0;  // channel rank of the replica's rank 0
  const TrainLinks* links = nullptr;
  const GradientSums* sums = nullptr;
  TrainParameters* parameters = nullptr;
  TrainStageRunner::Context runner;
  Tensor reduce_scratch;
  comm::Channel* channel = nullptr;
  trace::RankRecorder* recorder = nullptr;
  // In a dry run, after each action of a micro-batch: bytes of activations held.
  std::function<void(const schedule::Action& action, int64_t bytes)> on_dry_action;
};

class TrainExecutor {
 public:
  // Everything must outlive it. `program` is the schedule of training or that of evaluation.
  TrainExecutor(const TrainMeans& means, const TrainProgram& program);

  // One step. `shapes`: one per micro-batch, up to the schedule's; actions of further ones are left
  // out. `data` is null in a dry run.
  Result<StepResult> Run(std::span<const MicroBatchShape> shapes, const StepData* data,
                         StepEnd* end);

 private:
  using Action = schedule::Action;
  using Operation = Result<int64_t> (TrainExecutor::*)(const Action& action);  // gives bytes moved

  // The order in which the units of a lane add to a stage's accumulators.
  struct WeightQueue {
    std::vector<int32_t> order;  // units
    size_t next = 0;
    std::set<int32_t> early;  // put off until their turn
  };

  static Operation OperationOf(schedule::OpKind kind);

  Result<int64_t> Forward(const Action& action);
  Result<int64_t> Recompute(const Action& action);
  Result<int64_t> Backward(const Action& action);
  Result<int64_t> Send(const Action& action);
  Result<int64_t> Receive(const Action& action);
  Result<int64_t> ReduceGradients(const Action& action);
  Result<int64_t> Optimize(const Action& action);
  Result<int64_t> Barrier(const Action& action);
  Result<int64_t> Nothing(const Action& action);

  Result<> Execute(const Action& action);
  void Begin(std::span<const MicroBatchShape> shapes, const StepData* data, StepEnd* end);
  TrainUnit& UnitOf(const Action& action);
  TrainUnit::Sizes SizesOf(int32_t unit) const;
  void FillRows(TrainUnit& unit);
  void FillTerms(UnitRows& rows, const MicroBatchData& data);
  void Done(int32_t unit, int32_t actions);
  Result<> RunWeights(StageId stage, int32_t lane);
  Result<int64_t> TakeMessage(const Action& action, const TrainLink& link, TrainUnit& unit);
  std::vector<Tensor> ValuesToSend(const TrainLink& link, TrainUnit& unit, bool forward);
  comm::MessageHeader HeaderFor(const TrainLink& link, TrainUnit& unit) const;
  comm::Lane LaneOf(const TrainLink& link) const;
  // Seconds that a SEND waited until its receiver had taken an earlier message.
  double RecordSendWait(const schedule::Action& send, double start_s, double waited_s);
  Result<> InjectFault(const Action& action);
  Error Named(const Error& error, const Action& action) const;

  bool dry() const { return m_.runner.device == nullptr; }

  int64_t step() const { return data_ == nullptr ? 0 : data_->step; }

  TrainMeans m_;
  const TrainProgram& program_;
  TrainStageRunner runner_;
  std::vector<int32_t> lane_starts_;

  // Of the step that runs.
  std::span<const MicroBatchShape> shapes_;
  const StepData* data_ = nullptr;
  StepEnd* end_ = nullptr;
  StepResult result_;
  std::vector<std::unique_ptr<TrainUnit>> units_;
  std::vector<int32_t> actions_left_;                          // per unit
  std::vector<std::shared_ptr<MicroBatchExtras>> shared_;      // per micro-batch
  std::map<std::pair<int32_t, int32_t>, WeightQueue> queues_;  // (stage, local lane)
  std::map<size_t, int32_t> tied_left_;
  double reduce_waited_s_ = 0;  // of the last REDUCE_GRAD, until the other holders had come
  bool fault_done_ = false;
};

}  // namespace penstock::runtime
