// Scalar twin of the loss.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/ref/number.h"

namespace penstock::kernels::ref {

// Log of the sum of exponentials of one row.
template <class T>
T LogSumExp(std::span<const T> x) {
  Real<T> most = RealPart(x[0]);
  for (const T& value : x) {
    most = RealPart(value) > most ? RealPart(value) : most;
  }
  T sum = Number<T>(0);
  for (const T& value : x) {
    sum += std::exp(value - T(most));
  }
  return T(most) + std::log(sum);
}

// Cross-entropy of one row of logits with its target; 0 where target is negative.
template <class T>
T CrossEntropy(std::span<const T> logits, int32_t target) {
  return target < 0 ? Number<T>(0) : LogSumExp(logits) - logits[static_cast<size_t>(target)];
}

// dlogits = gradient of CrossEntropy times factor.
template <class T>
void CrossEntropyBackward(std::span<const T> logits, int32_t target, double factor,
                          std::span<T> dlogits) {
  const T lse = LogSumExp(logits);
  for (size_t i = 0; i < logits.size(); ++i) {
    const T hot = Number<T>(static_cast<int64_t>(i) == target ? 1 : 0);
    dlogits[i] = target < 0 ? Number<T>(0) : (std::exp(logits[i] - lse) - hot) * Number<T>(factor);
  }
}

}  // namespace penstock::kernels::ref
