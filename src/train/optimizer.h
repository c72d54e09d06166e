// The end of a step on one rank: the global norm of the gradient, clipping, AdamW (Loshchilov and
// Hutter 2019: decoupled weight decay), with the moments divided over data-parallel replicas
// (ZeRO-1, Rajbhandari et al. 2020).
//
// The norm is the root of the sum, in float64 and in the order of the tensors' names, of each
// tensor's sum of squares, which one rank works out. So it does not depend on the cut.
//
// With a barrier every rank waits for the norm before it changes a weight. Without one it goes on
// as if nothing were to be clipped, keeping the old weights, moments and gradients, and hears of
// the norm when it comes to the end of the next step (post-validation, Qi et al. 2023, Zero
// Bubble): if the norm was above the limit, all ranks put the old state back, do the step again
// with the right factor, and run the next step again. Either way the weights are the same bits. A
// run that clips in several steps in a row goes on with the barrier.

#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/training.h"
#include "runtime/train_rank.h"
#include "tensor/memory.h"
#include "train/links.h"
#include "train/setup.h"

namespace penstock::train {

// Clipped steps in a row after which a run without a barrier goes on with one.
inline constexpr int kClippedInARow = 3;

// What is known of a step when the norm is.
struct StepFacts {
  int64_t step = 0;
  double norm = 0;
  bool clipped = false;
  bool interrupted = false;  // some rank was asked to stop
};

// The most numbers that a rank posts at the end of a step.
int64_t SumsPerRank(const TrainSetup& setup);

// Bytes of moments, and of kept copies, on one channel rank.
int64_t PlannedOptimizerBytes(const TrainSetup& setup, int32_t channel_rank);

// Not thread-safe: the rank's thread calls. What it is given must outlive it.
class RankOptimizer : public runtime::StepEnd {
 public:
  // Moments are zero. Errors: kOutOfMemory.
  static Result<std::unique_ptr<RankOptimizer>> Create(const TrainSetup& setup,
                                                       runtime::TrainRank& rank,
                                                       kernels::TrainingDevice& device,
                                                       Links& links, MemoryAccount& account);

  // Before each RunStep. `interrupted`: this rank was asked to stop; all ranks learn it.
  void BeginStep(int64_t step, bool interrupted);

  Result<> Optimize(StageId stage, std::span<const int32_t> parameters) override;

  double waited_s() const override { return waited_s_; }

  // After RunStep: the step before was clipped after all and has been done again; this one must be
  // run again with the same data.
  bool redo() const { return redo_; }

  // Waits for what is not known yet of the last step. After it weights and moments are final.
  Result<> Settle();

  // Facts of steps, each once, in order.
  std::optional<StepFacts> TakeFacts();

  bool speculative() const { return speculative_; }

  int64_t rolled_back() const { return rolled_back_; }

  // Until it is called again with false, steps change no weight but take the time of those that
  // do. Moments are zero after it.
  void set_calibrating(bool calibrating);

  // Called before weights or moments change, for whoever reads them beside training.
  void set_before_change(std::function<Result<>()> before) { before_change_ = std::move(before); }

  // Moments of parameter i: elements [shard(i).begin, shard(i).end) of the flattened tensor.
  Shard shard(size_t i) const { return states_[i].shard; }

  std::span<float> first_moment(size_t i);
  std::span<float> second_moment(size_t i);

 private:
  struct State {
    Shard shard;
    float decay = 0;
    Buffer m, v;
    Buffer old_w, old_m, old_v, old_g;  // without a barrier
  };

  RankOptimizer(const TrainSetup& setup, runtime::TrainRank& rank, kernels::TrainingDevice& device,
                Links& links)
      : setup_(setup), rank_(rank), device_(device), links_(links) {}

  Result<> Allocate(MemoryAccount& account);
  Result<> Rehearse(std::span<const int32_t> parameters);
  Result<> OptimizeTogether();
  Result<> OptimizeAhead(std::span<const int32_t> parameters);
  void AddSums(std::span<const int32_t> parameters);
  Error NotFinite(int64_t step, std::span<const double> squares) const;
  Result<StepFacts> Facts(int64_t step, std::span<const double> own);
  Result<> Apply(std::span<const int32_t> parameters, int64_t step, double factor, bool kept);
  void Keep(int32_t parameter);
  Result<> RollBack(int64_t step, double norm);
  Result<> BeforeChange();
  double Factor(double norm) const;

  const TrainSetup& setup_;
  runtime::TrainRank& rank_;
  kernels::TrainingDevice& device_;
  Links& links_;
  std::vector<State> states_;  // as TrainRank::parameters()
  std::vector<int32_t> all_;   // 0, 1, ...
  int calls_per_step_ = 0;
  bool speculative_ = false;
  bool calibrating_ = false;

  int64_t step_ = 0;
  int calls_ = 0;
  bool redo_ = false;
  bool changed_ = false;
  bool interrupted_ = false;
  std::vector<double> sums_;        // [0]: interrupted; then tensors that count, ascending
  std::optional<int64_t> pending_;  // step whose norm is not known yet
  std::vector<double> pending_sums_;
  int clipped_in_a_row_ = 0;
  int64_t rolled_back_ = 0;
  double waited_s_ = 0;
  std::deque<StepFacts> facts_;
  std::function<Result<>()> before_change_;
};

}  // namespace penstock::train
