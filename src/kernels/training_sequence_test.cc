// Gradients of short convolutions and delta attention against complex steps of their twins.

#include <gtest/gtest.h>

#include <complex>

#include "kernels/ref/activation.h"
#include "kernels/ref/delta.h"
#include "kernels/training_test_support.h"

namespace penstock::kernels {
namespace {

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
  int64_t rows;
};

// Mild, ordinary and strongest decay; sizes around vectors and chunks.
constexpr Case kCases[] = {{2, 8, true, 0.0F, 19},  {1, 6, true, 3.0F, 16},
                           {2, 4, false, 0.0F, 19}, {1, 5, false, -4.0F, 2},
                           {1, 18, true, 5.0F, 35}, {1, 18, true, -6.0F, 35},
                           {1, 17, false, 3.0F, 33}};

// The inputs of delta attention, filled with random numbers, and where its gradients go.
struct DeltaData {
  explicit DeltaData(const Case& c)
      : width(c.heads * c.dim),
        a_log(1, c.heads, RandomFloats(c.heads, 20)),
        bias(1, width, RandomFloats(width, 21)),
        dout(c.rows, width, RandomFloats(c.rows * width, 22)),
        params{c.heads, c.dim, c.bounded, -5.0F, a_log.tensor(), bias.tensor()},
        sums(static_cast<size_t>(width + c.heads)) {
    const int64_t widths[] = {width, width, width, width, c.heads};
    for (size_t i = 0; i < 5; ++i) {
      in.emplace_back(c.rows, widths[i], RandomFloats(c.rows * widths[i], 3 + i));
      for (float& value : in.back().values()) {
        value = 2 * value + (i == 3 ? c.shift : 0.0F);
      }
      gradient.emplace_back(c.rows, widths[i], 9.0F);
    }
  }

  void Backward(TrainingDevice& device, std::span<const Segment> segments) {
    Scratch workspace(device.TrainDeltaWorkspaceBytes(params, in[0].tensor().rows()));
    DeltaGradients to;
    to.q = gradient[0].tensor();
    to.k = gradient[1].tensor();
    to.v = gradient[2].tensor();
    to.f = gradient[3].tensor();
    to.b = gradient[4].tensor();
    to.sums = sums;
    device.DeltaBackward(params, segments, in[0].tensor(), in[1].tensor(), in[2].tensor(),
                         in[3].tensor(), in[4].tensor(), dout.tensor(), to, workspace.tensor());
  }

  int64_t width;
  std::vector<Filled> in, gradient;
  Filled a_log, bias, dout;
  DeltaParams params;
  std::vector<float> sums;
};

TEST(TrainDelta, GradientsAgreeWithComplexSteps) {
  Training training(1);
  for (const Case& c : kCases) {
    DeltaData data(c);
    std::vector<std::vector<Complex>> x;
    for (Filled& in : data.in) {
      x.push_back(Complexes(in.values()));
    }
    x.push_back(Complexes(data.bias.values()));
    x.push_back(Complexes(data.a_log.values()));
    const Segment segment{.first_row = 0, .rows = c.rows};
    data.Backward(*training.kernels, {&segment, 1});
    const auto f = [&] {
      std::vector<Complex> out(static_cast<size_t>(c.rows * data.width));
      ref::DeltaAttention<Complex>({c.heads, c.dim, c.bounded, -5.0}, x[0], x[1], x[2], x[3], x[4],
                                   x[6], x[5], c.rows, out);
      return out;
    };
    for (size_t i = 0; i < 5; ++i) {
      EXPECT_LT(
          RelativeError(data.gradient[i].values(), ByComplexStep(x[i], data.dout.values(), f)),
          1e-5)
          << "input " << i << " dim " << c.dim << " shift " << c.shift;
    }
    const std::vector<double> bias_want = ByComplexStep(x[5], data.dout.values(), f);
    const std::vector<double> a_want = ByComplexStep(x[6], data.dout.values(), f);
    const std::vector<float> bias_got(data.sums.begin(), data.sums.begin() + data.width);
    const std::vector<float> a_got(data.sums.begin() + data.width, data.sums.end());
    EXPECT_LT(RelativeError(bias_got, bias_want), 1e-5) << c.dim << " shift " << c.shift;
    EXPECT_LT(RelativeError(a_got, a_want), 1e-5) << c.dim << " shift " << c.shift;
  }
}

TEST(TrainDelta, SegmentsAreAlone) {
  const Case both{2, 20, true, 0.0F, 40};
  const Segment segments[] = {{.first_row = 0, .rows = 23}, {.first_row = 23, .rows = 17}};
  DeltaData together(both), apart(both);
  Training training(1);
  together.Backward(*training.kernels, segments);
  std::vector<float> sums(apart.sums.size(), 0.0F);
  for (const Segment& segment : segments) {
    apart.Backward(*training.kernels, {&segment, 1});
    for (size_t i = 0; i < sums.size(); ++i) {
      sums[i] += apart.sums[i];
    }
  }
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(together.gradient[i].values(), apart.gradient[i].values()) << i;
  }
  EXPECT_LT(RelativeError(together.sums, Doubles(sums)), 1e-6);
}

TEST(TrainDelta, ThreadsChangeNoBit) {
  const Segment segments[] = {{.first_row = 0, .rows = 33}, {.first_row = 33, .rows = 27}};
  WithThreads([&](TrainingDevice& device) {
    DeltaData data({5, 40, true, 0.0F, 60});
    data.Backward(device, segments);
    std::vector<std::vector<float>> all{data.sums};
    for (Filled& gradient : data.gradient) {
      all.push_back(gradient.values());
    }
    Scratch workspace(device.TrainDeltaWorkspaceBytes(data.params, 60));
    Filled out(60, data.width);
    device.DeltaForward(data.params, segments, data.in[0].tensor(), data.in[1].tensor(),
                        data.in[2].tensor(), data.in[3].tensor(), data.in[4].tensor(), out.tensor(),
                        workspace.tensor());
    all.push_back(out.values());
    return all;
  });
}

TEST(TrainDelta, ForwardIsThatOfTheTwinForEachSegment) {
  DeltaData data({2, 8, true, 0.0F, 40});
  Filled out(40, 16);
  Training training(1);
  Scratch workspace(training.kernels->TrainDeltaWorkspaceBytes(data.params, 40));
  const Segment segments[] = {{.first_row = 0, .rows = 23}, {.first_row = 23, .rows = 17}};
  training.kernels->DeltaForward(data.params, segments, data.in[0].tensor(), data.in[1].tensor(),
                                 data.in[2].tensor(), data.in[3].tensor(), data.in[4].tensor(),
                                 out.tensor(), workspace.tensor());
  for (const Segment& s : segments) {
    const auto part = [&](Filled& x) {
      const int64_t w = x.tensor().columns();
      return std::vector<double>(x.values().begin() + s.first_row * w,
                                 x.values().begin() + (s.first_row + s.rows) * w);
    };
    std::vector<double> want(static_cast<size_t>(s.rows * 16));
    ref::DeltaAttention<double>(
        {2, 8, true, -5.0}, part(data.in[0]), part(data.in[1]), part(data.in[2]), part(data.in[3]),
        part(data.in[4]), Doubles(data.a_log.values()), Doubles(data.bias.values()), s.rows, want);
    EXPECT_LT(RelativeError(part(out), want), 2e-6);
  }
}

TEST(TrainConv, ForwardAndGradientsAgreeWithTheTwin) {
  for (const int64_t taps : {4, 1, 3}) {
    const int64_t rows = 9;
    const int64_t width = 21;
    Filled x(rows, width, RandomFloats(rows * width, 1)), out(rows, width), dx(rows, width, 7.0F);
    Filled w(width, taps, RandomFloats(width * taps, 2));
    Filled dy(rows, width, RandomFloats(rows * width, 3));
    const ConvShape shape{taps, Activation::kSilu};
    const Segment segment{.first_row = 0, .rows = rows};
    Training training(1);
    TrainingDevice& device = *training.kernels;
    device.ShortConvForward(shape, {&segment, 1}, x.tensor(), w.values(), out.tensor());
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
    device.ShortConvBackwardInput(shape, {&segment, 1}, x.tensor(), w.values(), dy.tensor(), false,
                                  dx.tensor());
    EXPECT_LT(RelativeError(dx.values(), ByComplexStep(cx, dy.values(), f)), 1e-6);
    std::vector<float> dw(w.values().size(), 0.0F);
    device.ShortConvBackwardWeight(shape, {&segment, 1}, x.tensor(), w.values(), dy.tensor(), dw);
    EXPECT_LT(RelativeError(dw, ByComplexStep(cw, dy.values(), f)), 1e-6);
  }
}

TEST(TrainConv, ThreadsAndNeighboursChangeNoBit) {
  const int64_t width = 600;
  const Segment segments[] = {{.first_row = 0, .rows = 33}, {.first_row = 33, .rows = 27}};
  const auto run = [&](TrainingDevice& device, std::span<const Segment> some) {
    Filled x(60, width, RandomFloats(60 * width, 1)), out(60, width), dx(60, width, 7.0F);
    Filled w(width, 4, RandomFloats(width * 4, 2)), dy(60, width, RandomFloats(60 * width, 3));
    std::vector<float> dw(w.values().size(), 0.5F);
    device.ShortConvForward({4}, some, x.tensor(), w.values(), out.tensor());
    device.ShortConvBackwardInput({4}, some, x.tensor(), w.values(), dy.tensor(), true,
                                  dx.tensor());
    device.ShortConvBackwardWeight({4}, some, x.tensor(), w.values(), dy.tensor(), dw);
    return std::vector<std::vector<float>>{out.values(), dx.values(), dw};
  };
  const auto both = WithThreads([&](TrainingDevice& device) { return run(device, segments); });
  Training training(1);
  const auto second = run(*training.kernels, {segments + 1, 1});
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(
        std::equal(both[i].begin() + 33 * width, both[i].end(), second[i].begin() + 33 * width));
  }
}

TEST(TrainSitu, GradientsAgreeWithComplexSteps) {
  Training training(1);
  for (const float linear_beta : {0.0F, 25.0F}) {
    for (const float size : {0.5F, 6.0F, 40.0F}) {
      Filled gate(3, 17, RandomFloats(51, 1)), up(3, 17, RandomFloats(51, 2));
      Filled dy(3, 17, RandomFloats(51, 3)), dgate(3, 17, 5.0F), dup(3, 17, 2.0F);
      for (size_t i = 0; i < 51; ++i) {
        gate.values()[i] *= size;
        up.values()[i] *= size;
      }
      std::vector<Complex> g = Complexes(gate.values());
      std::vector<Complex> u = Complexes(up.values());
      const auto f = [&] {
        std::vector<Complex> y;
        for (size_t i = 0; i < 51; ++i) {
          y.push_back(ref::Situ<Complex>(4, static_cast<double>(linear_beta), g[i], u[i]));
        }
        return y;
      };
      training.kernels->SituBackward({4.0F, linear_beta}, gate.tensor(), up.tensor(), dy.tensor(),
                                     false, dgate.tensor(), true, dup.tensor());
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
