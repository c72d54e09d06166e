// What TrainingDevice's operations along a sequence take: short convolutions and delta attention.
// Segments are whole sequences (keys_before 0).

#pragma once

#include <cstdint>
#include <span>

#include "kernels/device.h"
#include "tensor/tensor.h"

namespace penstock::kernels {

// x, out [rows, width]; weight [width x taps] float32, taps adjacent.
struct ConvShape {
  int64_t taps = 0;                           // at most 64
  Activation activation = Activation::kSilu;  // kSilu only
};

// Where the gradients of delta attention's inputs go: (+)= as `accumulate_...` says.
struct DeltaGradients {
  Tensor q, k, v, f, b;
  bool accumulate_q = false, accumulate_k = false, accumulate_v = false, accumulate_f = false,
       accumulate_b = false;
  // [heads * dim + heads], written: the column sums of f's own term (the gradient of dt_bias), then
  // the gradient of a_log.
  std::span<float> sums;
};

}  // namespace penstock::kernels
