// What an operation sees of a micro-batch.

#pragma once

#include <functional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "kernels/device.h"
#include "runtime/step_plan.h"
#include "tensor/tensor.h"

namespace penstock::runtime {

struct StepInput {
  kernels::Device& device;
  const std::function<Tensor(ValueId)>& value;                // view for this micro-batch's rows
  Tensor workspace;                                           // u8 [1, bytes]
  std::vector<int32_t> tokens;                                // per row
  std::vector<int32_t> selected;                              // row numbers that get logits
  std::vector<std::vector<kernels::SequenceRows>> sequences;  // per pool
};

}  // namespace penstock::runtime
