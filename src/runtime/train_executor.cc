#include "runtime/train_executor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "runtime/fault.h"
#include "runtime/stage_layout.h"

namespace penstock::runtime {

using schedule::Action;
using schedule::OpKind;

TrainExecutor::TrainExecutor(const TrainMeans& means, const TrainProgram& program)
    : m_(means), program_(program), runner_(means.runner), lane_starts_(LaneStarts(*means.spec)) {}

// The table of actions.
TrainExecutor::Operation TrainExecutor::OperationOf(OpKind kind) {
  switch (kind) {
    case OpKind::kForward:
      return &TrainExecutor::Forward;
    case OpKind::kRecompute:
      return &TrainExecutor::Recompute;
    case OpKind::kBackward:
    case OpKind::kBackwardInput:
    case OpKind::kBackwardWeight:
      return &TrainExecutor::Backward;
    case OpKind::kSendForward:
    case OpKind::kSendBackward:
      return &TrainExecutor::Send;
    case OpKind::kRecvForward:
    case OpKind::kRecvBackward:
      return &TrainExecutor::Receive;
    case OpKind::kReduceGrad:
      return &TrainExecutor::ReduceGradients;
    case OpKind::kOptimizer:
      return &TrainExecutor::Optimize;
    case OpKind::kBarrier:
      return &TrainExecutor::Barrier;
    case OpKind::kIdle:
    case OpKind::kRelease:          // a value goes with its last reading
    case OpKind::kWaitSendForward:  // a SEND returns when its buffer is free
    case OpKind::kWaitSendBackward:
    case OpKind::kWaitReduceGrad:
    case OpKind::kUnshard:
    case OpKind::kReshard:
      return &TrainExecutor::Nothing;
  }
  return &TrainExecutor::Nothing;
}

Result<StepResult> TrainExecutor::Run(std::span<const MicroBatchShape> shapes, const StepData* data,
                                      StepEnd* end) {
  Begin(shapes, data, end);
  if (!dry() && !program_.schedule().forward_only) {
    m_.parameters->BeginGradients();
  }
  for (const Action& action : program_.actions()) {
    const bool left_out =
        OfUnit(action.kind) && action.micro_batch.value() >= static_cast<int32_t>(shapes.size());
    if (left_out || action.kind == OpKind::kIdle) {
      continue;
    }
    if (const Result<> result = Execute(action); !result.ok()) {
      return Named(result.error(), action);
    }
  }
  if (!dry() && !program_.schedule().forward_only) {
    m_.parameters->FinishGradients(StageId());
  }
  for (const auto& [key, queue] : queues_) {
    PENSTOCK_CHECK(queue.early.empty(), "every unit adds to the accumulators of its stages");
  }
  for (const std::unique_ptr<TrainUnit>& unit : units_) {
    PENSTOCK_CHECK(unit == nullptr, "a step leaves nothing behind");
  }
  return std::move(result_);
}

void TrainExecutor::Begin(std::span<const MicroBatchShape> shapes, const StepData* data,
                          StepEnd* end) {
  shapes_ = shapes;
  data_ = data;
  end_ = end;
  const auto units = static_cast<size_t>(program_.units());
  units_.clear();
  units_.resize(units);
  actions_left_.resize(units);
  for (size_t u = 0; u < units; ++u) {
    actions_left_[u] = program_.ActionsOf(static_cast<int32_t>(u));
  }
  shared_.assign(static_cast<size_t>(program_.schedule().micro_batches), nullptr);
  for (auto& shared : shared_) {
    shared = std::make_shared<MicroBatchExtras>();
  }
  queues_.clear();
  tied_left_.clear();
  fault_done_ = false;
  result_ = {};
  result_.losses.assign(shapes.size(), std::numeric_limits<double>::quiet_NaN());
  result_.auxiliary.assign(m_.spec->graph->losses.size() - 1, result_.losses);
}

Result<> TrainExecutor::Execute(const Action& action) {
  if (dry()) {
    PENSTOCK_TRY((this->*OperationOf(action.kind))(action));
    if (OfUnit(action.kind)) {
      Done(program_.UnitOf(action), 1);
      if (m_.on_dry_action) {
        m_.on_dry_action(action, m_.runner.pool->current());
      }
    }
    return {};
  }
  PENSTOCK_TRY(InjectFault(action));
  const double waited_before_s = m_.channel->counters().waited_s;
  double start_s = m_.recorder->Now();
  PENSTOCK_TRY_ASSIGN(const int64_t bytes, (this->*OperationOf(action.kind))(action));
  if (schedule::IsSend(action.kind)) {
    start_s += RecordSendWait(action, start_s, m_.channel->counters().waited_s - waited_before_s);
  }
  const double met_s = action.kind == OpKind::kOptimizer    ? end_->waited_s()
                       : action.kind == OpKind::kReduceGrad ? std::exchange(reduce_waited_s_, 0)
                                                            : 0;
  if (met_s > 0) {
    m_.recorder->RecordWait(trace::WaitCause::kBarrier, action, RankId(), start_s, start_s + met_s);
    start_s += met_s;
  }
  const double end_s = m_.recorder->Now();
  const bool unit = OfUnit(action.kind);
  const int64_t rows = unit ? SizesOf(program_.UnitOf(action)).rows : 0;
  // A RECV records itself: what it waited for is not its own time.
  if (!schedule::IsRecv(action.kind)) {
    m_.recorder->Record(action, static_cast<int>(step()), start_s, end_s, static_cast<int>(rows),
                        bytes);
  }
  if (unit) {
    Done(program_.UnitOf(action), 1);
    m_.recorder->RecordCounter("activations", "bytes", end_s,
                               static_cast<double>(m_.runner.pool->current()));
  }
  return {};
}

TrainUnit& TrainExecutor::UnitOf(const Action& action) {
  const int32_t index = program_.UnitOf(action);
  std::unique_ptr<TrainUnit>& unit = units_[static_cast<size_t>(index)];
  if (unit == nullptr) {
    unit = program_.MakeUnit(index, SizesOf(index),
                             shared_[static_cast<size_t>(program_.MicroBatchOf(index))]);
    if (data_ != nullptr) {
      FillRows(*unit);
    }
  }
  return *unit;
}

TrainUnit::Sizes TrainExecutor::SizesOf(int32_t unit) const {
  const auto j = static_cast<size_t>(program_.MicroBatchOf(unit));
  const int32_t slices = program_.schedule().slices;
  const int32_t slice = program_.SliceOf(unit);
  const MicroBatchShape& shape = shapes_[j];
  const int64_t begin = SliceBegin(shape.rows, slice, slices);
  const int64_t end = SliceBegin(shape.rows, slice + 1, slices);
  TrainUnit::Sizes sizes{end - begin, std::min(shape.counted, end - begin), shape.rows};
  if (!shape.counted_in_slice.empty()) {
    sizes.selected = shape.counted_in_slice[static_cast<size_t>(slice)];
  }
  return sizes;
}

void TrainExecutor::FillRows(TrainUnit& unit) {
  const int32_t j = program_.MicroBatchOf(unit.index());
  const int32_t slice = program_.SliceOf(unit.index());
  const int32_t slices = program_.schedule().slices;
  const MicroBatchData& data = data_->micro_batches[static_cast<size_t>(j)];
  const int64_t begin = SliceBegin(data.rows(), slice, slices);
  const int64_t end = SliceBegin(data.rows(), slice + 1, slices);
  UnitRows& rows = unit.rows;
  rows.tokens =
      std::span(data.tokens).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  rows.first_row = begin;
  rows.micro_rows = data.rows();
  int64_t first = 0;
  for (const TrainSequence& sequence : data.sequences) {
    const int64_t from = std::max(begin, first);
    const int64_t to = std::min(end, first + sequence.rows);
    if (from < to) {
      rows.segments.push_back(
          {from - begin, to - from, sequence.first_position + from - first, first, from - first});
      rows.lengths.push_back(sequence.first_position + sequence.rows);
    }
    first += sequence.rows;
  }
  for (int64_t row = begin; row < end; ++row) {
    const int32_t target = data.targets[static_cast<size_t>(row)];
    if (target >= 0) {
      rows.selected.push_back(static_cast<int32_t>(row - begin));
      rows.targets.push_back(target);
    }
  }
  rows.micro_tokens = data.tokens;
  FillTerms(rows, data);
  if (!program_.schedule().forward_only) {
    rows.factor = static_cast<float>(1.0 / static_cast<double>(data_->counted));
    rows.dropout = m_.spec->dropout;
    // A slice drops what the whole micro-batch would.
    rows.dropout_key = {m_.spec->seed, static_cast<uint32_t>(data_->step), data.key, 0,
                        static_cast<uint32_t>(begin)};
  }
}

// Targets of the terms of the loss beside the output's.
void TrainExecutor::FillTerms(UnitRows& rows, const MicroBatchData& data) {
  const model::Graph& graph = *m_.spec->graph;
  if (graph.losses.size() == 1) {
    return;
  }
  const std::vector<bool> selected = SelectedValues(graph);
  for (size_t k = 1; k < graph.losses.size(); ++k) {
    const model::LossTerm& term = graph.losses[k];
    std::vector<int32_t> targets;
    for (size_t s = 0; s < rows.segments.size(); ++s) {
      const kernels::Segment& segment = rows.segments[s];
      const int64_t end =
          segment.first_key + rows.lengths[s] - segment.first_position + segment.keys_before;
      const int64_t first = rows.first_row + segment.first_row;
      for (int64_t row = first; row < first + segment.rows; ++row) {
        const bool there = !selected[static_cast<size_t>(term.logits.value())] ||
                           data.targets[static_cast<size_t>(row)] >= 0;
        const int64_t at = row + term.shift;
        if (there) {
          targets.push_back(at < end ? data.targets[static_cast<size_t>(at)] : -1);
        }
      }
    }
    rows.term_targets.push_back(std::move(targets));
    const int64_t counted = DivisorOf(*data_, term.shift);
    rows.term_factors.push_back(counted > 0 ? static_cast<float>(static_cast<double>(term.weight) /
                                                                 static_cast<double>(counted))
                                            : 0.0F);
  }
}

void TrainExecutor::Done(int32_t unit, int32_t actions) {
  int32_t& left = actions_left_[static_cast<size_t>(unit)];
  left -= actions;
  if (left == 0 && units_[static_cast<size_t>(unit)] != nullptr) {
    PENSTOCK_CHECK(units_[static_cast<size_t>(unit)]->Empty(), "a unit ends with nothing held");
    units_[static_cast<size_t>(unit)] = nullptr;
  }
}

Result<int64_t> TrainExecutor::Forward(const Action& action) {
  TrainUnit& unit = UnitOf(action);
  const model::Graph& graph = *m_.spec->graph;
  std::vector<double> losses(graph.losses.size(), 0.0);
  PENSTOCK_TRY(runner_.Forward(unit, program_.At(unit.index(), action.stage), false, losses));
  for (size_t k = 0; k < losses.size(); ++k) {
    const model::LossTerm& term = graph.losses[k];
    if (m_.spec->partition->StageOf(graph.value(term.logits).producer) != action.stage) {
      continue;
    }
    if (!std::isfinite(losses[k])) {
      return MakeError(ErrorCode::kNotFinite,
                       "[runtime.train] step {}, micro-batch {}, stage {}: the loss ({}) is not "
                       "finite",
                       step(), action.micro_batch, action.stage, term.name);
    }
    double& sum =
        (k == 0 ? result_.losses
                : result_.auxiliary[k - 1])[static_cast<size_t>(action.micro_batch.value())];
    sum = (std::isnan(sum) ? 0.0 : sum) + losses[k];
    result_.has_losses = result_.has_losses || k == 0;
  }
  return 0;
}

Result<int64_t> TrainExecutor::Recompute(const Action& action) {
  TrainUnit& unit = UnitOf(action);
  std::vector<double> unused(m_.spec->graph->losses.size(), 0.0);
  PENSTOCK_TRY(runner_.Forward(unit, program_.At(unit.index(), action.stage), true, unused));
  return 0;
}

Result<int64_t> TrainExecutor::Backward(const Action& action) {
  TrainUnit& unit = UnitOf(action);
  const int32_t index = unit.index();
  const bool input = action.kind != OpKind::kBackwardWeight;
  const bool weight = action.kind != OpKind::kBackwardInput;
  const int32_t lane = runtime::LaneOf(lane_starts_, action.micro_batch.value());
  WeightQueue* queue = nullptr;
  if (weight) {
    queue = &queues_[{action.stage.value(), lane}];
    if (queue->order.empty()) {
      for (int32_t j = 0; j < program_.schedule().micro_batches; ++j) {
        if (runtime::LaneOf(lane_starts_, j) == lane) {
          for (int32_t k = program_.schedule().slices - 1; k >= 0; --k) {
            queue->order.push_back(j * program_.schedule().slices + k);
          }
        }
      }
    }
  }
  const bool in_turn = weight && queue->order[queue->next] == index;
  if (input || in_turn) {
    const std::vector<int32_t> here = LanesHere(*m_.spec, action.stage, m_.rank);
    const auto local =
        static_cast<size_t>(std::find(here.begin(), here.end(), lane) - here.begin());
    PENSTOCK_TRY(runner_.Backward(unit, program_.At(index, action.stage), input, in_turn, local));
  }
  if (input && !std::isfinite(runner_.LastGradientSquares())) {
    return MakeError(
        ErrorCode::kNotFinite,
        "[runtime.train] step {}, micro-batch {}, stage {}: the gradient is not finite", step(),
        action.micro_batch, action.stage);
  }
  if (in_turn) {
    ++queue->next;
    PENSTOCK_TRY(RunWeights(action.stage, lane));
  } else if (weight) {
    // Held, and counted, until the ones before it have added theirs.
    queue->early.insert(index);
    ++actions_left_[static_cast<size_t>(index)];
  }
  return 0;
}

// Those that were put off and whose turn it is now.
Result<> TrainExecutor::RunWeights(StageId stage, int32_t lane) {
  WeightQueue& queue = queues_[{stage.value(), lane}];
  const std::vector<int32_t> here = LanesHere(*m_.spec, stage, m_.rank);
  const auto local = static_cast<size_t>(std::find(here.begin(), here.end(), lane) - here.begin());
  while (queue.next < queue.order.size() && queue.early.contains(queue.order[queue.next])) {
    const int32_t index = queue.order[queue.next++];
    queue.early.erase(index);
    TrainUnit& unit = *units_[static_cast<size_t>(index)];
    PENSTOCK_TRY(runner_.Backward(unit, program_.At(index, stage), false, true, local));
    Done(index, 1);
  }
  return {};
}

Result<int64_t> TrainExecutor::ReduceGradients(const Action& action) {
  if (dry()) {
    return 0;
  }
  m_.parameters->FinishGradients(action.stage);
  const GradientSums::Means means{*m_.channel, *m_.runner.device,   m_.reduce_scratch,
                                  step(),      m_.spec->deadline_s, reduce_waited_s_};
  if (action.value == 0) {
    PENSTOCK_TRY(m_.sums->ReduceStage(action.stage, means));
    return 0;
  }
  const size_t edge = action.value - 1U;
  if (++tied_left_[edge] == program_.TiedActions(edge)) {
    PENSTOCK_TRY(m_.sums->ReduceTied(edge, means));
  }
  return 0;
}

Result<int64_t> TrainExecutor::Optimize(const Action& action) {
  if (dry()) {
    return 0;
  }
  std::vector<int32_t> own;
  for (size_t p = 0; p < m_.parameters->parameters().size(); ++p) {
    if (m_.parameters->parameters()[p].stage == action.stage) {
      own.push_back(static_cast<int32_t>(p));
    }
  }
  PENSTOCK_CHECK(end_ != nullptr, "a schedule with OPT is run with a StepEnd");
  m_.parameters->FinishGradients(action.stage);
  PENSTOCK_TRY(end_->Optimize(action.stage, own));
  return 0;
}

Result<int64_t> TrainExecutor::Barrier(const Action&) {
  if (!dry() && end_ != nullptr) {
    PENSTOCK_TRY(end_->Barrier());
  }
  return 0;
}

Result<int64_t> TrainExecutor::Nothing(const Action&) {
  return 0;
}

}  // namespace penstock::runtime
