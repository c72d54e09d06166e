// Seconds of one layer on one device of a group: each operation takes the larger of its arithmetic
// at the rate that products of its size reach and its bytes at the rate that memory reaches, plus
// what starting it costs; collectives stand beside.
//
// Williams, Waterman, Patterson 2009 for the roofline; experts touched in expectation
// E (1 - (1 - k/E)^rows) for uniform routing.

#pragma once

#include "cost/profile.h"
#include "hw/links.h"
#include "hw/system.h"

namespace penstock::cost {

// How one layer is divided.
struct Sharding {
  int64_t tp = 1;  // neighbours
  int64_t ep = 1;  // experts are dealt over this many devices (1: divided by tp)
  int64_t cp = 1;  // a sequence is divided over this many
  int64_t cp_stride = 1;
  int64_t ep_stride = 1;
  bool sequence_parallel = false;  // norms and residuals divided by tp too
};

// Number formats of one plan.
struct Formats {
  hw::Precision weights = hw::Precision::kBf16;  // of matrices
  hw::Precision kv = hw::Precision::kBf16;
  double activation_bytes = 2;
  bool as_stored = false;  // matrices as the model's file holds them, where the profile knows

  // Embedding, head, router and vectors stay at 16 bits when matrices are narrower.
  double end_bytes() const { return hw::PrecisionBytes(weights) > 2 ? 4 : 2; }

  double matrix_bytes() const { return hw::PrecisionBytes(weights) + hw::BlockScaleBytes(weights); }
};

// What one execution of a layer processes on one group of tensor-parallel devices.
struct StepShape {
  double rows = 0;          // tokens
  double sequences = 0;     // whose state is read
  double context = 0;       // keys that a row sees, on average
  double state_tokens = 0;  // tokens of state that are read per sequence
  double head_rows = 0;     // rows that the head multiplies
  bool decode = false;      // one row per sequence
};

struct LayerTime {
  double compute_s = 0;         // arithmetic alone
  double memory_s = 0;          // bytes alone
  double busy_s = 0;            // the larger of both, per operation, summed, with starts
  double start_s = 0;           // part of busy_s: starting operations
  double tensor_s = 0;          // collectives over tp, forward
  double expert_s = 0;          // exchanges over ep, forward
  double context_s = 0;         // exchanges over cp that attention does not hide
  double flops = 0;             // of the model, on this device
  double attention_busy_s = 0;  // part of busy_s: scores and weighted sums
  double attention_flops = 0;

  // With the shares that software leaves exposed.
  double total_s(const hw::Calibration& c) const {
    return busy_s + c.exposed_tensor_parallel * (tensor_s + expert_s) + context_s;
  }

  LayerTime& operator+=(const LayerTime& other);
  LayerTime operator*(double factor) const;
};

// Everything that prices need; cheap to copy around by reference.
struct Machine {
  const hw::System* system = nullptr;
  const hw::Calibration* calibration = nullptr;
};

// The forward pass of one layer. O(products). Thread-safe.
LayerTime ForwardTime(const LayerProfile& layer, const StepShape& shape, const Sharding& sharding,
                      const Formats& formats, const Machine& machine);

// Experts of `experts` that at least one of `rows` rows chose.
double ExpertsTouched(double experts, double chosen, double rows);

// Parameters of a layer that one device holds: (dense, expert).
std::pair<double, double> ParametersPerDevice(const LayerProfile& layer, const Sharding& sharding);

// Their bytes as stored for inference.
double WeightBytesPerDevice(const LayerProfile& layer, const Sharding& sharding,
                            const Formats& formats);

// Floating-point operations of the model (of one copy, nothing divided) for `rows` rows that see
// `context` keys on average, `head_rows` of which get logits. Forward.
double ModelFlops(const ModelProfile& model, double rows, double context, double head_rows);

}  // namespace penstock::cost
