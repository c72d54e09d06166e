#include "runtime/train_rank.h"

#include <algorithm>
#include <map>
#include <set>

#include "runtime/train_edges.h"
#include "runtime/train_executor.h"
#include "runtime/train_gradient_sums.h"
#include "runtime/train_links.h"
#include "runtime/train_memory.h"
#include "runtime/train_parameters.h"
#include "runtime/train_program.h"

namespace penstock::runtime {
namespace {

using schedule::OpKind;

// What follows from the spec for one rank, without memory.
struct RankFacts {
  const TrainSpec& spec;
  int32_t rank = 0;  // in the replica
  int32_t replica = 0;
  model::CutSets cuts;
  std::vector<model::Op> losses;            // one per term, reading its logits
  std::map<int32_t, TrainStagePlan> plans;  // per stage of this rank
  std::vector<TrainParameters::HeldStage> held;
  TrainLinks links;
  std::unique_ptr<TrainProgram> train;
  std::unique_ptr<TrainProgram> eval;  // may be null

  RankFacts(const TrainSpec& s, int32_t channel_rank)
      : spec(s),
        rank(channel_rank % s.schedule->num_ranks()),
        replica(channel_rank / s.schedule->num_ranks()),
        cuts(*s.graph) {}
};

Result<> CheckLanes(const TrainSpec& spec) {
  const schedule::Schedule& schedule = *spec.schedule;
  const bool two = schedule.placement.num_directions() == 2;
  if (two && schedule.micro_batches < 2) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[runtime.train] {} has two copies of the weights and {} micro-batch, wanted "
                     "at least 2",
                     schedule.name, schedule.micro_batches);
  }
  const std::vector<int32_t>& starts = spec.lane_starts;
  if (starts.empty()) {
    return {};
  }
  const bool ascend = starts[0] == 0 && std::is_sorted(starts.begin(), starts.end()) &&
                      std::adjacent_find(starts.begin(), starts.end()) == starts.end() &&
                      starts.back() < schedule.micro_batches;
  if (!ascend || (two && starts != std::vector<int32_t>{0, schedule.direction_split()})) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[runtime.train] {} lanes over {} micro-batches, wanted {}", starts.size(),
                     schedule.micro_batches,
                     two ? "two: the halves that the two copies of the weights run"
                         : "first micro-batches that ascend from 0");
  }
  return {};
}

Result<std::unique_ptr<RankFacts>> MakeFacts(const TrainSpec& spec, int32_t channel_rank) {
  PENSTOCK_TRY(CheckLanes(spec));
  auto facts = std::make_unique<RankFacts>(spec, channel_rank);
  for (const model::LossTerm& term : spec.graph->losses) {
    // A kind without weights; the table is not asked.
    facts->losses.push_back({.layer = spec.graph->value(term.logits).producer,
                             .inputs = {term.logits},
                             .outputs = {},
                             .params = model::SelectRowsOp{}});
  }
  const schedule::Placement& placement = spec.schedule->placement;
  for (int d = 0; d < placement.num_directions(); ++d) {
    for (const StageId stage : placement.StagesOf(RankId(facts->rank), d)) {
      if (!facts->plans.contains(stage.value())) {
        PENSTOCK_TRY_ASSIGN(TrainStagePlan plan,
                            TrainStagePlan::Create(spec, facts->cuts, stage, facts->losses));
        facts->plans.emplace(stage.value(), std::move(plan));
      }
    }
  }
  for (const auto& [stage, plan] : facts->plans) {
    facts->held.push_back({&plan, LanesHere(spec, StageId(stage), facts->rank)});
  }
  PENSTOCK_TRY_ASSIGN(facts->links, TrainLinks::Create(spec, facts->cuts));
  for (const schedule::Schedule* schedule : {spec.schedule, spec.eval_schedule}) {
    if (schedule == nullptr) {
      continue;
    }
    if (schedule->placement != placement || schedule->slices != spec.schedule->slices) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "[runtime.train] {} places or slices its work otherwise than {}",
                       schedule->name, spec.schedule->name);
    }
    PENSTOCK_TRY_ASSIGN(std::unique_ptr<TrainProgram> program,
                        TrainProgram::Create(*spec.graph, *schedule, facts->rank, facts->plans));
    std::vector<std::vector<ValueId>> sends(static_cast<size_t>(program->units()));
    for (const schedule::Action& a : program->actions()) {
      if (a.kind == OpKind::kSendForward) {
        const std::vector<ValueId>& values = facts->links.Find(*schedule, a).values;
        auto& list = sends[static_cast<size_t>(program->UnitOf(a))];
        list.insert(list.end(), values.begin(), values.end());
      }
    }
    program->SetSends(std::move(sends));
    (schedule == spec.schedule ? facts->train : facts->eval) = std::move(program);
  }
  return facts;
}

int64_t WorkspaceBytes(const RankFacts& facts, const kernels::TrainingDevice& device) {
  int64_t most = 0;
  for (const TrainProgram* program : {facts.train.get(), facts.eval.get()}) {
    if (program == nullptr) {
      continue;
    }
    const int32_t slices = program->schedule().slices;
    const MicroBatchShape& largest = facts.spec.largest;
    OpShape shape;
    shape.rows = shape.input_rows = LargestSlice(largest.rows, slices);
    shape.keys = largest.rows;
    shape.slices = slices;
    for (int32_t unit = 0; unit < program->units(); unit += std::max(1, program->units() - 1)) {
      const DirectionPlan& direction = program->direction(unit);
      for (const TrainStagePlan* stage : direction.stages()) {
        most = std::max(
            most, TrainStageRunner::WorkspaceBytes(
                      *stage, shape, std::min(shape.rows, largest.counted), direction, device));
      }
    }
  }
  return most;
}

Result<> CheckData(const TrainSpec& spec, const StepData& data, int32_t most, bool all) {
  const auto count = static_cast<int32_t>(data.micro_batches.size());
  if (count > most || (all && count != most) || (all && data.counted < 1)) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[runtime.train] step {}: {} micro-batches with {} rows that count, wanted {}",
                     data.step, count, data.counted, most);
  }
  const int64_t vocabulary = spec.graph->value(spec.graph->logits).width;
  const auto legal = [&](int32_t id) { return id < vocabulary; };
  for (int32_t j = 0; j < count; ++j) {
    const MicroBatchData& batch = data.micro_batches[static_cast<size_t>(j)];
    int64_t rows = 0;
    for (const TrainSequence& sequence : batch.sequences) {
      rows += sequence.rows;
    }
    const bool ids = std::all_of(batch.tokens.begin(), batch.tokens.end(),
                                 [&](int32_t id) { return id >= 0 && legal(id); }) &&
                     std::all_of(batch.targets.begin(), batch.targets.end(), legal);
    if (rows != batch.rows() || batch.tokens.size() != batch.targets.size() ||
        rows > spec.largest.rows || batch.counted() > spec.largest.counted || !ids) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "[runtime.train] step {}, micro-batch {}: {} tokens, {} targets, sequences "
                       "of {} rows in all; wanted as many of each, at most {}, and ids below {}",
                       data.step, j, batch.tokens.size(), batch.targets.size(), rows,
                       spec.largest.rows, vocabulary);
    }
  }
  return {};
}

class TrainRankImpl final : public TrainRank {
 public:
  TrainRankImpl(const TrainSpec& spec, comm::Channel& channel, kernels::TrainingDevice& device,
                MemoryAccount& account, trace::RankRecorder& recorder)
      : spec_(spec),
        channel_(channel),
        device_(device),
        account_(account),
        recorder_(recorder),
        pool_(account, false) {}

  Result<> Build() {
    PENSTOCK_TRY_ASSIGN(facts_, MakeFacts(spec_, channel_.rank()));
    PENSTOCK_TRY(parameters_.Build(spec_, facts_->held, device_, &device_, account_));
    DescribeParameters();
    for (const TrainLink& link : facts_->links.links()) {
      comm::Lane lane = link.lane;
      if (lane.source == facts_->rank || lane.target == facts_->rank) {
        lane.source += FirstChannel();
        lane.target += FirstChannel();
        PENSTOCK_TRY(channel_.Open(lane, facts_->links.Options(link), account_));
      }
    }
    if (!spec_.forward_only) {
      sums_ = std::make_unique<GradientSums>(spec_, channel_.rank(), facts_->held, &parameters_);
      PENSTOCK_TRY(sums_->Open(channel_, account_));
    }
    return MakeExecutors();
  }

  Result<> Load(const weights::ModelFiles& files) override { return parameters_.Load(files); }

  std::span<const Parameter> parameters() const override { return parameters_.parameters(); }

  std::span<const Parameter> constants() const override { return parameters_.constants(); }

  void ParametersChanged(std::span<const int32_t> parameters) override {
    parameters_.Changed(parameters);
  }

  void Update(int32_t parameter, const kernels::AdamWParams& params, Tensor gradient, Tensor m,
              Tensor v) override {
    parameters_.Update(parameter, params, gradient, m, v);
  }

  Result<StepResult> RunStep(const StepData& data, StepEnd* end) override {
    PENSTOCK_TRY(CheckData(spec_, data, spec_.schedule->micro_batches, !spec_.forward_only));
    StepData whole = data;
    if (whole.counted_later.empty()) {
      whole.counted_later = CountLater(*spec_.graph, data.micro_batches);
      if (!whole.counted_later.empty() && spec_.replicas > 1) {
        return MakeError(ErrorCode::kInvalidArgument,
                         "[runtime.train] step {}: losses of further ids need counted_later, the "
                         "rows that count over all {} replicas",
                         data.step, spec_.replicas);
      }
    }
    return train_->Run(AllShapes(data), &whole, end);
  }

  Result<StepResult> RunEval(const StepData& data) override {
    PENSTOCK_CHECK(eval_ != nullptr, "the spec has a schedule for evaluation");
    PENSTOCK_TRY(CheckData(spec_, data, spec_.eval_schedule->micro_batches, false));
    return eval_->Run(AllShapes(data), &data, nullptr);
  }

  bool holds_head() const override {
    const StageId head = spec_.partition->StageOf(spec_.graph->value(spec_.graph->logits).producer);
    return facts_->plans.contains(head.value());
  }

 private:
  int32_t FirstChannel() const { return facts_->replica * spec_.schedule->num_ranks(); }

  const std::vector<MicroBatchShape>& AllShapes(const StepData& data) {
    shapes_.clear();
    for (const MicroBatchData& batch : data.micro_batches) {
      shapes_.push_back(ShapeOf(batch, spec_.schedule->slices));
    }
    return shapes_;
  }

  Result<> MakeExecutors() {
    const int64_t bytes = WorkspaceBytes(*facts_, device_);
    PENSTOCK_TRY_ASSIGN(workspace_, Buffer::Allocate(account_, MemoryCategory::kWorkspace, bytes));
    const bool reduces = sums_ != nullptr && sums_->NeedsScratch();
    PENSTOCK_TRY_ASSIGN(scratch_, Buffer::Allocate(account_, MemoryCategory::kWorkspace,
                                                   reduces ? kReducePieceBytes : 0));
    TrainMeans means;
    means.spec = &spec_;
    means.rank = facts_->rank;
    means.first_channel = FirstChannel();
    means.links = &facts_->links;
    means.sums = sums_.get();
    means.parameters = &parameters_;
    means.runner = {
        &device_, &device_, &parameters_, &pool_, Tensor(workspace_.data(), DType::kU8, 1, bytes),
        1};
    means.reduce_scratch = Tensor(scratch_.data(), DType::kU8, 1, scratch_.size());
    means.channel = &channel_;
    means.recorder = &recorder_;
    means.runner.slices = spec_.schedule->slices;
    train_ = std::make_unique<TrainExecutor>(means, *facts_->train);
    if (facts_->eval != nullptr) {
      means.runner.slices = spec_.eval_schedule->slices;
      eval_ = std::make_unique<TrainExecutor>(means, *facts_->eval);
    }
    return {};
  }

  // Which OPT updates a parameter, and who counts it.
  void DescribeParameters() {
    const auto stages = TensorStages(*spec_.graph, *spec_.partition);
    const schedule::Placement& placement = spec_.schedule->placement;
    for (Parameter& parameter : parameters_.parameters()) {
      const std::vector<StageId>& of = stages[static_cast<size_t>(parameter.id.value())];
      for (const StageId stage : of) {
        if (facts_->plans.contains(stage.value())) {
          parameter.stage = stage;
        }
      }
      for (const schedule::Action& a : facts_->train->actions()) {
        if (a.kind == OpKind::kOptimizer && std::find(of.begin(), of.end(), a.stage) != of.end()) {
          parameter.stage = a.stage;
        }
      }
      int32_t lowest = spec_.schedule->num_ranks();
      for (const StageId stage : of) {
        for (int d = 0; d < placement.num_directions(); ++d) {
          lowest = std::min(lowest, placement.RankOf(stage, d).value());
        }
      }
      parameter.counts = channel_.rank() == lowest;
    }
  }

  TrainSpec spec_;
  comm::Channel& channel_;
  kernels::TrainingDevice& device_;
  MemoryAccount& account_;
  trace::RankRecorder& recorder_;
  std::unique_ptr<RankFacts> facts_;
  TrainParameters parameters_;
  BlockPool pool_;
  Buffer workspace_;
  Buffer scratch_;
  std::unique_ptr<GradientSums> sums_;
  std::unique_ptr<TrainExecutor> train_;
  std::unique_ptr<TrainExecutor> eval_;
  std::vector<MicroBatchShape> shapes_;
};

}  // namespace

int64_t MicroBatchData::counted(int32_t shift) const {
  int64_t count = 0;
  int64_t begin = 0;
  for (const TrainSequence& sequence : sequences) {
    const int64_t end = begin + sequence.rows;
    for (int64_t row = begin + shift; row < end; ++row) {
      count += targets[static_cast<size_t>(row)] >= 0 ? 1 : 0;
    }
    begin = end;
  }
  return count;
}

std::vector<int64_t> CountLater(const model::Graph& graph,
                                std::span<const MicroBatchData> micro_batches) {
  int32_t most = 0;
  for (const model::LossTerm& term : graph.losses) {
    most = std::max(most, term.shift);
  }
  std::vector<int64_t> counted(static_cast<size_t>(most), 0);
  for (const MicroBatchData& batch : micro_batches) {
    for (int32_t shift = 1; shift <= most; ++shift) {
      counted[static_cast<size_t>(shift) - 1] += batch.counted(shift);
    }
  }
  return counted;
}

double StepLoss(const model::Graph& graph, const StepData& data,
                std::span<const std::vector<double>> losses) {
  double loss = 0;
  for (size_t k = 0; k < graph.losses.size(); ++k) {
    const model::LossTerm& term = graph.losses[k];
    double sum = 0;
    for (const double of_micro_batch : losses[k]) {
      sum += of_micro_batch;
    }
    const int64_t counted = DivisorOf(data, term.shift);
    loss += counted > 0 ? static_cast<double>(term.weight) * sum / static_cast<double>(counted) : 0;
  }
  return loss;
}

MicroBatchShape ShapeOf(const MicroBatchData& data, int32_t slices) {
  MicroBatchShape shape{data.rows(), data.counted(), {}};
  for (int32_t k = 0; k < slices; ++k) {
    shape.counted_in_slice.push_back(
        std::count_if(data.targets.begin() + SliceBegin(data.rows(), k, slices),
                      data.targets.begin() + SliceBegin(data.rows(), k + 1, slices),
                      [](int32_t target) { return target >= 0; }));
  }
  return shape;
}

Result<std::unique_ptr<TrainRank>> TrainRank::Create(const TrainSpec& spec, comm::Channel& channel,
                                                     kernels::TrainingDevice& device,
                                                     MemoryAccount& account,
                                                     trace::RankRecorder& recorder) {
  PENSTOCK_CHECK(channel.size() == spec.replicas * spec.schedule->num_ranks(),
                 "one channel end per rank and replica");
  auto rank = std::make_unique<TrainRankImpl>(spec, channel, device, account, recorder);
  PENSTOCK_TRY(rank->Build());
  return std::unique_ptr<TrainRank>(std::move(rank));
}

Result<MemoryFigures> TrainRank::PlannedMemory(const TrainSpec& spec, int32_t rank,
                                               std::span<const MicroBatchShape> shapes,
                                               const kernels::TrainingDevice& device,
                                               bool across_processes) {
  PENSTOCK_TRY_ASSIGN(const std::unique_ptr<RankFacts> facts, MakeFacts(spec, rank));
  MemoryAccount account;
  TrainParameters parameters;
  PENSTOCK_TRY(parameters.Build(spec, facts->held, device, nullptr, account));
  int64_t messages = facts->links.BufferBytes(facts->rank, across_processes);
  int64_t workspace = WorkspaceBytes(*facts, device);
  if (!spec.forward_only) {
    const GradientSums sums(spec, rank, facts->held, nullptr);
    messages += sums.BufferBytes(across_processes);
    workspace += sums.NeedsScratch() ? kReducePieceBytes : 0;
  }
  PENSTOCK_TRY(account.Take(MemoryCategory::kMessages, messages));
  PENSTOCK_TRY(account.Take(MemoryCategory::kWorkspace, workspace));
  BlockPool pool(account, true);
  TrainMeans means;
  means.spec = &spec;
  means.rank = facts->rank;
  means.links = &facts->links;
  means.runner = {&device, nullptr, nullptr, &pool, Tensor(), 1};
  for (const TrainProgram* program : {facts->train.get(), facts->eval.get()}) {
    if (program != nullptr) {
      means.runner.slices = program->schedule().slices;
      const auto count =
          std::min(shapes.size(), static_cast<size_t>(program->schedule().micro_batches));
      PENSTOCK_TRY(TrainExecutor(means, *program).Run(shapes.first(count), nullptr, nullptr));
    }
  }
  return account.peak();
}

Result<std::vector<TrainRank::PlannedPoint>> TrainRank::PlannedActivations(
    const TrainSpec& spec, int32_t rank, std::span<const MicroBatchShape> shapes,
    const kernels::TrainingDevice& device) {
  PENSTOCK_TRY_ASSIGN(const std::unique_ptr<RankFacts> facts, MakeFacts(spec, rank));
  MemoryAccount account;
  BlockPool pool(account, true);
  std::vector<PlannedPoint> points;
  TrainMeans means;
  means.spec = &spec;
  means.rank = facts->rank;
  means.links = &facts->links;
  means.runner = {&device, nullptr, nullptr, &pool, Tensor(), 1};
  means.runner.slices = spec.schedule->slices;
  means.on_dry_action = [&points](const schedule::Action& action, int64_t bytes) {
    points.push_back({action, bytes});
  };
  PENSTOCK_TRY(TrainExecutor(means, *facts->train).Run(shapes, nullptr, nullptr));
  return points;
}

}  // namespace penstock::runtime
