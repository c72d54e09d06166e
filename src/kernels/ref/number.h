// Number types of the scalar twins: float, double, std::complex<double>.
//
// With complex numbers a twin's derivative comes by complex step: Im f(x + i h) / h (Squire and
// Trapp, 1998). So twins are analytic in their inputs; where a real function compares or takes a
// magnitude, they look at the real part only.

#pragma once

#include <cmath>
#include <complex>

namespace penstock::kernels::ref {

template <class T>
struct RealOf {
  using Type = T;
};

template <class T>
struct RealOf<std::complex<T>> {
  using Type = T;
};

template <class T>
using Real = typename RealOf<T>::Type;

template <class T>
Real<T> RealPart(const T& x) {
  return std::real(x);
}

// A real constant in the number type.
template <class T>
T Number(double x) {
  return T(static_cast<Real<T>>(x));
}

}  // namespace penstock::kernels::ref
