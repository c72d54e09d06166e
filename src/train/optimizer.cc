#include "train/optimizer.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/log.h"
#include "model/inventory.h"

namespace penstock::train {
namespace {

constexpr int64_t kFloat = static_cast<int64_t>(sizeof(float));

int64_t ElementsOf(const model::Graph& graph, TensorId id) {
  return model::Elements(graph.tensor(id));
}

bool KeepsCopies(const TrainConfig& config) {
  return !config.pipeline.barrier && config.optimizer.clip_norm > 0;
}

Shard ShardFor(const TrainSetup& setup, int64_t elements, int32_t replica) {
  if (!setup.config.pipeline.zero1) {
    return {0, elements};
  }
  return ShardOf(elements, replica, setup.replicas());
}

// A view of elements [begin, end) of a contiguous tensor as one row.
Tensor Flat(Tensor tensor, const Shard& shard) {
  float* data = tensor.All<float>().data();
  return {data + shard.begin, DType::kF32, 1, shard.end - shard.begin};
}

Tensor Flat(Buffer& buffer) {
  return {buffer.data(), DType::kF32, 1, buffer.size() / kFloat};
}

}  // namespace

Shard ShardOf(int64_t elements, int32_t replica, int32_t replicas) {
  constexpr int64_t kAlign = 64;
  const int64_t blocks = (elements + kAlign - 1) / kAlign;
  return {std::min(elements, blocks * replica / replicas * kAlign),
          std::min(elements, blocks * (replica + 1) / replicas * kAlign)};
}

int64_t SumsPerRank(const TrainSetup& setup) {
  size_t most = 0;
  for (const auto& held : setup.held) {
    most = std::max(most, held.size());
  }
  return static_cast<int64_t>(most) + 1;
}

int64_t PlannedOptimizerBytes(const TrainSetup& setup, int32_t channel_rank) {
  const int32_t replica = channel_rank / setup.ranks();
  int64_t bytes = 0;
  for (const TensorId id : setup.held[static_cast<size_t>(channel_rank % setup.ranks())]) {
    const int64_t elements = ElementsOf(setup.model.graph, id);
    const Shard shard = ShardFor(setup, elements, replica);
    const int64_t mine = shard.end - shard.begin;
    bytes += 2 * mine * kFloat;
    if (KeepsCopies(setup.config)) {
      bytes += (elements + 3 * mine) * kFloat;
    }
  }
  return bytes;
}

Result<std::unique_ptr<RankOptimizer>> RankOptimizer::Create(const TrainSetup& setup,
                                                             runtime::TrainRank& rank,
                                                             kernels::TrainingDevice& device,
                                                             Links& links, MemoryAccount& account) {
  std::unique_ptr<RankOptimizer> optimizer(new RankOptimizer(setup, rank, device, links));
  const auto within = static_cast<size_t>(links.rank() % setup.ranks());
  const auto& program = setup.schedule.ranks[within];
  optimizer->calls_per_step_ = static_cast<int>(std::count_if(
      program.begin(), program.end(),
      [](const schedule::Action& action) { return action.kind == schedule::OpKind::kOptimizer; }));
  optimizer->speculative_ = !setup.config.pipeline.barrier;
  PENSTOCK_TRY(optimizer->Allocate(account));
  return optimizer;
}

Result<> RankOptimizer::Allocate(MemoryAccount& account) {
  const auto parameters = rank_.parameters();
  const auto take = [&](int64_t elements) {
    return Buffer::Allocate(account, MemoryCategory::kOptimizer, elements * kFloat);
  };
  for (size_t i = 0; i < parameters.size(); ++i) {
    const runtime::Parameter& parameter = parameters[i];
    const int64_t elements = parameter.master.rows() * parameter.master.columns();
    State state;
    state.shard = ShardFor(setup_, elements, links_.replica());
    const bool vector = setup_.model.graph.tensor(parameter.id).role == model::TensorRole::kVector;
    state.decay = vector ? 0.0F : static_cast<float>(setup_.config.optimizer.weight_decay);
    const int64_t mine = state.shard.end - state.shard.begin;
    PENSTOCK_TRY_ASSIGN(state.m, take(mine));
    PENSTOCK_TRY_ASSIGN(state.v, take(mine));
    if (KeepsCopies(setup_.config)) {
      PENSTOCK_TRY_ASSIGN(state.old_w, take(elements));
      PENSTOCK_TRY_ASSIGN(state.old_m, take(mine));
      PENSTOCK_TRY_ASSIGN(state.old_v, take(mine));
      PENSTOCK_TRY_ASSIGN(state.old_g, take(mine));
    }
    device_.Fill(Flat(state.m), 0.0F);
    device_.Fill(Flat(state.v), 0.0F);
    states_.push_back(std::move(state));
    all_.push_back(static_cast<int32_t>(i));
  }
  return {};
}

std::span<float> RankOptimizer::first_moment(size_t i) {
  return Flat(states_[i].m).All<float>();
}

std::span<float> RankOptimizer::second_moment(size_t i) {
  return Flat(states_[i].v).All<float>();
}

void RankOptimizer::BeginStep(int64_t step, bool interrupted) {
  step_ = step;
  calls_ = 0;
  redo_ = false;
  changed_ = false;
  interrupted_ = interrupted;
  sums_.assign(1, interrupted ? 1.0 : 0.0);
}

Result<> RankOptimizer::BeforeChange() {
  if (!changed_ && before_change_) {
    PENSTOCK_TRY(before_change_());
  }
  changed_ = true;
  return {};
}

double RankOptimizer::Factor(double norm) const {
  const double limit = setup_.config.optimizer.clip_norm;
  return limit > 0 && norm > limit ? limit / norm : 1.0;
}

Result<> RankOptimizer::Optimize(StageId /*stage*/, std::span<const int32_t> parameters) {
  ++calls_;
  waited_s_ = 0;
  if (calibrating_) {
    return Rehearse(parameters);
  }
  if (speculative_ || redo_) {
    return OptimizeAhead(parameters);
  }
  // Stages of this rank are optimized together, once the last one's turn has come.
  return calls_ == calls_per_step_ ? OptimizeTogether() : Result<>();
}

void RankOptimizer::set_calibrating(bool calibrating) {
  calibrating_ = calibrating;
  if (calibrating) {
    return;
  }
  for (State& state : states_) {
    device_.Fill(Flat(state.m), 0.0F);
    device_.Fill(Flat(state.v), 0.0F);
  }
}

Result<> RankOptimizer::Rehearse(std::span<const int32_t> parameters) {
  if (speculative_) {
    AddSums(parameters);
    if (KeepsCopies(setup_.config)) {
      for (const int32_t i : parameters) {
        Keep(i);
      }
    }
    return Apply(parameters, step_, 1.0, false);
  }
  if (calls_ < calls_per_step_) {
    return {};
  }
  AddSums(all_);
  PENSTOCK_TRY(links_.Post(step_, sums_));
  PENSTOCK_TRY_ASSIGN(const StepFacts facts, Facts(step_, sums_));
  return Apply(all_, step_, Factor(facts.norm), false);
}

Result<> RankOptimizer::OptimizeTogether() {
  AddSums(all_);
  PENSTOCK_TRY(links_.Post(step_, sums_));
  PENSTOCK_TRY_ASSIGN(const StepFacts facts, Facts(step_, sums_));
  facts_.push_back(facts);
  return Apply(all_, step_, Factor(facts.norm), false);
}

Result<> RankOptimizer::OptimizeAhead(std::span<const int32_t> parameters) {
  if (calls_ == 1) {
    PENSTOCK_TRY(Settle());
    redo_ = changed_;
  }
  if (redo_) {
    return {};
  }
  AddSums(parameters);
  if (KeepsCopies(setup_.config)) {
    for (const int32_t i : parameters) {
      Keep(i);
    }
  }
  PENSTOCK_TRY(Apply(parameters, step_, 1.0, false));
  if (calls_ == calls_per_step_) {
    PENSTOCK_TRY(links_.Post(step_, sums_));
    pending_ = step_;
    pending_sums_ = sums_;
  }
  return {};
}

Result<> RankOptimizer::Settle() {
  if (!pending_.has_value()) {
    return {};
  }
  const int64_t step = *pending_;
  pending_.reset();
  PENSTOCK_TRY_ASSIGN(const StepFacts facts, Facts(step, pending_sums_));
  facts_.push_back(facts);
  clipped_in_a_row_ = facts.clipped ? clipped_in_a_row_ + 1 : 0;
  if (!facts.clipped) {
    return {};
  }
  PENSTOCK_TRY(RollBack(step, facts.norm));
  if (clipped_in_a_row_ >= kClippedInARow) {
    speculative_ = false;
    if (links_.rank() == 0) {
      LogWarning(
          "{} steps in a row were clipped (the norm of the gradient was {:.3g} in step {}, "
          "optimizer.clip_norm is {:.3g}): from here on each step waits for the norm",
          clipped_in_a_row_, facts.norm, step, setup_.config.optimizer.clip_norm);
    }
  }
  return {};
}

void RankOptimizer::AddSums(std::span<const int32_t> parameters) {
  // Slots are in the order of parameters(), whatever stages they come with.
  size_t count = 1;
  for (const runtime::Parameter& parameter : rank_.parameters()) {
    count += parameter.counts ? 1 : 0;
  }
  sums_.resize(count, 0.0);
  size_t slot = 0;
  for (size_t i = 0; i < rank_.parameters().size(); ++i) {
    const runtime::Parameter& parameter = rank_.parameters()[i];
    if (!parameter.counts) {
      continue;
    }
    ++slot;
    if (std::find(parameters.begin(), parameters.end(), static_cast<int32_t>(i)) !=
        parameters.end()) {
      sums_[slot] = device_.SumOfSquares(parameter.gradient);
    }
  }
}

// W's result, or a sum over micro-batches, left the range although every loss and input gradient
// had been a number.
Error RankOptimizer::NotFinite(int64_t step, std::span<const double> squares) const {
  const model::Graph& graph = setup_.model.graph;
  for (const TensorId id : setup_.by_name) {
    if (std::isfinite(squares[static_cast<size_t>(id.value())])) {
      continue;
    }
    for (const model::Op& op : graph.ops) {
      const auto used = model::TensorsOf(op);
      if (std::find(used.begin(), used.end(), id) != used.end()) {
        return MakeError(ErrorCode::kNotFinite,
                         "[train.optimizer] step {}, stage {}: the gradient of {} is not finite, "
                         "summed over all micro-batches",
                         step, setup_.partition.StageOf(op.layer), graph.tensor(id).name);
      }
    }
  }
  return MakeError(ErrorCode::kNotFinite,
                   "[train.optimizer] step {}: the norm of the gradient is not finite", step);
}

Result<StepFacts> RankOptimizer::Facts(int64_t step, std::span<const double> own) {
  const comm::Clock::time_point start = comm::Clock::now();
  PENSTOCK_TRY_ASSIGN(const auto all, links_.Collect(step, own));
  waited_s_ += std::chrono::duration<double>(comm::Clock::now() - start).count();
  StepFacts facts;
  facts.step = step;
  std::vector<double> by_tensor(setup_.model.graph.tensors.size(), 0.0);
  for (int32_t r = 0; r < setup_.channel_ranks(); ++r) {
    const std::vector<double>& numbers = all[static_cast<size_t>(r)];
    size_t slot = 1;
    for (const TensorId id : setup_.held[static_cast<size_t>(r % setup_.ranks())]) {
      if (r == setup_.holder[static_cast<size_t>(id.value())] && slot < numbers.size()) {
        by_tensor[static_cast<size_t>(id.value())] = numbers[slot++];
      }
    }
    if (numbers.empty() || slot != numbers.size()) {
      return MakeError(ErrorCode::kInternal,
                       "[train.optimizer] rank {} posted {} sums of step {}, wanted {}", r,
                       numbers.size(), step, slot);
    }
    facts.interrupted = facts.interrupted || numbers[0] != 0;
  }
  double sum = 0;
  for (const TensorId id : setup_.by_name) {
    sum += by_tensor[static_cast<size_t>(id.value())];
  }
  facts.norm = std::sqrt(sum);
  if (!std::isfinite(facts.norm)) {
    return NotFinite(step, by_tensor);
  }
  facts.clipped = Factor(facts.norm) != 1.0;
  return facts;
}

void RankOptimizer::Keep(int32_t parameter) {
  State& state = states_[static_cast<size_t>(parameter)];
  const runtime::Parameter& p = rank_.parameters()[static_cast<size_t>(parameter)];
  std::memcpy(state.old_w.data(), p.master.Bytes().data(), p.master.Bytes().size());
  std::memcpy(state.old_m.data(), state.m.data(), static_cast<size_t>(state.m.size()));
  std::memcpy(state.old_v.data(), state.v.data(), static_cast<size_t>(state.v.size()));
  const Tensor g = Flat(p.gradient, state.shard);
  std::memcpy(state.old_g.data(), g.Bytes().data(), g.Bytes().size());
}

Result<> RankOptimizer::RollBack(int64_t step, double norm) {
  ++rolled_back_;
  PENSTOCK_TRY(BeforeChange());
  for (const int32_t i : all_) {
    State& state = states_[static_cast<size_t>(i)];
    const runtime::Parameter& p = rank_.parameters()[static_cast<size_t>(i)];
    std::memcpy(p.master.Bytes().data(), state.old_w.data(), p.master.Bytes().size());
    std::memcpy(state.m.data(), state.old_m.data(), static_cast<size_t>(state.m.size()));
    std::memcpy(state.v.data(), state.old_v.data(), static_cast<size_t>(state.v.size()));
  }
  return Apply(all_, step, Factor(norm), true);
}

Result<> RankOptimizer::Apply(std::span<const int32_t> parameters, int64_t step, double factor,
                              bool kept) {
  PENSTOCK_TRY(BeforeChange());
  const OptimizerSection& o = setup_.config.optimizer;
  kernels::AdamWParams params;
  params.lr =
      calibrating_ ? 0 : static_cast<float>(LearningRate(o, setup_.config.train.steps, step));
  params.beta1 = static_cast<float>(o.beta1);
  params.beta2 = static_cast<float>(o.beta2);
  params.epsilon = static_cast<float>(o.epsilon);
  params.gradient_factor = factor;
  params.step = std::max<int64_t>(step, 1);
  for (const int32_t i : parameters) {
    State& state = states_[static_cast<size_t>(i)];
    const runtime::Parameter& p = rank_.parameters()[static_cast<size_t>(i)];
    const int64_t elements = p.master.rows() * p.master.columns();
    const bool whole = state.shard.begin == 0 && state.shard.end == elements;
    const Tensor gradient = kept ? Flat(state.old_g) : Flat(p.gradient, state.shard);
    params.weight_decay = state.decay;
    if (whole) {
      rank_.Update(i, params, gradient, Flat(state.m), Flat(state.v));
    } else if (state.shard.end > state.shard.begin) {
      device_.AdamW(params, gradient, Flat(p.master, state.shard), Flat(state.m), Flat(state.v));
    }
    if (setup_.replicas() > 1 && setup_.config.pipeline.zero1) {
      std::vector<int64_t> starts;
      for (int32_t k = 0; k < setup_.replicas(); ++k) {
        starts.push_back(ShardOf(elements, k, setup_.replicas()).begin * kFloat);
      }
      starts.push_back(elements * kFloat);
      PENSTOCK_TRY(links_.ShareParts(p.master.Bytes(), starts));
      rank_.ParametersChanged(std::span(&i, 1));
    }
  }
  return {};
}

std::optional<StepFacts> RankOptimizer::TakeFacts() {
  if (facts_.empty()) {
    return std::nullopt;
  }
  const StepFacts facts = facts_.front();
  facts_.pop_front();
  return facts;
}

}  // namespace penstock::train
