#include <algorithm>

#include "kernels/cpu/training_sequence_ops.h"

// One copy of this file per instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/training_sequence_kernel.cc"
#include <hwy/foreach_target.h>
// After foreach_target.
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();

namespace penstock::kernels {
namespace HWY_NAMESPACE {

#include "kernels/cpu/math_inl.h"
// After math_inl.h.
#include "kernels/cpu/conv_inl.h"

HWY_INLINE void PutFirst(DF d, bool accumulate, VF value, float* to, int64_t n) {
  if (accumulate) {
    value = hn::Add(LoadFirst(d, to, n), value);
  }
  hn::BlendedStore(value, hn::FirstN(d, static_cast<size_t>(n)), d, to);
}

// dy times the slope of SiLU at the convolution's sum, of row `row` of a segment, columns [c, c +
// n); `weights` as SpreadWeights makes them.
HWY_INLINE void Slopes(const ConvShape& shape, const Segment& segment, Tensor x,
                       const float* weights, Tensor dy, int64_t row, int64_t c, int64_t n,
                       float* out) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const VF one = hn::Set(d, 1.0F);
  const int64_t first = std::max<int64_t>(0, shape.taps - 1 - row);
  const float* from = x.Row<float>(segment.first_row + row - shape.taps + 1 + first).data() + c;
  const int64_t stride = x.row_stride();
  const float* gradient = dy.Row<float>(segment.first_row + row).data() + c;
  for (int64_t i = 0; i < n; i += lanes) {
    const int64_t left = std::min(lanes, n - i);
    VF sum = hn::Zero(d);
    for (int64_t j = first; j < shape.taps; ++j) {
      sum = hn::MulAdd(hn::LoadU(d, weights + j * kConvColumns + i),
                       LoadFirst(d, from + (j - first) * stride + i, left), sum);
    }
    const VF share = Sigmoid(d, sum);
    const VF slope = hn::Mul(share, hn::MulAdd(sum, hn::Sub(one, share), one));
    hn::StoreU(hn::Mul(LoadFirst(d, gradient + i, left), slope), d, out + i);
  }
}

// Last row first: of the slopes, those of the rows behind are kept in a ring.
void ConvInput(const ConvShape& shape, std::span<const Segment> segments, Tensor x,
               const float* weight, Tensor dy, bool accumulate, Tensor dx, RowRange columns) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  HWY_ALIGN float weights[kMaxTaps * kConvColumns];
  HWY_ALIGN float ring[kMaxTaps * kConvColumns];
  for (int64_t c = columns.begin; c < columns.end; c += kConvColumns) {
    const int64_t n = std::min(kConvColumns, columns.end - c);
    SpreadWeights(weight + c * shape.taps, n, shape.taps, weights);
    for (const Segment& segment : segments) {
      for (int64_t r = segment.rows - 1; r >= 0; --r) {
        Slopes(shape, segment, x, weights, dy, r, c, n, ring + r % shape.taps * kConvColumns);
        float* to = dx.Row<float>(segment.first_row + r).data() + c;
        for (int64_t i = 0; i < n; i += lanes) {
          VF sum = hn::Zero(d);
          for (int64_t j = 0; j < shape.taps; ++j) {
            const int64_t reader = r + shape.taps - 1 - j;  // the row that reads row r by tap j
            if (reader < segment.rows) {
              sum = hn::MulAdd(hn::LoadU(d, weights + j * kConvColumns + i),
                               hn::LoadU(d, ring + reader % shape.taps * kConvColumns + i), sum);
            }
          }
          PutFirst(d, accumulate, sum, to + i, std::min(lanes, n - i));
        }
      }
    }
  }
}

void ConvWeight(const ConvShape& shape, std::span<const Segment> segments, Tensor x,
                const float* weight, Tensor dy, float* dweight, RowRange columns) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  HWY_ALIGN float weights[kMaxTaps * kConvColumns];
  HWY_ALIGN float sums[kMaxTaps * kConvColumns];
  HWY_ALIGN float slopes[kConvColumns];
  for (int64_t c = columns.begin; c < columns.end; c += kConvColumns) {
    const int64_t n = std::min(kConvColumns, columns.end - c);
    SpreadWeights(weight + c * shape.taps, n, shape.taps, weights);
    std::fill_n(sums, shape.taps * kConvColumns, 0.0F);
    for (const Segment& segment : segments) {
      for (int64_t r = 0; r < segment.rows; ++r) {
        Slopes(shape, segment, x, weights, dy, r, c, n, slopes);
        for (int64_t j = std::max<int64_t>(0, shape.taps - 1 - r); j < shape.taps; ++j) {
          const float* from = x.Row<float>(segment.first_row + r - shape.taps + 1 + j).data() + c;
          float* sum = sums + j * kConvColumns;
          for (int64_t i = 0; i < n; i += lanes) {
            const VF value = LoadFirst(d, from + i, std::min(lanes, n - i));
            hn::StoreU(hn::MulAdd(hn::LoadU(d, slopes + i), value, hn::LoadU(d, sum + i)), d,
                       sum + i);
          }
        }
      }
    }
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < shape.taps; ++j) {
        dweight[(c + i) * shape.taps + j] += sums[j * kConvColumns + i];
      }
    }
  }
}

void SituBack(const SituParams& params, Tensor gate, Tensor up, Tensor dy, bool accumulate_gate,
              Tensor dgate, bool accumulate_up, Tensor dup, RowRange rows) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const VF one = hn::Set(d, 1.0F);
  const VF beta = hn::Set(d, params.beta);
  const VF linear = hn::Set(d, params.linear_beta > 0 ? params.linear_beta : 1.0F);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    for (int64_t c = 0; c < dy.columns(); c += lanes) {
      const int64_t n = std::min(lanes, dy.columns() - c);
      const VF g = LoadFirst(d, gate.Row<float>(r).data() + c, n);
      VF right = LoadFirst(d, up.Row<float>(r).data() + c, n);
      const VF gradient = LoadFirst(d, dy.Row<float>(r).data() + c, n);
      const VF t = hn::Tanh(d, hn::Div(g, beta));
      const VF share = Sigmoid(d, g);
      const VF left = hn::Mul(hn::Mul(beta, t), share);
      const VF left_slope =
          hn::MulAdd(hn::NegMulAdd(t, t, one), share, hn::Mul(left, hn::Sub(one, share)));
      VF right_slope = one;
      if (params.linear_beta > 0) {
        const VF tu = hn::Tanh(d, hn::Div(right, linear));
        right = hn::Mul(linear, tu);
        right_slope = hn::NegMulAdd(tu, tu, one);
      }
      PutFirst(d, accumulate_gate, hn::Mul(hn::Mul(gradient, left_slope), right),
               dgate.Row<float>(r).data() + c, n);
      PutFirst(d, accumulate_up, hn::Mul(hn::Mul(gradient, left), right_slope),
               dup.Row<float>(r).data() + c, n);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace penstock::kernels

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace penstock::kernels {

HWY_EXPORT(ConvInput);
HWY_EXPORT(ConvWeight);
HWY_EXPORT(SituBack);

void ConvInputColumns(const ConvShape& shape, std::span<const Segment> segments, Tensor x,
                      const float* weight, Tensor dy, bool accumulate, Tensor dx,
                      RowRange columns) {
  HWY_DYNAMIC_DISPATCH(ConvInput)(shape, segments, x, weight, dy, accumulate, dx, columns);
}

void ConvWeightColumns(const ConvShape& shape, std::span<const Segment> segments, Tensor x,
                       const float* weight, Tensor dy, float* dweight, RowRange columns) {
  HWY_DYNAMIC_DISPATCH(ConvWeight)(shape, segments, x, weight, dy, dweight, columns);
}

void SituBackRows(const SituParams& params, Tensor gate, Tensor up, Tensor dy, bool accumulate_gate,
                  Tensor dgate, bool accumulate_up, Tensor dup, RowRange rows) {
  HWY_DYNAMIC_DISPATCH(SituBack)
  (params, gate, up, dy, accumulate_gate, dgate, accumulate_up, dup, rows);
}

}  // namespace penstock::kernels

#endif  // HWY_ONCE
