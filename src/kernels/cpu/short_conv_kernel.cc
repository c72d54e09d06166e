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

HWY_INLINE VF LoadFirst(DF d, const float* p, int64_t n) {
  return hn::MaskedLoad(hn::FirstN(d, static_cast<size_t>(n)), d, p);
}

constexpr int64_t kMaxTaps = 64;

void Columns(const ConvRows& conv, Tensor x, Tensor out, int64_t begin, int64_t end) {
  const DF d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t width = x.columns();
  const int64_t history = conv.taps - 1;
  HWY_ALIGN float weights[kMaxTaps * (HWY_MAX_BYTES / 4)];
  for (int64_t c = begin; c < end; c += lanes) {
    const int64_t n = std::min(lanes, end - c);
    std::fill_n(weights, conv.taps * lanes, 0.0F);
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < conv.taps; ++j) {
        weights[j * lanes + i] = conv.weights[(c + i) * conv.taps + j];
      }
    }
    for (int64_t r = 0; r < x.rows(); ++r) {
      VF sum = hn::Zero(d);
      for (int64_t j = 0; j < conv.taps; ++j) {
        const int64_t from = r - history + j;  // below 0: in the tail
        VF value = hn::Zero(d);
        if (from >= 0) {
          value = LoadFirst(d, x.Row<float>(from).data() + c, n);
        } else if (!conv.fresh) {
          value = LoadFirst(d, conv.tail + (history + from) * width + c, n);
        }
        sum = hn::MulAdd(hn::Load(d, weights + j * lanes), value, sum);
      }
      hn::BlendedStore(Activate(d, conv.activation, sum), hn::FirstN(d, static_cast<size_t>(n)), d,
                       out.Row<float>(r).data() + c);
    }
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
