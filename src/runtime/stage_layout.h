// Where a stage's values live: a static layout of its activations, worked out from the graph before
// anything is loaded. The executor uses the same object that the plan's memory figures come from,
// so they can't differ.

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "kernels/device.h"
#include "model/graph.h"
#include "runtime/weight_rule.h"

namespace penstock::runtime {

// Bounds of one micro-batch.
struct RowLimits {
  int64_t rows = 0;      // tokens
  int64_t selected = 0;  // rows that get logits
};

// A stage's share of the graph: layers [first_layer, last_layer), empty when they are equal.
struct StageRange {
  int32_t first_layer = 0;
  int32_t last_layer = 0;

  bool empty() const { return first_layer == last_layer; }
};

// Where one value lies in the activations buffer.
struct Place {
  int64_t offset_bytes = -1;  // of the first element; -1: not held by this stage
  int64_t row_stride = 0;     // in elements
  bool selected = false;      // has a row per selected row, not per token
};

class StageLayout {
 public:
  // `incoming` and `outgoing`: values that the stage receives and sends on (of the boundaries
  // before and after it). Errors: kUnsupported (an operation that the runtime does not run, naming
  // layer and kind).
  static Result<StageLayout> Create(const model::Graph& graph, const StageRange& range,
                                    std::span<const ValueId> incoming,
                                    std::span<const ValueId> outgoing, const RowLimits& limits,
                                    const WeightRule& rule, const kernels::Device& device);

  const Place& place(ValueId id) const { return places_[static_cast<size_t>(id.value())]; }

  int64_t activations_bytes() const { return activations_bytes_; }

  int64_t workspace_bytes() const { return workspace_bytes_; }

  const RowLimits& limits() const { return limits_; }

 private:
  std::vector<Place> places_;
  int64_t activations_bytes_ = 0;
  int64_t workspace_bytes_ = 0;
  RowLimits limits_;
};

// Rows of each value: true when it comes after a SelectRowsOp.
std::vector<bool> SelectedValues(const model::Graph& graph);

// Bytes of one boundary's message for full micro-batches.
int64_t BoundaryBytes(const model::Graph& graph, std::span<const ValueId> values,
                      const RowLimits& limits);

}  // namespace penstock::runtime
