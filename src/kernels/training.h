// TrainingDevice: what training asks of the hardware beyond Device: trainable matrices, backward
// operations split into I (gradient of the input) and W (gradient of the weights), the loss, the
// optimizer's arithmetic.
//
// Numbers: values, gradients and master weights are float32. With ProductType::kBF16 a matrix
// product rounds its two inputs to bf16 (nearest, ties to even) and sums in float32; everything
// else is computed in float32 (float64 where it says so).
//
// Bits: what is computed for one output never depends on the number of threads, and has one order
// of reduction. Gradients that are marked "accumulates" are added to what `out` holds, as one more
// term at the end: out = out + (the whole term), or in any other order that is a function of the
// arguments alone. So a running sum may be handed from one rank to another between two terms.
//
// Not thread-safe: one thread calls, the device uses its own pool inside.

#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/result.h"
#include "kernels/device.h"
#include "kernels/training_sequence.h"
#include "tensor/memory.h"
#include "tensor/tensor.h"

namespace penstock::kernels {

enum class ProductType : uint8_t { kF32, kBF16 };

// A trainable matrix, packed for x W^T (forward) and dy W (backward input). The float32 master
// belongs to the caller; Repack brings the packed images up to date.
class TrainMatrix {
 public:
  virtual ~TrainMatrix() = default;
  virtual int64_t rows() const = 0;     // output features
  virtual int64_t columns() const = 0;  // input features
  virtual int64_t bytes() const = 0;    // taken from the account, category weights
};

// Consecutive rows of one sequence in a micro-batch (packed sequences are several; attention never
// crosses from one to another). Keys and values of the sequence lie in rows [first_key,
// first_key + keys_before + rows) of k and v: `keys_before` of them belong to earlier slices of the
// sequence (sequence-sliced schedules), the rest to these rows themselves, in order.
struct Segment {
  int64_t first_row = 0;
  int64_t rows = 0;
  int64_t first_position = 0;  // of first_row, for rotary embedding
  int64_t first_key = 0;
  int64_t keys_before = 0;
  bool long_rope = false;  // LongRoPE's choice for this sequence
};

// Names a stream of random numbers of dropout: the same key gives the same mask, also when F is run
// again. Element (row, column) of the mask depends on the key and its index alone.
struct DropoutKey {
  uint64_t seed = 0;
  uint32_t step = 0;
  uint32_t micro_batch = 0;
  uint32_t op = 0;  // index of the operation in the graph
  // Row of the micro-batch that the tensor's first row is: a slice of rows gets its part of the
  // whole micro-batch's mask.
  uint32_t first_row = 0;
};

struct TrainMoeParams {
  bool sigmoid = false;
  bool normalize = false;
  int64_t chosen = 0;
  float weight_scale = 1.0F;
  Activation activation = Activation::kSilu;
  SituParams situ;     // for kSitu
  int64_t groups = 1;  // as in MoeParams
  int64_t chosen_groups = 1;
  Tensor router_input;  // what the router reads; empty: x itself
  // Where the gradient of router_input goes. Empty: it has none of its own.
  Tensor router_input_gradient;
  bool accumulate_router_input = false;
  Tensor router;       // [experts, width, or columns of router_input] float32 master
  Tensor router_bias;  // [1, experts] or empty; used for choosing only, no gradient
  std::span<const TrainMatrix* const> gate_up;  // per expert [2 * ffn, width]
  std::span<const TrainMatrix* const> down;     // per expert [width, ffn]
};

struct AdamWParams {
  float lr = 0;
  float beta1 = 0.9F;
  float beta2 = 0.999F;
  float epsilon = 1e-8F;
  float weight_decay = 0;        // decoupled: w -= lr * weight_decay * w
  double gradient_factor = 1.0;  // clip factor x loss scale; applied to the gradient first
  int64_t step = 1;              // 1, 2, ... for the bias correction
};

// The rows of a matrix that a master's rows are.
struct PackedRows {
  TrainMatrix* matrix = nullptr;
  int64_t first_row = 0;
};

class TrainingDevice {
 public:
  virtual ~TrainingDevice() = default;

  // The device whose pool and instruction set this one uses; its operations on float32 tensors
  // (RmsNorm, Gated, Act, Add, Scale, SoftCap, GatherRows) are the forward ones of training too.
  virtual Device& device() = 0;

  // ---- Trainable matrices ----

  virtual int64_t TrainMatrixBytes(int64_t rows, int64_t columns, ProductType type) const = 0;
  // Errors: kOutOfMemory. The images hold nothing until Repack has covered all rows.
  virtual Result<std::unique_ptr<TrainMatrix>> CreateMatrix(int64_t rows, int64_t columns,
                                                            ProductType type,
                                                            MemoryAccount& account) = 0;
  // Packs rows [first_row, first_row + master.rows()) from the float32 master [., columns].
  virtual void Repack(TrainMatrix& matrix, Tensor master, int64_t first_row) = 0;

  // Scratch for any of the three products of a matrix [outputs, inputs] with up to `rows` rows.
  virtual int64_t ProductWorkspaceBytes(int64_t outputs, int64_t inputs, ProductType type,
                                        int64_t rows) const = 0;
  // out [rows, W.rows()] = x W^T + bias ([1, W.rows()] or empty).
  virtual void LinearForward(const TrainMatrix& w, Tensor x, Tensor bias, Tensor out,
                             Tensor workspace) = 0;
  // dx [rows, W.columns()] (+)= dy W.
  virtual void LinearBackwardInput(const TrainMatrix& w, Tensor dy, bool accumulate, Tensor dx,
                                   Tensor workspace) = 0;
  // dw [dy.columns(), x.columns()] (+)= dy^T x; the same bits as adding to zeros. REQUIRES: dw
  // contiguous rows.
  virtual void LinearBackwardWeight(ProductType type, Tensor dy, Tensor x, bool accumulate,
                                    Tensor dw, Tensor workspace) = 0;
  // out [1, columns] accumulates the sum of x's rows (biases).
  virtual void AddColumnSums(Tensor x, Tensor out) = 0;

  // ---- Embedding ----

  // out[i] = table row ids[i] * scale; table float32 [vocabulary, width].
  virtual void EmbedForward(Tensor table, std::span<const int32_t> ids, float scale,
                            Tensor out) = 0;
  // dtable[ids[i]] accumulates dy[i] * scale, rows in ascending order.
  virtual void EmbedBackwardWeight(std::span<const int32_t> ids, float scale, Tensor dy,
                                   Tensor dtable) = 0;

  // ---- Elementwise. `accumulate`: dx += instead of dx =. ----

  virtual void RmsNormBackwardInput(Tensor x, Tensor weight, float epsilon, bool add_one,
                                    int64_t group, Tensor dy, bool accumulate, Tensor dx) = 0;
  // dweight accumulates.
  virtual void RmsNormBackwardWeight(Tensor x, float epsilon, int64_t group, Tensor dy,
                                     Tensor dweight) = 0;
  // Only the segments' rows; others are not touched. In place allowed.
  virtual void RopeForward(Tensor x, const RopeParams& params, std::span<const Segment> segments,
                           Tensor out) = 0;
  virtual void RopeBackward(Tensor dy, const RopeParams& params, std::span<const Segment> segments,
                            bool accumulate, Tensor dx) = 0;
  virtual void GatedBackward(Activation activation, Tensor gate, Tensor up, Tensor dy,
                             bool accumulate_gate, Tensor dgate, bool accumulate_up,
                             Tensor dup) = 0;
  virtual void ActBackward(Activation activation, Tensor x, Tensor dy, bool accumulate,
                           Tensor dx) = 0;
  // Gradients of Device::Situ.
  virtual void SituBackward(const SituParams& params, Tensor gate, Tensor up, Tensor dy,
                            bool accumulate_gate, Tensor dgate, bool accumulate_up, Tensor dup) = 0;
  // dx (+)= dy * factor: also the gradient of Add and Scale.
  virtual void ScaleInto(Tensor dy, float factor, bool accumulate, Tensor dx) = 0;
  // x is the input.
  virtual void SoftCapBackward(Tensor x, float cap, Tensor dy, bool accumulate, Tensor dx) = 0;
  // dx[rows[i]] += dy[i]; rows ascend strictly.
  virtual void ScatterAddRows(Tensor dy, std::span<const int32_t> rows, Tensor dx) = 0;
  // out = x * mask / (1 - rate). In place allowed. The gradient is the same function of dy.
  virtual void Dropout(Tensor x, const DropoutKey& key, float rate, Tensor out) = 0;
  // As Dropout, with accumulate.
  virtual void DropoutBackward(Tensor dy, const DropoutKey& key, float rate, bool accumulate,
                               Tensor dx) = 0;

  // ---- Reads over depth and multi-stream residuals; their forward operations are Device's ----

  // Gradients of DepthRead: dsources[j] (+)= where accumulate[j]; an empty tensor: not wanted.
  // factors [rows, 3 * sources] is written, for the weights' half: its first `sources` columns are
  // the gradients of the scores over the sources' norms, then the norms' inverses, then the dot
  // products of dy with the sources.
  virtual void DepthReadBackwardInput(std::span<const Tensor> sources, Tensor query,
                                      Tensor key_norm, float epsilon, Tensor dy,
                                      std::span<const uint8_t> accumulate,
                                      std::span<const Tensor> dsources, Tensor factors) = 0;
  // dquery and, where key_norm is there, dkey_norm [1, columns] accumulate.
  virtual void DepthReadBackwardWeight(std::span<const Tensor> sources, Tensor query,
                                       Tensor key_norm, Tensor factors, Tensor dquery,
                                       Tensor dkey_norm) = 0;
  // Coefficients that depend on x (mix is there): dx (+)=. factors [rows, 2 * streams *
  // (streams + 2)] is written, for the weights' half.
  virtual void StreamWeightsBackwardInput(const StreamParams& params, Tensor x, Tensor dc,
                                          bool accumulate, Tensor dx, Tensor factors) = 0;
  // All accumulate; without mix only dbase [streams, streams + 2] is looked at.
  virtual void StreamWeightsBackwardWeight(const StreamParams& params, Tensor x, Tensor dc,
                                           Tensor factors, Tensor dbase, Tensor dmix, Tensor dnorm,
                                           Tensor dscale) = 0;
  virtual void StreamReadBackward(int64_t streams, Tensor x, Tensor c, Tensor dout,
                                  bool accumulate_x, Tensor dx, bool accumulate_c, Tensor dc) = 0;
  virtual void StreamWriteBackward(int64_t streams, Tensor x, Tensor c, Tensor y, Tensor dout,
                                   bool accumulate_x, Tensor dx, bool accumulate_c, Tensor dc,
                                   bool accumulate_y, Tensor dy) = 0;

  // ---- Attention inside a micro-batch: causal, block-diagonal over segments ----

  virtual int64_t TrainAttentionWorkspaceBytes(const AttentionParams& params, int64_t rows,
                                               int64_t keys) const = 0;
  // out [rows, heads * value_dim]; lse [rows, heads] float32: log of the sum of exponentials, for
  // the backward pass. Never holds the score matrix.
  virtual void AttentionForward(const AttentionParams& params, std::span<const Segment> segments,
                                Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse,
                                Tensor workspace) = 0;
  // dq is written; dk and dv (shapes of k and v) accumulate.
  virtual void AttentionBackward(const AttentionParams& params, std::span<const Segment> segments,
                                 Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor dout,
                                 Tensor dq, Tensor dk, Tensor dv, Tensor workspace) = 0;

  // ---- Along a sequence: segments are whole sequences (keys_before 0) ----

  virtual void ShortConvForward(const ConvShape& shape, std::span<const Segment> segments, Tensor x,
                                std::span<const float> weight, Tensor out) = 0;
  // dx (+)=.
  virtual void ShortConvBackwardInput(const ConvShape& shape, std::span<const Segment> segments,
                                      Tensor x, std::span<const float> weight, Tensor dy,
                                      bool accumulate, Tensor dx) = 0;
  // dweight accumulates the whole term.
  virtual void ShortConvBackwardWeight(const ConvShape& shape, std::span<const Segment> segments,
                                       Tensor x, std::span<const float> weight, Tensor dy,
                                       std::span<float> dweight) = 0;

  // For both directions with up to `rows` rows.
  virtual int64_t TrainDeltaWorkspaceBytes(const DeltaParams& params, int64_t rows) const = 0;
  // The chunks of Device::DeltaAttention, to the bit.
  virtual void DeltaForward(const DeltaParams& params, std::span<const Segment> segments, Tensor q,
                            Tensor k, Tensor v, Tensor f, Tensor b, Tensor out,
                            Tensor workspace) = 0;
  // Through the same chunks, states recomputed.
  virtual void DeltaBackward(const DeltaParams& params, std::span<const Segment> segments, Tensor q,
                             Tensor k, Tensor v, Tensor f, Tensor b, Tensor dout,
                             const DeltaGradients& gradients, Tensor workspace) = 0;

  // ---- Mixture of experts ----

  // Bytes kept from F to I and W, and from I to W, for exactly `rows` rows.
  virtual int64_t MoeSavedBytes(int64_t experts, int64_t chosen, int64_t width, int64_t ffn,
                                int64_t rows) const = 0;
  virtual int64_t MoeHeldBytes(int64_t experts, int64_t chosen, int64_t width, int64_t ffn,
                               int64_t rows) const = 0;
  virtual int64_t TrainMoeWorkspaceBytes(int64_t experts, int64_t chosen, int64_t width,
                                         int64_t ffn, ProductType type, int64_t rows) const = 0;
  // saved: [1, MoeSavedBytes] of bytes, written.
  virtual void MoeForward(const TrainMoeParams& params, Tensor x, Tensor out, Tensor saved,
                          Tensor workspace) = 0;
  // dx (+)=; held: [1, MoeHeldBytes], written for MoeBackwardWeight.
  virtual void MoeBackwardInput(const TrainMoeParams& params, Tensor x, Tensor saved, Tensor dy,
                                bool accumulate, Tensor dx, Tensor held, Tensor workspace) = 0;
  // Gradients accumulate; per expert [2 * ffn, width] and [width, ffn]; drouter [experts, width].
  virtual void MoeBackwardWeight(const TrainMoeParams& params, Tensor x, Tensor saved, Tensor dy,
                                 Tensor held, Tensor drouter, std::span<const Tensor> dgate_up,
                                 std::span<const Tensor> ddown, Tensor workspace) = 0;

  // ---- Loss ----

  // Cross-entropy of each row with its target (-1: the row does not count): nll[i] in float64, 0
  // where it does not count; lse [rows, 1] for the backward pass.
  virtual void CrossEntropy(Tensor logits, std::span<const int32_t> targets, std::span<double> nll,
                            Tensor lse) = 0;
  // dlogits = (softmax - one-hot) * factor, 0 for rows that do not count. dlogits may be logits.
  virtual void CrossEntropyBackward(Tensor logits, std::span<const int32_t> targets, Tensor lse,
                                    float factor, Tensor dlogits) = 0;

  // ---- Optimizer and sums over parameters ----

  // Sum of squares in float64, in one order whatever the threads (fixed blocks, then their sum).
  virtual double SumOfSquares(Tensor x) = 0;
  // w, m, v change in place; g is not changed.
  virtual void AdamW(const AdamWParams& params, Tensor g, Tensor w, Tensor m, Tensor v) = 0;
  // The same, then Repack of w's rows in each of `images`, while they are in the cache. REQUIRES:
  // contiguous rows.
  virtual void AdamWRepack(const AdamWParams& params, Tensor g, Tensor w, Tensor m, Tensor v,
                           std::span<const PackedRows> images) = 0;
  virtual void Fill(Tensor x, float value) = 0;
};

// Runs on `device`'s pool and instruction set; it must be a CPU device and outlive the result.
std::unique_ptr<TrainingDevice> CreateCpuTraining(Device& device);

}  // namespace penstock::kernels
