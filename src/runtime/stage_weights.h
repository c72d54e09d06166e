// The weights that one stage holds, packed for its device.

#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "kernels/device.h"
#include "model/graph.h"
#include "runtime/weight_rule.h"
#include "weights/model_files.h"

namespace penstock::runtime {

// Matrices are kept per list of tensors that are packed together, vectors per tensor; what several
// operations use (tied weights, shared layers) is held once.
class StageWeights {
 public:
  // Called with the bytes loaded so far, after each matrix and often while one is read; only by
  // the thread that called Load.
  using Progress = std::function<void(int64_t bytes)>;

  // Loads what operations [first_op, last_op) need, by rows, and drops the file's pages after
  // packing. Errors: kOutOfMemory; kCorruptData (a NaN, naming the tensor); kUnsupported.
  static Result<StageWeights> Load(const model::Graph& graph, int32_t first_op, int32_t last_op,
                                   const WeightRule& rule, const weights::ModelFiles& files,
                                   kernels::Device& device, MemoryAccount& account,
                                   const Progress& progress);

  // Bytes that Load will take, exactly, from headers alone.
  static int64_t PlannedBytes(const model::Graph& graph, int32_t first_op, int32_t last_op,
                              const WeightRule& rule, const kernels::Device& device);

  const kernels::Matrix& matrix(std::span<const TensorId> parts) const;
  Tensor vector(TensorId id) const;  // float32 [rows, columns]
  Tensor bias(
      std::span<const TensorId> biases) const;  // [1, sum of widths]; zeros where a part has none

 private:
  using Key = std::vector<int32_t>;

  std::map<Key, std::unique_ptr<kernels::Matrix>> matrices_;
  std::map<Key, std::pair<std::unique_ptr<Buffer>, Tensor>>
      vectors_;  // single tensors, and concatenated biases
};

}  // namespace penstock::runtime
