// Gradients of short convolutions and delta attention against complex steps of their twins.

#include "kernels/training_sequence.h"

#include <gtest/gtest.h>

#include <complex>

#include "kernels/ref/activation.h"
#include "kernels/ref/delta.h"
#include "kernels/test_support.h"

namespace penstock::kernels {
namespace {

using Complex = std::complex<double>;
constexpr double kStep = 1e-30;

std::vector<Complex> Complexes(std::span<const float> x) {
  return {x.begin(), x.end()};
}

// d sum(weights * f(x)) / dx for each element of `x`, f being a function of all inputs.
template <class F>
std::vector<double> ByComplexStep(std::vector<Complex>& x, std::span<const float> weights,
                                  const F& f) {
  std::vector<double> gradient;
  for (Complex& element : x) {
    const Complex saved = element;
    element += Complex(0, kStep);
    const std::vector<Complex> y = f();
    double sum = 0;
    for (size_t i = 0; i < y.size(); ++i) {
      sum += static_cast<double>(weights[i]) * y[i].imag();
    }
    gradient.push_back(sum / kStep);
    element = saved;
  }
  return gradient;
}

struct Case {
  int64_t heads;
  int64_t dim;
  bool bounded;
  float shift;  // of f: pushes the decay to its ends
};

constexpr Case kCases[] = {
    {2, 8, true, 0.0F}, {1, 6, true, 3.0F}, {2, 4, false, 0.0F}, {1, 5, false, -4.0F}};

TEST(TrainDelta, GradientsAgreeWithComplexSteps) {
  for (const Case& c : kCases) {
    const int64_t rows = 19;  // one chunk and a part
    const int64_t width = c.heads * c.dim;
    const int64_t widths[] = {width, width, width, width, c.heads};
    std::vector<Filled> in;
    std::vector<Filled> gradient;
    std::vector<std::vector<Complex>> x;
    for (size_t i = 0; i < 5; ++i) {
      in.emplace_back(rows, widths[i], RandomFloats(rows * widths[i], 3 + i));
      for (float& value : in.back().values()) {
        value = 2 * value + (i == 3 ? c.shift : 0.0F);
      }
      gradient.emplace_back(rows, widths[i], 9.0F);
      x.push_back(Complexes(in.back().values()));
    }
    Filled a_log(1, c.heads, RandomFloats(c.heads, 20));
    Filled bias(1, width, RandomFloats(width, 21));
    Filled dout(rows, width, RandomFloats(rows * width, 22));
    x.push_back(Complexes(bias.values()));
    x.push_back(Complexes(a_log.values()));
    const DeltaParams params{c.heads, c.dim, c.bounded, -5.0F, a_log.tensor(), bias.tensor()};
    const Segment segment{.first_row = 0, .rows = rows};
    std::vector<float> sums(static_cast<size_t>(width + c.heads));
    std::vector<float> scratch(static_cast<size_t>(TrainDeltaBackwardFloats(c.dim, rows)));
    DeltaGradients to;
    to.q = gradient[0].tensor();
    to.k = gradient[1].tensor();
    to.v = gradient[2].tensor();
    to.f = gradient[3].tensor();
    to.b = gradient[4].tensor();
    to.sums = sums;
    TrainDeltaBackward(params, {&segment, 1}, in[0].tensor(), in[1].tensor(), in[2].tensor(),
                       in[3].tensor(), in[4].tensor(), dout.tensor(), to, scratch.data());
    const auto f = [&] {
      std::vector<Complex> out(static_cast<size_t>(rows * width));
      ref::DeltaAttention<Complex>({c.heads, c.dim, c.bounded, -5.0}, x[0], x[1], x[2], x[3], x[4],
                                   x[6], x[5], rows, out);
      return out;
    };
    for (size_t i = 0; i < 5; ++i) {
      EXPECT_LT(RelativeError(gradient[i].values(), ByComplexStep(x[i], dout.values(), f)), 1e-5)
          << "input " << i << " dim " << c.dim;
    }
    const std::vector<double> bias_want = ByComplexStep(x[5], dout.values(), f);
    const std::vector<double> a_want = ByComplexStep(x[6], dout.values(), f);
    const std::vector<float> bias_got(sums.begin(), sums.begin() + width);
    const std::vector<float> a_got(sums.begin() + width, sums.end());
    EXPECT_LT(RelativeError(bias_got, bias_want), 1e-5) << c.dim;
    EXPECT_LT(RelativeError(a_got, a_want), 1e-5) << c.dim;
  }
}

TEST(TrainDelta, ForwardIsThatOfTheTwinForEachSegment) {
  const int64_t rows = 40;
  Filled q(rows, 16, RandomFloats(rows * 16, 1)), k(rows, 16, RandomFloats(rows * 16, 2)),
      v(rows, 16, RandomFloats(rows * 16, 3)), f(rows, 16, RandomFloats(rows * 16, 4)),
      b(rows, 2, RandomFloats(rows * 2, 5)), out(rows, 16), a_log(1, 2, RandomFloats(2, 6)),
      bias(1, 16, RandomFloats(16, 7));
  const DeltaParams params{2, 8, true, -5.0F, a_log.tensor(), bias.tensor()};
  const Segment segments[] = {{.first_row = 0, .rows = 23}, {.first_row = 23, .rows = 17}};
  std::vector<float> scratch(static_cast<size_t>(TrainDeltaForwardFloats(8)));
  TrainDeltaForward(params, segments, q.tensor(), k.tensor(), v.tensor(), f.tensor(), b.tensor(),
                    out.tensor(), scratch.data());
  for (const Segment& s : segments) {
    const auto part = [&](Filled& x) {
      const int64_t w = x.tensor().columns();
      return std::vector<double>(x.values().begin() + s.first_row * w,
                                 x.values().begin() + (s.first_row + s.rows) * w);
    };
    std::vector<double> want(static_cast<size_t>(s.rows * 16));
    ref::DeltaAttention<double>({2, 8, true, -5.0}, part(q), part(k), part(v), part(f), part(b),
                                Doubles(a_log.values()), Doubles(bias.values()), s.rows, want);
    EXPECT_LT(RelativeError(part(out), want), 2e-6);
  }
}

TEST(TrainConv, ForwardAndGradientsAgreeWithTheTwin) {
  const int64_t rows = 9;
  const int64_t width = 5;
  const int64_t taps = 4;
  Filled x(rows, width, RandomFloats(rows * width, 1)), out(rows, width), dx(rows, width, 7.0F);
  Filled w(width, taps, RandomFloats(width * taps, 2));
  Filled dy(rows, width, RandomFloats(rows * width, 3));
  const ConvShape shape{taps, Activation::kSilu};
  const Segment segment{.first_row = 0, .rows = rows};
  TrainConvForward(shape, {&segment, 1}, x.tensor(), w.values(), out.tensor());
  std::vector<Complex> cx = Complexes(x.values());
  std::vector<Complex> cw = Complexes(w.values());
  const auto f = [&] {
    std::vector<Complex> y(static_cast<size_t>(rows * width));
    ref::ShortConv<Complex>(cx, cw, rows, width, taps, Activation::kSilu, y);
    return y;
  };
  const std::vector<Complex> want = f();
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(out.values()[i], want[i].real(), 1e-6);
  }
  TrainConvBackwardInput(shape, {&segment, 1}, x.tensor(), w.values(), dy.tensor(), false,
                         dx.tensor());
  EXPECT_LT(RelativeError(dx.values(), ByComplexStep(cx, dy.values(), f)), 1e-6);
  std::vector<float> dw(w.values().size(), 0.0F);
  TrainConvBackwardWeight(shape, {&segment, 1}, x.tensor(), w.values(), dy.tensor(), dw);
  EXPECT_LT(RelativeError(dw, ByComplexStep(cw, dy.values(), f)), 1e-6);
}

TEST(TrainSitu, GradientsAgreeWithComplexSteps) {
  for (const float linear_beta : {0.0F, 25.0F}) {
    for (const float size : {0.5F, 6.0F, 40.0F}) {
      Filled gate(3, 7, RandomFloats(21, 1)), up(3, 7, RandomFloats(21, 2));
      Filled dy(3, 7, RandomFloats(21, 3)), dgate(3, 7, 5.0F), dup(3, 7, 2.0F);
      for (size_t i = 0; i < 21; ++i) {
        gate.values()[i] *= size;
        up.values()[i] *= size;
      }
      std::vector<Complex> g = Complexes(gate.values());
      std::vector<Complex> u = Complexes(up.values());
      const auto f = [&] {
        std::vector<Complex> y;
        for (size_t i = 0; i < 21; ++i) {
          y.push_back(ref::Situ<Complex>(4, static_cast<double>(linear_beta), g[i], u[i]));
        }
        return y;
      };
      TrainSituBackward({4.0F, linear_beta}, gate.tensor(), up.tensor(), dy.tensor(), false,
                        dgate.tensor(), true, dup.tensor());
      for (float& x : dup.values()) {
        x -= 2.0F;  // what stood there
      }
      EXPECT_LT(RelativeError(dgate.values(), ByComplexStep(g, dy.values(), f)), 1e-5) << size;
      EXPECT_LT(RelativeError(dup.values(), ByComplexStep(u, dy.values(), f)), 1e-5) << size;
    }
  }
}

}  // namespace
}  // namespace penstock::kernels
