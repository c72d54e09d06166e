// Scalar twin of the optimizer's step.

#pragma once

#include <cmath>

#include "kernels/training.h"

namespace penstock::kernels::ref {

// One element of AdamW (Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2019).
template <class T>
void AdamW(const AdamWParams& params, T gradient, T& w, T& m, T& v) {
  const T g = gradient * static_cast<T>(params.gradient_factor);
  const T beta1 = static_cast<T>(params.beta1);
  const T beta2 = static_cast<T>(params.beta2);
  const T lr = static_cast<T>(params.lr);
  m = beta1 * m + (1 - beta1) * g;
  v = beta2 * v + (1 - beta2) * g * g;
  const T mean = m / (1 - std::pow(beta1, static_cast<T>(params.step)));
  const T square = v / (1 - std::pow(beta2, static_cast<T>(params.step)));
  w -= lr * static_cast<T>(params.weight_decay) * w;
  w -= lr * mean / (std::sqrt(square) + static_cast<T>(params.epsilon));
}

}  // namespace penstock::kernels::ref
