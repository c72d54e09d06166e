// Training of the operations that run along a sequence (short convolutions and delta attention),
// and of the SiTU unit. One thread; an output has one order of reduction. Segments are whole
// sequences (keys_before 0).

#pragma once

#include <cstdint>
#include <span>

#include "kernels/device.h"
#include "kernels/training.h"
#include "tensor/tensor.h"

namespace penstock::kernels {

// Gradients of Device::Situ.
void TrainSituBackward(const SituParams& params, Tensor gate, Tensor up, Tensor dy,
                       bool accumulate_gate, Tensor dgate, bool accumulate_up, Tensor dup);

// x, out [rows, width]; weight [width x taps] float32, taps adjacent.
struct ConvShape {
  int64_t taps = 0;
  Activation activation = Activation::kSilu;  // kSilu only
};

void TrainConvForward(const ConvShape& shape, std::span<const Segment> segments, Tensor x,
                      std::span<const float> weight, Tensor out);
// dx (+)=.
void TrainConvBackwardInput(const ConvShape& shape, std::span<const Segment> segments, Tensor x,
                            std::span<const float> weight, Tensor dy, bool accumulate, Tensor dx);
// dweight accumulates the whole term.
void TrainConvBackwardWeight(const ConvShape& shape, std::span<const Segment> segments, Tensor x,
                             std::span<const float> weight, Tensor dy, std::span<float> dweight);

// Forward: the chunks of Device::DeltaAttention, to the bit. `scratch` floats of one head.
int64_t TrainDeltaForwardFloats(int64_t dim);
void TrainDeltaForward(const DeltaParams& params, std::span<const Segment> segments, Tensor q,
                       Tensor k, Tensor v, Tensor f, Tensor b, Tensor out, float* scratch);

// Backward through the recurrence, states recomputed from those at every 16th position. dq, dk, dv,
// df, db (+)= as `accumulate` says; sums [heads * dim + heads] is written: the column sums of df's
// own term (the gradient of dt_bias), then the gradient of a_log.
int64_t TrainDeltaBackwardFloats(int64_t dim, int64_t rows);

struct DeltaGradients {
  Tensor q, k, v, f, b;
  bool accumulate_q = false, accumulate_k = false, accumulate_v = false, accumulate_f = false,
       accumulate_b = false;
  std::span<float> sums;
};

void TrainDeltaBackward(const DeltaParams& params, std::span<const Segment> segments, Tensor q,
                        Tensor k, Tensor v, Tensor f, Tensor b, Tensor dout,
                        const DeltaGradients& gradients, float* scratch);

}  // namespace penstock::kernels
