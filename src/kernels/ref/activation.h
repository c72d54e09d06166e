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
    case Activation::kSitu:
      break;  // a gated unit
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

template <class T>
T Situ(double beta, double linear_beta, const T& gate, const T& up) {
  const T left = Number<T>(beta) * std::tanh(gate / Number<T>(beta)) * Sigmoid(gate);
  return linear_beta > 0 ? left * Number<T>(linear_beta) * std::tanh(up / Number<T>(linear_beta))
                         : left * up;
}

// out[i] = cap * tanh(x[i] / cap)
template <class T>
void SoftCap(std::span<const T> x, double cap, std::span<T> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = Number<T>(cap) * std::tanh(x[i] / Number<T>(cap));
  }
}

// Derivative of Activate; 0 at the corner of the rectifiers.
template <class T>
T ActivateSlope(Activation activation, const T& x) {
  const T one = Number<T>(1);
  switch (activation) {
    case Activation::kSilu: {
      const T s = Sigmoid(x);
      return s + x * s * (one - s);
    }
    case Activation::kGeluTanh: {
      const T factor = Number<T>(std::sqrt(2.0 / std::numbers::pi));
      const T tanh = std::tanh(factor * (x + Number<T>(0.044715) * x * x * x));
      const T inner = factor * (one + Number<T>(3 * 0.044715) * x * x);
      return Number<T>(0.5) * (one + tanh) + Number<T>(0.5) * x * (one - tanh * tanh) * inner;
    }
    case Activation::kGelu: {
      const T share = Number<T>(0.5) * (one + Erf(x * Number<T>(1.0 / std::numbers::sqrt2)));
      const T density = std::exp(Number<T>(-0.5) * x * x) *
                        Number<T>(std::numbers::inv_sqrtpi / std::numbers::sqrt2);
      return share + x * density;
    }
    case Activation::kRelu:
      return RealPart(x) > 0 ? one : Number<T>(0);
    case Activation::kReluSquared:
      return RealPart(x) > 0 ? Number<T>(2) * x : Number<T>(0);
    case Activation::kSigmoid:
      return Sigmoid(x) * (one - Sigmoid(x));
    case Activation::kSitu:
      break;  // a gated unit
  }
  return one;
}

// Adds the gradients of Gated's inputs.
template <class T>
void GatedBackward(Activation activation, std::span<const T> gate, std::span<const T> up,
                   std::span<const T> dy, std::span<T> dgate, std::span<T> dup) {
  for (size_t i = 0; i < dy.size(); ++i) {
    dgate[i] += dy[i] * up[i] * ActivateSlope(activation, gate[i]);
    dup[i] += dy[i] * Activate(activation, gate[i]);
  }
}

// Adds the gradient of SoftCap's input.
template <class T>
void SoftCapBackward(std::span<const T> x, double cap, std::span<const T> dy, std::span<T> dx) {
  for (size_t i = 0; i < dy.size(); ++i) {
    const T t = std::tanh(x[i] / Number<T>(cap));
    dx[i] += dy[i] * (Number<T>(1) - t * t);
  }
}

}  // namespace penstock::kernels::ref
