// What a model weighs and works, counted from its graph: parameters, bytes of weights and state,
// floating-point operations and bytes moved. No time here: cost/ turns these into seconds.

#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "model/cut.h"
#include "model/graph.h"

namespace penstock::model {

int64_t Elements(const WeightTensor& tensor);

// Bytes that a tensor takes, by whatever rule the caller has (the types of a file, a packed
// layout).
using TensorBytes = std::function<int64_t(TensorId)>;

// All tensors at `bits` per element; the graph must outlive the result.
TensorBytes BytesAtBits(const Graph& graph, int64_t bits);

struct LayerInventory {
  // Of the tensors that the layer reads; a tensor that two layers read is counted in both.
  int64_t parameters = 0;
  int64_t weights_bytes = 0;
  // State per token at the given element size while the sequence is shorter than every window, and
  // per sequence whatever its length.
  int64_t kv_bytes_per_token = 0;
  int64_t sequence_bytes = 0;
};

struct Inventory {
  std::vector<LayerInventory> layers;
  // Each stored tensor once.
  int64_t parameters = 0;
  // What one token uses. Without routed experts: all. With them: the chosen share of the experts
  // and everything else but tables that are only looked up, as model cards count (Kimi K3: 104 B,
  // gpt-oss-120b: 5.1 B).
  int64_t parameters_active = 0;
  int64_t parameters_embedding = 0;  // of embedding tables, which are looked up (part of both)
  int64_t weights_bytes = 0;
  int64_t kv_bytes_per_token = 0;  // sums over layers
  int64_t sequence_bytes = 0;
};

// O(operations + tensors).
Inventory TakeInventory(const Graph& graph, const TensorBytes& bytes, int64_t kv_element_bytes);

// Weights of a stage: each tensor that its layers read once, so a tied one counts on both stages.
int64_t StageWeightsBytes(const StageContent& stage, const TensorBytes& bytes);

// State of one sequence of `tokens` in layers [first, end): layers with a window keep at most that
// many tokens.
int64_t StateBytes(const Graph& graph, int32_t first_layer, int32_t end_layer, int64_t tokens,
                   int64_t kv_element_bytes);

// The rows of one micro-batch, as far as work depends on them.
struct WorkShape {
  double rows = 1;          // tokens that are computed
  double logit_rows = 1;    // of these, how many get logits
  double keys = 1;          // positions that a row sees on average, itself included
  double state_tokens = 1;  // tokens of state that are read from memory: the sum of the lengths of
                            // the sequences that the rows belong to
  double sequences = 1;
};

// One prompt of `tokens`, or a chunk of it that starts at `from`.
WorkShape PrefillShape(double tokens, double from = 0);

// One new token of each of `sequences`, which have `context` tokens each with it.
WorkShape DecodeShape(double sequences, double context);

struct Work {
  double flops = 0;             // a multiply-add is two
  double weights_bytes = 0;     // of experts: those that some row is expected to choose
  double state_bytes = 0;       // read, and written for the new rows
  double activation_bytes = 0;  // float32 values read and written

  Work& operator+=(const Work& other);
};

// Experts are taken to be chosen evenly: E (1 - (1 - k/E)^rows) of them are read.
Work OpWork(const Graph& graph, const Op& op, const WorkShape& shape, const TensorBytes& bytes,
            int64_t kv_element_bytes);

// One entry per layer.
std::vector<Work> LayerWork(const Graph& graph, const WorkShape& shape, const TensorBytes& bytes,
                            int64_t kv_element_bytes);

// Weights for CutBalanced where no measured costs are at hand. kTime: operations of decoding one
// token behind `context` others; kMemory: bytes of weights and of one sequence's state at
// `context`; kLayers: decoder layers.
std::vector<double> BalanceWeights(const Graph& graph, Balance balance, const TensorBytes& bytes,
                                   int64_t kv_element_bytes, int64_t context);

}  // namespace penstock::model
