// Gradients of reads over depth and of multi-stream residuals against complex step of the forward
// twins.

#include "kernels/ref/depth.h"
#include "kernels/training_test_support.h"

namespace penstock::kernels {
namespace {

// Sources, query and key norm side by side in one vector of doubles.
struct ReadProblem {
  ReadProblem(int64_t count_in, int64_t rows_in, int64_t columns_in, bool with_norm)
      : count(count_in), rows(rows_in), columns(columns_in), norm(with_norm) {
    for (int64_t j = 0; j < count; ++j) {
      sources.emplace_back(rows, columns, RandomFloats(rows * columns, 10 + j));
    }
    query = Filled(1, columns, RandomFloats(columns, 1));
    key_norm = Filled(1, columns, RandomFloats(columns, 2));
    dy = Filled(rows, columns, RandomFloats(rows * columns, 3));
  }

  // Gradients of all inputs in the order sources, query, key norm.
  std::vector<double> Reference() const {
    std::vector<double> at;
    for (const Filled& s : sources) {
      at.insert(at.end(), s.values().begin(), s.values().end());
    }
    at.insert(at.end(), query.values().begin(), query.values().end());
    at.insert(at.end(), key_norm.values().begin(), key_norm.values().end());
    const auto size = static_cast<size_t>(rows * columns);
    const auto width = static_cast<size_t>(columns);
    const std::vector<double> g = Doubles(dy.values());
    return ComplexStep(at, [&](std::span<const Complex> x) {
      std::vector<std::span<const Complex>> views;
      for (size_t j = 0; j < static_cast<size_t>(count); ++j) {
        views.push_back(x.subspan(j * size, size));
      }
      const auto q = x.subspan(size * views.size(), width);
      const auto k = x.subspan(size * views.size() + width, norm ? width : 0);
      std::vector<Complex> out(size);
      ref::DepthRead<Complex>(views, q, k, 1e-5F, columns, out);
      return Inner(out, g);
    });
  }

  std::vector<Tensor> Tensors() {
    std::vector<Tensor> tensors;
    for (Filled& s : sources) {
      tensors.push_back(s.tensor());
    }
    return tensors;
  }

  // Gradients by the kernels, each added to `before`; sources in `skipped` are not wanted.
  std::vector<float> Gradients(TrainingDevice& kernels, bool accumulate, float before) {
    std::vector<Filled> into(sources.size(), Filled(rows, columns, before));
    std::vector<Tensor> dsources;
    for (Filled& f : into) {
      dsources.push_back(f.tensor());
    }
    Filled factors(rows, 3 * count);
    const Tensor k = norm ? key_norm.tensor() : Tensor();
    const std::vector<uint8_t> flags(sources.size(), accumulate ? 1 : 0);
    kernels.DepthReadBackwardInput(Tensors(), query.tensor(), k, 1e-5F, dy.tensor(), flags,
                                   dsources, factors.tensor());
    Filled dquery(1, columns, before);
    Filled dnorm(1, columns, before);
    kernels.DepthReadBackwardWeight(Tensors(), query.tensor(), k, factors.tensor(), dquery.tensor(),
                                    norm ? dnorm.tensor() : Tensor());
    std::vector<float> all;
    for (const Filled& f : into) {
      all.insert(all.end(), f.values().begin(), f.values().end());
    }
    all.insert(all.end(), dquery.values().begin(), dquery.values().end());
    all.insert(all.end(), dnorm.values().begin(), dnorm.values().end());
    return all;
  }

  int64_t count;
  int64_t rows;
  int64_t columns;
  bool norm;
  std::vector<Filled> sources;
  Filled query{0, 0}, key_norm{0, 0}, dy{0, 0};
};

TEST(TrainDepth, GradientsOfReadsAgreeWithComplexStep) {
  for (const int64_t columns : {5, 33, 64}) {
    for (const int64_t count : {1, 2, 7}) {
      for (const bool norm : {false, true}) {
        ReadProblem problem(count, 5, columns, norm);
        const auto got = WithThreads(
            [&](TrainingDevice& kernels) { return problem.Gradients(kernels, false, 0.0F); });
        EXPECT_LT(RelativeError(got, problem.Reference()), 2e-6)
            << count << " sources of " << columns;
      }
    }
  }
}

TEST(TrainDepth, GradientsOfSourcesAreAddedAsOneTerm) {
  ReadProblem problem(4, 66, 130, true);
  Training t(2);
  const std::vector<float> fresh = problem.Gradients(*t.kernels, false, 0.0F);
  const std::vector<float> added = problem.Gradients(*t.kernels, true, 3.0F);
  for (size_t i = 0; i < fresh.size(); ++i) {
    ASSERT_EQ(added[i], 3.0F + fresh[i]) << i;
  }
}

TEST(TrainDepth, AZeroQueryLearnsAndLeavesTheNormAlone) {
  ReadProblem problem(3, 8, 40, true);
  std::ranges::fill(problem.query.values(), 0.0F);
  Training t(1);
  const std::vector<float> got = problem.Gradients(*t.kernels, false, 0.0F);
  const auto query = std::span(got).last(80).first(40);
  const auto norm = std::span(got).last(40);
  EXPECT_TRUE(std::ranges::any_of(query, [](float g) { return g != 0.0F; }));
  EXPECT_TRUE(std::ranges::all_of(norm, [](float g) { return g == 0.0F; }));
}

// One sublayer of a multi-stream residual: coefficients, read, y = 2 h, write.
struct StreamProblem {
  StreamProblem(int64_t streams, int64_t rows_in, int64_t width_in, bool is_dynamic)
      : n(streams), rows(rows_in), width(width_in), dynamic(is_dynamic) {
    x = Filled(rows, n * width, RandomFloats(rows * n * width, 1));
    base = Filled(n, n + 2, RandomFloats(n * (n + 2), 2));
    mix = Filled(n + 2, width, RandomFloats((n + 2) * width, 3));
    norm = Filled(1, width, RandomFloats(width, 4));
    scale = Filled(1, 2, {0.7F, -0.4F});
    dout = Filled(rows, n * width, RandomFloats(rows * n * width, 5));
  }

  StreamParams Params() {
    StreamParams params{.streams = n, .base = base.tensor(), .epsilon = 1e-5F};
    if (dynamic) {
      params.mix = mix.tensor();
      params.norm = norm.tensor();
      params.scale = scale.tensor();
    }
    return params;
  }

  std::vector<const Filled*> Inputs() const {
    std::vector<const Filled*> inputs = {&x, &base};
    if (dynamic) {
      inputs.insert(inputs.end(), {&mix, &norm, &scale});
    }
    return inputs;
  }

  template <class T>
  std::vector<T> Output(std::span<const T> at) const {
    std::vector<std::span<const T>> parts;
    for (const Filled* input : Inputs()) {
      parts.push_back(at.first(input->values().size()));
      at = at.subspan(input->values().size());
    }
    parts.resize(5);
    std::vector<T> all;
    const auto wide = static_cast<size_t>(n * width);
    for (int64_t r = 0; r < rows; ++r) {
      const auto row = parts[0].subspan(static_cast<size_t>(r) * wide, wide);
      std::vector<T> shares(static_cast<size_t>(n * (n + 2)));
      ref::StreamWeights<T>(n, parts[1], parts[2], parts[3], parts[4], 1e-5F, row, shares);
      std::vector<T> h(static_cast<size_t>(width));
      ref::StreamRead<T>(n, row, shares, h);
      for (T& element : h) {
        element *= 2.0;
      }
      std::vector<T> out(wide);
      ref::StreamWrite<T>(n, row, shares, h, out);
      all.insert(all.end(), out.begin(), out.end());
    }
    return all;
  }

  std::vector<double> All() const {
    std::vector<double> at;
    for (const Filled* input : Inputs()) {
      at.insert(at.end(), input->values().begin(), input->values().end());
    }
    return at;
  }

  std::vector<float> Forward(TrainingDevice& kernels) {
    Device& device = kernels.device();
    c = Filled(rows, n * (n + 2));
    y = Filled(rows, width);
    Filled out(rows, n * width);
    device.StreamWeights(Params(), x.tensor(), c.tensor());
    device.StreamRead(n, x.tensor(), c.tensor(), y.tensor());
    device.Scale(y.tensor(), 2.0F, y.tensor());
    device.StreamWrite(n, x.tensor(), c.tensor(), y.tensor(), out.tensor());
    return out.values();
  }

  std::vector<float> Gradients(TrainingDevice& kernels) {
    Forward(kernels);
    Filled dx(rows, n * width);
    Filled dc(rows, n * (n + 2));
    Filled dy(rows, width);
    kernels.StreamWriteBackward(n, x.tensor(), c.tensor(), y.tensor(), dout.tensor(), false,
                                dx.tensor(), false, dc.tensor(), false, dy.tensor());
    kernels.device().Scale(dy.tensor(), 2.0F, dy.tensor());
    kernels.StreamReadBackward(n, x.tensor(), c.tensor(), dy.tensor(), true, dx.tensor(), true,
                               dc.tensor());
    Filled factors(rows, 2 * n * (n + 2));
    if (dynamic) {
      kernels.StreamWeightsBackwardInput(Params(), x.tensor(), dc.tensor(), true, dx.tensor(),
                                         factors.tensor());
    }
    Filled dbase(n, n + 2);
    Filled dmix(n + 2, width);
    Filled dnorm(1, width);
    Filled dscale(1, 2);
    kernels.StreamWeightsBackwardWeight(Params(), x.tensor(), dc.tensor(), factors.tensor(),
                                        dbase.tensor(), dmix.tensor(), dnorm.tensor(),
                                        dscale.tensor());
    std::vector<float> all = dx.values();
    all.insert(all.end(), dbase.values().begin(), dbase.values().end());
    if (dynamic) {
      for (const Filled* part : {&dmix, &dnorm, &dscale}) {
        all.insert(all.end(), part->values().begin(), part->values().end());
      }
    }
    return all;
  }

  int64_t n;
  int64_t rows;
  int64_t width;
  bool dynamic;
  Filled x{0, 0}, base{0, 0}, mix{0, 0}, norm{0, 0}, scale{0, 0}, dout{0, 0}, c{0, 0}, y{0, 0};
};

TEST(TrainDepth, StreamsAgreeWithTheirTwins) {
  for (const int64_t streams : {1, 2, 4}) {
    for (const bool dynamic : {false, true}) {
      for (const int64_t width : {3, 37}) {
        StreamProblem problem(streams, 5, width, dynamic);
        const auto out =
            WithThreads([&](TrainingDevice& kernels) { return problem.Forward(kernels); });
        EXPECT_LT(RelativeError(out, problem.Output<double>(problem.All())), 1e-6);
        const auto gradients =
            WithThreads([&](TrainingDevice& kernels) { return problem.Gradients(kernels); });
        const std::vector<double> want =
            ComplexStep(problem.All(), [&](std::span<const Complex> at) {
              return Inner(problem.Output<Complex>(at), Doubles(problem.dout.values()));
            });
        EXPECT_LT(RelativeError(gradients, want), 2e-6)
            << streams << " streams of " << width << (dynamic ? ", dynamic" : ", static");
      }
    }
  }
}

TEST(TrainDepth, WithoutAccumulatingNothingOfTheOldGradientIsLeft) {
  StreamProblem problem(3, 4, 20, false);
  Training t(1);
  problem.Forward(*t.kernels);
  Filled dx(4, 60, 9.0F);
  Filled dc(4, 15, 9.0F);
  Filled dh(4, 20, 1.0F);
  t.kernels->StreamReadBackward(3, problem.x.tensor(), problem.c.tensor(), dh.tensor(), false,
                                dx.tensor(), false, dc.tensor());
  for (int64_t r = 0; r < 4; ++r) {
    for (int64_t k = 0; k < 3; ++k) {
      for (int64_t j = 1; j < 5; ++j) {
        EXPECT_EQ(dc.row(r)[static_cast<size_t>(k * 5 + j)], 0.0F);
      }
      EXPECT_EQ(dx.row(r)[static_cast<size_t>(k * 20)],
                problem.c.row(r)[static_cast<size_t>(k * 5)]);
    }
  }
}

}  // namespace
}  // namespace penstock::kernels
