// The table of operations: how each kind of the graph runs on a device. A new kind is one more Bind
// function.

#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kernels/device.h"
#include "model/graph.h"
#include "runtime/stage_weights.h"
#include "runtime/step_input.h"

namespace penstock::runtime {

using RunOp = std::function<void(const StepInput&)>;

// What operations are bound to: must outlive what Bind gives.
struct BindContext {
  const WeightRule& rule;
  const StageWeights& weights;
  std::span<const std::unique_ptr<kernels::StateCache>> caches;
  std::span<const int32_t> pool_of;  // per state
};

RunOp BindOp(const model::Op& op, const BindContext& context);

}  // namespace penstock::runtime
