// The memory of each device, from the exact tensors of its stage: the same categories that the
// engine's arenas report.

#pragma once

#include <vector>

#include "plan/context.h"

namespace penstock::plan {

// ---- Inference ----

// Bytes of one layer's state for `sequences` of `tokens`, on one device.
double StateBytesPerDevice(const cost::LayerProfile& layer, const Layout& layout, double sequences,
                           double tokens);

// One account per pipeline rank; layout.cut must be set. `sequences` live on one replica at their
// final length `tokens`; `chunk_rows` rows are processed at once.
std::vector<MemoryAccount> InferenceMemory(const Context& context, const Layout& layout,
                                           double sequences, double tokens, double chunk_rows);

// ---- Training ----

// Bytes of weights, gradients and optimizer per parameter on one device: of dense or expert
// parameters. 2 + 4 + 12 with Adam and 32-bit gradients; ZeRO divides optimizer (1), gradients (2)
// and weights (3) over the replicas. (Rajbhandari et al. 2020.)
struct StateBytes {
  double weights = 0;
  double gradients = 0;
  double optimizer = 0;
};

StateBytes TrainingStateBytes(const TrainingWorkload& workload, const Layout& layout, bool expert);

// Bytes of activations that one micro-batch of `rows` rows (of this device) leaves in one layer, by
// recompute mode. (Korthikanti et al. 2022, equations 1 to 5, for any layer.) `sequence` is the
// number of keys. With fused attention no scores are kept, also without recomputation.
double ActivationBytes(const cost::LayerProfile& layer, const Layout& layout, double rows,
                       double sequence, bool fused_attention);

// Micro-batches (in shares of a rank's layers) whose activations pipeline rank `rank` keeps.
double InFlight(const Layout& layout, int64_t rank);

// One account per pipeline rank; layout.cut must be set. `shares` are the micro-batches in flight
// per rank, as a simulation found them; empty: by InFlight.
std::vector<MemoryAccount> TrainingMemory(const Context& context, const Layout& layout,
                                          const std::vector<double>& shares = {});

// The fullest: least room left.
const MemoryAccount& Fullest(const std::vector<MemoryAccount>& ranks);

}  // namespace penstock::plan
