// Seconds of layers and stages as this project's own engine runs them on a calibrated machine
// (hw/engine.h): products by measured tables, attention by pairs, the rest by operations and
// numbers.

#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "cost/cost_model.h"
#include "cost/profile.h"
#include "cost/roofline.h"
#include "hw/engine.h"

namespace penstock::cost {

// One execution of a layer: `rows` rows, of which `selected` get logits. Attention apart.
hw::Shared EngineRowsSeconds(const LayerProfile& layer, double rows, double selected,
                             const Sharding& sharding, const Formats& formats,
                             const hw::Engine& engine);

// Attention of one layer for one sequence's `rows` rows that begin at position `first`.
hw::Shared EngineAttentionSeconds(const LayerProfile& layer, double rows, double first,
                                  const Sharding& sharding, const hw::Engine& engine);

// The forward pass of one layer for the closed forms, as ForwardTime gives it. With every device
// busy where `together`.
LayerTime EngineForwardTime(const LayerProfile& layer, const StepShape& shape,
                            const Sharding& sharding, const Formats& formats,
                            const Machine& machine);

// Seconds of one stage, whatever its micro-batches are. Keeps what it worked out; not thread-safe.
class EngineStage {
 public:
  // Layers [first, end) of the model.
  EngineStage(const ModelProfile& model, int32_t first, int32_t end, const Formats& formats,
              const hw::Engine& engine);

  struct Slice {
    double rows = 0;
    double first = 0;  // position
  };

  hw::Shared Seconds(double rows, double selected, std::span<const Slice> slices);

 private:
  struct Part {
    const LayerProfile* layer = nullptr;
    double times = 0;
  };

  std::vector<Part> parts_;
  Formats formats_;
  const hw::Engine& engine_;
  std::map<std::pair<double, double>, hw::Shared> rows_;
};

// F, I and W of each of the stages that `units` cuts a model into, for one micro-batch of `rows`
// tokens in sequences of `sequence_tokens`, on a calibrated machine: what a training schedule costs
// there. The gradients of a product with respect to inputs and to weights take as long as the
// product; attention's take twice its forward pass, all of it in I. With every device busy.
// `formats.weights` is the type that products multiply in. The link is the engine's.
CostModel EngineTrainingCosts(const ModelProfile& model, std::span<const int32_t> units,
                              double rows, double sequence_tokens, const Formats& formats,
                              const hw::Engine& engine, bool across_processes);

}  // namespace penstock::cost
