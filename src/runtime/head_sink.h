// What becomes of logits: the head's stage hands them to a sink (a sampler, a collector), whose
// result travels back to the decider.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/result.h"
#include "runtime/step_plan.h"
#include "tensor/tensor.h"

namespace penstock::runtime {

class HeadSink {
 public:
  virtual ~HeadSink() = default;

  // `logits` [selected rows of the plan, vocabulary] float32, valid during the call. Returns the
  // bytes that the decider gets.
  virtual Result<std::vector<std::byte>> Consume(const StepPlan& plan, Tensor logits) = 0;

  // Largest result for up to `selected` rows.
  virtual int64_t MaxResultBytes(int64_t selected) const = 0;
};

}  // namespace penstock::runtime
