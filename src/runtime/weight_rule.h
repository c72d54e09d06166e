// How each matrix of a model is held: the user's --weights and the file's own types decide, tensor
// by tensor, before anything is loaded.

#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kernels/device.h"
#include "model/graph.h"
#include "weights/model_files.h"

namespace penstock::runtime {

// --weights. kAuto: the file's 4-bit types become int4 by repacking without loss, 8-bit types int8,
// everything else bf16.
enum class WeightChoice : uint8_t { kAuto, kF32, kBF16, kInt8, kInt4 };

Result<WeightChoice> ParseWeightChoice(std::string_view text);

struct HeldMatrix {
  kernels::WeightType type = kernels::WeightType::kBF16;
  DType source = DType::kF32;  // type in the file, or that it is quantized to (int4 of a file
                               // without 4-bit types)
};

// The decision for every tensor of a graph. Vectors (norms, biases, routers) are always float32.
class WeightRule {
 public:
  // Errors: those of ModelFiles (missing tensor, wrong shape, a type that can't be read), naming
  // the tensor.
  static Result<WeightRule> Create(const model::Graph& graph, const weights::ModelFiles& files,
                                   WeightChoice choice);

  const HeldMatrix& held(TensorId id) const { return held_[static_cast<size_t>(id.value())]; }

  // "int4 (197 matrices), int8 (14)": for the report.
  std::string Summary() const;

 private:
  std::vector<HeldMatrix> held_;
};

// Parts of one linear operation that can be packed as one matrix: adjacent weights of the same held
// type (and, for int4, of the same source). Gives the end index of each group.
std::vector<size_t> PackGroups(const model::LinearOp& op, const WeightRule& rule);

}  // namespace penstock::runtime
