// The sums that make accumulators into gradients, in their one order: lanes (over replicas and
// copies of the weights), then uses of shared tensors.

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "base/result.h"
#include "comm/channel.h"
#include "runtime/train_parameters.h"
#include "runtime/train_rank.h"
#include "runtime/train_reduce.h"

namespace penstock::runtime {

// First micro-batch of each lane, from the spec or the schedule's default.
std::vector<int32_t> LaneStarts(const TrainSpec& spec);

// The lane of a micro-batch.
int32_t LaneOf(const std::vector<int32_t>& starts, int32_t micro_batch);

// Lanes whose micro-batches run `stage` on `rank` (of the replica), ascending.
std::vector<int32_t> LanesHere(const TrainSpec& spec, StageId stage, int32_t rank);

class GradientSums {
 public:
  // `channel_rank` = replica * ranks + rank. `parameters` may be null where only bytes are asked.
  GradientSums(const TrainSpec& spec, int32_t channel_rank,
               std::vector<TrainParameters::HeldStage> stages, TrainParameters* parameters);

  int64_t BufferBytes(bool across_processes) const;
  bool NeedsScratch() const;
  Result<> Open(comm::Channel& channel, MemoryAccount& account) const;

  struct Means {
    comm::Channel& channel;
    kernels::TrainingDevice& device;
    Tensor scratch;
    int64_t step;
    double deadline_s;
    double& waited_s;  // grows by the seconds until others have come
  };

  // Over the lanes of a stage; then, of tensors that this stage alone uses more than once, over
  // the uses.
  Result<> ReduceStage(StageId stage, const Means& means) const;

  // Over the stages that use the tensor of a tied edge (its index in the schedule).
  Result<> ReduceTied(size_t edge, const Means& means) const;

 private:
  struct StageSum {
    Reduction reduction;
    std::vector<std::vector<size_t>> local_lanes;  // per place; empty where it is another rank's
  };

  struct TiedSum {
    Reduction reduction;
    std::vector<std::vector<StageId>> owners;  // per place
  };

  void AddStage(StageId stage, int32_t& edge);
  void AddTied(const schedule::Edge& tied, size_t index, int direction, int32_t& edge);
  Result<> SumUses(StageId stage, const Means& means) const;

  TrainSpec spec_;
  int32_t channel_rank_;
  std::vector<TrainParameters::HeldStage> stages_;
  TrainParameters* parameters_;
  std::map<int32_t, StageSum> stage_sums_;            // of this rank's stages
  std::map<size_t, std::vector<TiedSum>> tied_sums_;  // per edge, those that this rank is in
};

}  // namespace penstock::runtime
