// Reads over the depth of a model, vectorized with Highway's run-time dispatch: what mixes several
// tensors of one shape row by row (attention residuals, multi-stream residuals).
//
// Each function takes a range of rows, the share of one thread. A row's result depends on that row
// of its inputs only, and has one order of reduction: sources in the order given, columns as
// `Dot` in vector_ops.cc sums them.

#pragma once

#include <span>

#include "kernels/cpu/vector_ops.h"
#include "tensor/tensor.h"

namespace penstock::kernels {

// Device::DepthRead. One pass over the sources, each touched once from memory: the sum is rescaled
// when a later source scores higher (Milakov and Gimelshein, 2018). key_norm may be null.
void DepthReadRows(std::span<const Tensor> sources, const float* query, const float* key_norm,
                   float epsilon, Tensor out, RowRange rows);

inline constexpr int64_t kMaxDepthStreams = 16;

// Device::StreamWeights, StreamRead and StreamWrite.
void StreamWeightsRows(const StreamParams& params, Tensor x, Tensor out, RowRange rows);
void StreamReadRows(int64_t streams, Tensor x, Tensor c, Tensor out, RowRange rows);
void StreamWriteRows(int64_t streams, Tensor x, Tensor c, Tensor y, Tensor out, RowRange rows);

}  // namespace penstock::kernels
