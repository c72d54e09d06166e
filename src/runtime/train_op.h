// The table of training operations: how each kind of the graph runs forward, what its backward pass
// reads, and its two halves I (gradients of its inputs) and W (gradients of its weights).
//
// To add a kind: write a class derived from TrainOp in a file of its own (train_ops_*.cc), fill in
// `traits` in its constructor, and add a line to MakeTrainOp (train_op.cc). Nothing else knows the
// kind: what is kept from F to I and W, what is held from I to W, what is recomputed, how long
// gradients live and what all that takes in memory follow from the traits.
//
//   class CubeTrainOp final : public TrainOp {          // y = x^3
//    public:
//     explicit CubeTrainOp(const model::Op& op) : TrainOp(op) {
//       traits.inputs = {kReadInI};                      // dx = 3 x^2 dy reads x
//       traits.cheap = true;                             // selective recomputation runs it again
//     }
//     void Forward(OpFrame& f) const override { f.device.Cube(f.in[0], f.out[0]); }
//     void BackwardInput(OpFrame& f) const override {
//       f.device.CubeBackward(f.in[0], f.dout[0], f.accumulate[0], f.din[0]);
//     }
//   };

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "kernels/training.h"
#include "model/graph.h"
#include "tensor/tensor.h"

namespace penstock::runtime {

// In which half of the backward pass something is read.
enum ReadIn : uint8_t { kNotRead = 0, kReadInI = 1, kReadInW = 2, kReadInBoth = 3 };

// How an operation deposits the gradient of an input.
enum class GradientInto : uint8_t {
  kNothing,  // no gradient: token ids
  kEither,   // writes, or adds where `accumulate` says so
  kAdds,     // always adds; where nothing is there yet it finds zeros
  kWrites,   // always writes; where something is there already the executor adds the two
};

// Memory of an operation beside its values, per micro-batch (slice), or per whole micro-batch.
struct ExtraSpec {
  bool from_forward = true;        // written by F and kept; else made in I (and held to W)
  ReadIn read = kReadInI;          // last reader: kReadInI: free after I; with W: after W
  bool whole_micro_batch = false;  // one for all slices of a micro-batch, from the first F (or I)
                                   // to the I of slice 0
  bool zeroed = false;             // filled with zeros when it is made
};

// What an operation's sizes depend on.
struct OpShape {
  int64_t rows = 0;        // of its outputs, in this micro-batch or slice
  int64_t input_rows = 0;  // of its first input
  int64_t keys = 0;        // rows of the whole micro-batch
  int32_t slices = 1;      // sequence slices per micro-batch
};

struct OpTraits {
  // Per input and output: when the backward pass reads the VALUE. Empty: never.
  std::vector<ReadIn> inputs;
  std::vector<ReadIn> outputs;
  // Per input. Empty: kEither for all.
  std::vector<GradientInto> into;
  bool weight_reads_gradient = false;  // W reads the gradients of the outputs: they are held
  bool view = false;                   // the outputs are columns of the input: F does nothing
  bool cheap = false;                  // selective recomputation runs it again
  // This input's gradient IS that of the (only) output: where nothing is there yet it takes over
  // the memory, and BackwardInput finds `moved` set.
  int moves_gradient = -1;
  // The gradient of input 0 may be written over its value, if nobody else reads that any more.
  bool gradient_in_place = false;
  // Weights. `matrices`: tensors packed together as one matrix, rows one below the other;
  // `vectors`: float32 masters as they are (also matrices that are used as such: embedding,
  // router); `biases`: vectors side by side, an invalid id where a part has none.
  std::vector<std::vector<TensorId>> matrices;
  std::vector<TensorId> vectors;
  std::vector<std::vector<TensorId>> biases;
  // Accumulators: tensors whose gradients lie one below the other (same columns; vectors are rows).
  std::vector<std::vector<TensorId>> gradients;
  // The first contribution of a step to accumulator 0 is written, not added (OpFrame::first); other
  // accumulators are zero before it.
  bool writes_first = false;
  std::vector<ExtraSpec> extras;
};

// What the rows of a micro-batch, or of one of its slices, are.
struct UnitRows {
  std::span<const int32_t> tokens;         // ids
  std::vector<kernels::Segment> segments;  // keys count from the first row of the micro-batch
  std::vector<int64_t> lengths;            // per segment: positions up to its sequence's end
  std::vector<int32_t> selected;           // rows that get logits, ascending
  std::vector<int32_t> targets;            // per selected row
  int64_t first_row = 0;                   // in the micro-batch
  int64_t micro_rows = 0;                  // of the whole micro-batch
  float factor = 0;                        // gradient of the loss of one row
  // Of the other terms of the loss, [term - 1]: a target per row of its logits, and its factor.
  std::vector<std::vector<int32_t>> term_targets;
  std::vector<float> term_factors;
  std::span<const int32_t> micro_tokens;  // ids of the whole micro-batch
  kernels::DropoutKey dropout_key;        // `op` is filled in per operation
  float dropout = 0;
};

// What an operation finds when it runs. Tensors are float32 [rows, width], rows may lie further
// apart than they are wide.
struct OpFrame {
  kernels::TrainingDevice& device;
  const UnitRows& rows;
  Tensor workspace;  // u8 [1, at least WorkspaceBytes]
  std::span<const Tensor> in;
  std::span<const Tensor> out;
  std::span<const Tensor> dout;         // complete gradients of the outputs
  std::span<const Tensor> din;          // where the gradients of the inputs go; empty: none wanted
  std::span<const uint8_t> accumulate;  // per input, for kEither
  bool moved = false;
  std::span<const Tensor> extras;  // u8 [1, bytes]
  std::span<const kernels::TrainMatrix* const> matrices;
  std::span<const Tensor> vectors;
  std::span<const Tensor> biases;     // [1, width]; empty view: none
  std::span<const Tensor> gradients;  // accumulators of this use and lane, one per group
  bool first = false;                 // with writes_first: gradients[0] holds nothing yet
  double loss = 0;                    // out: sum of cross-entropies (the loss operation only)
};

class TrainOp {
 public:
  explicit TrainOp(const model::Op& node) : node_(node) {}

  TrainOp(const TrainOp&) = delete;
  TrainOp& operator=(const TrainOp&) = delete;
  virtual ~TrainOp() = default;

  virtual int64_t WorkspaceBytes(const OpShape& shape, const kernels::TrainingDevice& device) const;
  virtual int64_t ExtraBytes(size_t extra, const OpShape& shape,
                             const kernels::TrainingDevice& device) const;

  // None of these is called for zero rows.
  virtual void Forward(OpFrame& frame) const = 0;
  virtual void BackwardInput(OpFrame& frame) const = 0;
  virtual void BackwardWeight(OpFrame& frame) const;

  const model::Op& node() const { return node_; }

  OpTraits traits;

 private:
  const model::Op& node_;
};

// What entries of the table may look at when they are made.
struct TrainOpContext {
  const model::Graph& graph;
  kernels::ProductType products = kernels::ProductType::kF32;
  int32_t slices = 1;
  float dropout = 0;
};

// Errors: kUnsupported (an operation that does not train, naming layer and kind).
Result<std::unique_ptr<TrainOp>> MakeTrainOp(int32_t op_index, const TrainOpContext& context);

// The loss after the logits of a term of the graph's losses: reads them, writes nothing. `op` must
// outlive it: one input.
std::unique_ptr<TrainOp> MakeLossOp(const model::Op& op, size_t term);

}  // namespace penstock::runtime
