// Reads over depth and multi-stream residuals of CpuTraining.

#include "kernels/cpu/training_depth_ops.h"
#include "kernels/cpu/training_device.h"

namespace penstock::kernels {
namespace {

float* Floats(Tensor vector) {
  return vector.empty() ? nullptr : vector.Row<float>(0).data();
}

// Contiguous rows as one.
Tensor OneRow(Tensor x) {
  return {x.Row<float>(0).data(), DType::kF32, 1, x.rows() * x.columns()};
}

}  // namespace

void CpuTraining::DepthReadBackwardInput(std::span<const Tensor> sources, Tensor query,
                                         Tensor key_norm, float epsilon, Tensor dy,
                                         std::span<const uint8_t> accumulate,
                                         std::span<const Tensor> dsources, Tensor factors) {
  PENSTOCK_CHECK(dsources.size() == sources.size() && accumulate.size() == sources.size() &&
                     factors.columns() == 3 * std::ssize(sources) && factors.rows() == dy.rows(),
                 "a gradient and factors per source");
  const DepthReadGradient read = {sources, Floats(query), Floats(key_norm), epsilon};
  OverRows(dy, 4 * std::ssize(sources), [&](RowRange range) {
    DepthReadBackwardRows(read, dy, accumulate, dsources, factors, range);
  });
}

void CpuTraining::DepthReadBackwardWeight(std::span<const Tensor> sources, Tensor query,
                                          Tensor key_norm, Tensor factors, Tensor dquery,
                                          Tensor dkey_norm) {
  PENSTOCK_CHECK(key_norm.empty() == dkey_norm.empty(), "a gradient for the weight that is there");
  const DepthReadGradient read = {sources, Floats(query), Floats(key_norm), 0.0F};
  OverColumns(query.columns(), factors.rows() * std::ssize(sources), [&](RowRange range) {
    DepthReadWeightColumns(read, factors, Floats(dquery), Floats(dkey_norm), range);
  });
}

void CpuTraining::StreamWeightsBackwardInput(const StreamParams& params, Tensor x, Tensor dc,
                                             bool accumulate, Tensor dx, Tensor factors) {
  PENSTOCK_CHECK(factors.columns() == 2 * dc.columns() && !params.mix.empty(),
                 "the coefficients depend on x, and have factors");
  OverRows(x, 2 * params.streams, [&](RowRange range) {
    StreamWeightsBackwardRows(params, x, dc, accumulate, dx, factors, range);
  });
}

void CpuTraining::StreamWeightsBackwardWeight(const StreamParams& params, Tensor x, Tensor dc,
                                              Tensor factors, Tensor dbase, Tensor dmix,
                                              Tensor dnorm, Tensor dscale) {
  AddColumnSums(dc, OneRow(dbase));
  if (params.mix.empty()) {
    return;
  }
  const int64_t n = params.streams;
  const int64_t each = n + 2;
  OverColumns(x.columns() / n, x.rows() * n * each, [&](RowRange range) {
    StreamMixColumns(params, x, factors, dmix, Floats(dnorm), range);
  });
  double sums[2] = {0.0, 0.0};
  for (int64_t r = 0; r < dc.rows(); ++r) {
    const float* gradient = dc.Row<float>(r).data();
    const float* tanh = factors.Row<float>(r).data() + n * each;
    for (int64_t i = 0; i < n * each; ++i) {
      sums[i % each == n + 1 ? 1 : 0] +=
          static_cast<double>(gradient[i]) * static_cast<double>(tanh[i]);
    }
  }
  Floats(dscale)[0] += static_cast<float>(sums[0]);
  Floats(dscale)[1] += static_cast<float>(sums[1]);
}

void CpuTraining::StreamReadBackward(int64_t streams, Tensor x, Tensor c, Tensor dout,
                                     bool accumulate_x, Tensor dx, bool accumulate_c, Tensor dc) {
  OverRows(x, 2, [&](RowRange range) {
    StreamReadBackwardRows(streams, x, c, dout, accumulate_x, dx, accumulate_c, dc, range);
  });
}

void CpuTraining::StreamWriteBackward(int64_t streams, Tensor x, Tensor c, Tensor y, Tensor dout,
                                      bool accumulate_x, Tensor dx, bool accumulate_c, Tensor dc,
                                      bool accumulate_y, Tensor dy) {
  OverRows(x, 2 * streams, [&](RowRange range) {
    StreamWriteBackwardRows(streams, x, c, y, dout, accumulate_x, dx, accumulate_c, dc,
                            accumulate_y, dy, range);
  });
}

}  // namespace penstock::kernels
