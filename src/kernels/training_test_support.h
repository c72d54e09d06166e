// What the tests of the training kernels share.

#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <complex>
#include <memory>
#include <span>
#include <vector>

#include "kernels/test_support.h"
#include "kernels/training.h"

namespace penstock::kernels {

struct Training {
  explicit Training(int threads)
      : device(MakeDevice(threads)), kernels(CreateCpuTraining(*device)) {}

  std::unique_ptr<Device> device;
  std::unique_ptr<TrainingDevice> kernels;
};

// Runs body(TrainingDevice&) -> numbers with 1, 2 and 3 threads; they must be the same in every
// bit. Returns them.
template <class Body>
auto WithThreads(const Body& body) {
  Training one(1);
  auto result = body(*one.kernels);
  for (const int threads : {2, 3}) {
    Training more(threads);
    const auto other = body(*more.kernels);
    EXPECT_EQ(other, result) << threads << " threads";
  }
  return result;
}

using Complex = std::complex<double>;

// Gradient of loss(x) at x by complex step. loss: span of complex numbers -> complex number.
template <class Loss>
std::vector<double> ComplexStep(std::span<const double> x, const Loss& loss) {
  constexpr double kStep = 1e-30;
  std::vector<Complex> at(x.begin(), x.end());
  std::vector<double> gradient;
  for (Complex& element : at) {
    element += Complex(0, kStep);
    gradient.push_back(loss(std::span<const Complex>(at)).imag() / kStep);
    element = element.real();
  }
  return gradient;
}

template <class T>
std::vector<T> Cast(std::span<const double> x) {
  return {x.begin(), x.end()};
}

// Sum of a[i] * b[i].
inline Complex Inner(std::span<const Complex> a, std::span<const double> b) {
  Complex sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    sum += a[i] * b[i];
  }
  return sum;
}

inline std::vector<double> RandomDoubles(int64_t count, uint64_t seed) {
  return Doubles(RandomFloats(count, seed));
}

}  // namespace penstock::kernels
