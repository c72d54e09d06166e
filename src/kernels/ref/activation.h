// Scalar twins of the activations, of the gated unit and of the soft cap.

#pragma once

#include <cstddef>
#include <numbers>
#include <span>

#include "kernels/device.h"
#include "kernels/ref/number.h"

namespace penstock::kernels::ref {

template <class T>
T Sigmoid(const T& x) {
  return Number<T>(1) / (Number<T>(1) + std::exp(-x));
}

// erf of a complex number near the real line: the real value, and its derivative times the
// imaginary part (exact to the order that a complex step uses).
inline float Erf(float x) {
  return std::erf(x);
}

inline double Erf(double x) {
  return std::erf(x);
}

inline std::complex<double> Erf(const std::complex<double>& x) {
  const double r = x.real();
  return {std::erf(r), 2.0 * std::numbers::inv_sqrtpi * std::exp(-r * r) * x.imag()};
}

template <class T>
T Activate(Activation activation, const T& x) {
  switch (activation) {
    case Activation::kSilu:
      return x * Sigmoid(x);
    case Activation::kGeluTanh: {
      const T u =
          Number<T>(std::sqrt(2.0 / std::numbers::pi)) * (x + Number<T>(0.044715) * x * x * x);
      return Number<T>(0.5) * x * (Number<T>(1) + std::tanh(u));
    }
    case Activation::kGelu:
      return Number<T>(0.5) * x * (Number<T>(1) + Erf(x * Number<T>(1.0 / std::numbers::sqrt2)));
    case Activation::kRelu:
      return RealPart(x) > 0 ? x : Number<T>(0);
    case Activation::kReluSquared:
      return RealPart(x) > 0 ? x * x : Number<T>(0);
    case Activation::kSigmoid:
      return Sigmoid(x);
  }
  return x;
}

// out[i] = act(gate[i]) * up[i]
template <class T>
void Gated(Activation activation, std::span<const T> gate, std::span<const T> up,
           std::span<T> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = Activate(activation, gate[i]) * up[i];
  }
}

// out[i] = cap * tanh(x[i] / cap)
template <class T>
void SoftCap(std::span<const T> x, double cap, std::span<T> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = Number<T>(cap) * std::tanh(x[i] / Number<T>(cap));
  }
}

}  // namespace penstock::kernels::ref
