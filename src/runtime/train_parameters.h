// Weights of one rank in training: float32 masters, packed images of matrices, and gradient
// accumulators, one per (use, lane).

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "kernels/training.h"
#include "model/graph.h"
#include "runtime/train_rank.h"
#include "runtime/train_stage_plan.h"
#include "tensor/memory.h"
#include "weights/model_files.h"

namespace penstock::runtime {

// What one operation's frame needs of the weights.
struct BoundWeights {
  std::vector<const kernels::TrainMatrix*> matrices;
  std::vector<Tensor> vectors;
  std::vector<Tensor> biases;
  StageId stage;
  std::vector<std::vector<Tensor>> gradients;  // per local lane, per group
  std::vector<uint8_t> fresh;                  // per local lane: nothing was added in this step
};

// Part of an accumulator that belongs to one tensor.
struct TensorUse {
  int32_t op = 0;
  size_t group = 0;
  int64_t first_row = 0;
};

class TrainParameters {
 public:
  // A stage of the rank and the lanes whose micro-batches run it here, ascending.
  struct HeldStage {
    const TrainStagePlan* plan = nullptr;
    std::vector<int32_t> lanes;
  };

  TrainParameters() = default;
  TrainParameters(const TrainParameters&) = delete;
  TrainParameters& operator=(const TrainParameters&) = delete;

  // Dry: takes the bytes from the account and makes nothing. Errors: kOutOfMemory.
  Result<> Build(const TrainSpec& spec, std::span<const HeldStage> stages,
                 const kernels::TrainingDevice& sizes, kernels::TrainingDevice* device,
                 MemoryAccount& account);

  Result<> Load(const weights::ModelFiles& files);

  // Packs what holds any of these parameters, and copies their biases. Empty: all.
  void Changed(std::span<const int32_t> parameters);

  // One step of AdamW: the master, m and v (as large) change, and what is packed of it.
  void Update(int32_t parameter, const kernels::AdamWParams& params, Tensor g, Tensor m, Tensor v);

  // Accumulators hold nothing from here on.
  void BeginGradients();
  // Before a contribution of an operation to a lane: makes zeros of what it adds to, and tells
  // whether it is the step's first.
  bool TakeFirst(int32_t op, size_t lane, bool writes_first);
  // Zeros in accumulators of a stage that nothing was added to; of all stages if it is not valid.
  void FinishGradients(StageId stage);

  std::vector<Parameter>& parameters() { return parameters_; }

  const std::vector<Parameter>& parameters() const { return parameters_; }

  // Masters that are not trained, ascending by id.
  const std::vector<Parameter>& constants() const { return constants_; }

  // Index of a tensor that this rank trains, or -1.
  int32_t Find(TensorId id) const { return index_[static_cast<size_t>(id.value())]; }

  const BoundWeights& bound(int32_t op) const { return bound_.at(op); }

  // Uses of a parameter on this rank, ascending by operation; of one stage only if it is valid.
  std::vector<TensorUse> Uses(int32_t parameter, StageId stage = {}) const;

  // The part of an accumulator, [rows, columns] as the parameter's master.
  Tensor UsePart(int32_t parameter, const TensorUse& use, size_t lane) const;

 private:
  using Key = std::vector<int32_t>;

  struct Packed {
    std::unique_ptr<kernels::TrainMatrix> matrix;
    std::vector<TensorId> parts;
  };

  struct Bias {
    Buffer buffer;
    Tensor view;  // [1, width]
    std::vector<TensorId> parts;
    std::vector<int64_t> widths;
  };

  Result<Buffer> Get(MemoryCategory category, int64_t bytes);
  Result<> AddMasters(const TrainStagePlan& stage);
  Result<> AddMaster(TensorId id);
  Result<> AddConstants(std::span<const HeldStage> stages);
  Result<> AddMatrices(const TrainOp& op);
  Result<> AddBiases(const TrainOp& op);
  Result<> AddAccumulators(const HeldStage& stage);
  Result<> AddFinals();
  void Bind(const HeldStage& stage);
  Tensor Master(TensorId id) const;
  void FillBias(Bias& bias);

  const model::Graph* graph_ = nullptr;
  TrainSpec spec_;
  const kernels::TrainingDevice* sizes_ = nullptr;
  kernels::TrainingDevice* device_ = nullptr;
  MemoryAccount* account_ = nullptr;

  std::vector<int32_t> index_;                            // per tensor, into parameters_
  std::map<int32_t, std::pair<Buffer, Tensor>> masters_;  // per tensor, also those not trained
  std::map<Key, Packed> packed_;
  std::map<Key, Bias> biases_;
  std::map<int32_t, BoundWeights> bound_;
  std::vector<Buffer> accumulators_;
  std::vector<Buffer> finals_;
  std::vector<Parameter> parameters_;
  std::vector<Parameter> constants_;
  std::vector<std::vector<std::pair<StageId, TensorUse>>> uses_;  // per parameter
};

}  // namespace penstock::runtime
