// Short causal convolutions of the CPU device: each column alone along its sequence.
//
// A slot holds the last taps - 1 rows of each part, part by part, oldest first, in float32. A row's
// result is one sum over ascending taps, so it does not depend on how a sequence was split.

#pragma once

#include <cstdint>

#include "kernels/device.h"

namespace penstock::kernels {

// One part of one sequence.
struct ConvRows {
  int64_t taps = 0;
  Activation activation = Activation::kSilu;
  const float* weights = nullptr;  // [width, taps]
  float* tail = nullptr;           // [taps - 1, width]; null (and fresh): none is kept
  bool fresh = false;              // the tail counts as zeros
};

// Columns [begin, end) of the sequence's rows x and out [rows, width]; brings the tail up to date.
void ConvolveColumns(const ConvRows& conv, Tensor x, Tensor out, int64_t begin, int64_t end);

}  // namespace penstock::kernels
