#include <algorithm>

#include "kernels/cpu/short_conv.h"

// One copy of this file per instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/short_conv_kernel.cc"
#include <hwy/foreach_target.h>
// After foreach_target.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();

namespace penstock::kernels {
namespace HWY_NAMESPACE {

#include "kernels/cpu/math_inl.h"
// After math_inl.h.
#include "kernels/cpu/conv_inl.h"

// One row of columns [c, c + n): `rows[j]` is what tap j meets, null where that is zero.
HWY_INLINE void Row(const ConvRows& conv, const float* const* rows, const float* weights, int64_t n,
                    float* out) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i < n; i += lanes) {
    const int64_t left = std::min(lanes, n - i);
    VF sum = hn::Zero(d);
    for (int64_t j = 0; j < conv.taps; ++j) {
      if (rows[j] != nullptr) {
        sum = hn::MulAdd(hn::LoadU(d, weights + j * kConvColumns + i),
                         LoadFirst(d, rows[j] + i, left), sum);
      }
    }
    hn::BlendedStore(Activate(d, conv.activation, sum), hn::FirstN(d, static_cast<size_t>(left)), d,
                     out + i);
  }
}

// The last rows of columns [c, c + n) become the tail.
void KeepTail(const ConvRows& conv, Tensor x, int64_t c, int64_t n) {
  const int64_t width = x.columns();
  const int64_t history = conv.taps - 1;
  for (int64_t t = 0; t < history; ++t) {  // ascending: sources lie behind what is written
    const int64_t from = x.rows() - history + t;
    float* to = conv.tail + t * width + c;
    if (from >= 0) {
      std::copy_n(x.Row<float>(from).data() + c, n, to);
    } else if (conv.fresh) {
      std::fill_n(to, n, 0.0F);
    } else {
      std::copy_n(conv.tail + (history + from) * width + c, n, to);
    }
  }
}

void Columns(const ConvRows& conv, Tensor x, Tensor out, int64_t begin, int64_t end) {
  const int64_t width = x.columns();
  const int64_t history = conv.taps - 1;
  HWY_ALIGN float weights[kMaxTaps * kConvColumns];
  const float* rows[kMaxTaps];
  for (int64_t c = begin; c < end; c += kConvColumns) {
    const int64_t n = std::min(kConvColumns, end - c);
    SpreadWeights(conv.weights + c * conv.taps, n, conv.taps, weights);
    for (int64_t r = 0; r < x.rows(); ++r) {
      for (int64_t j = 0; j < conv.taps; ++j) {
        const int64_t from = r - history + j;  // below 0: in the tail
        rows[j] = from >= 0    ? x.Row<float>(from).data() + c
                  : conv.fresh ? nullptr
                               : conv.tail + (history + from) * width + c;
      }
      Row(conv, rows, weights, n, out.Row<float>(r).data() + c);
    }
    if (conv.tail != nullptr) {
      KeepTail(conv, x, c, n);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace penstock::kernels

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace penstock::kernels {

HWY_EXPORT(Columns);

void ConvolveColumns(const ConvRows& conv, Tensor x, Tensor out, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(Columns)(conv, x, out, begin, end);
}

}  // namespace penstock::kernels

#endif  // HWY_ONCE
