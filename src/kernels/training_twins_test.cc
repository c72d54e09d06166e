// The scalar twins of gradients against complex steps of the forward twins.

#include "kernels/ref/activation.h"
#include "kernels/ref/attention.h"
#include "kernels/ref/elementwise.h"
#include "kernels/ref/linear.h"
#include "kernels/ref/loss.h"
#include "kernels/ref/moe.h"
#include "kernels/ref/norm.h"
#include "kernels/ref/rope.h"
#include "kernels/training_test_support.h"

namespace penstock::kernels {
namespace {

constexpr double kTolerance = 1e-11;

void ExpectNear(const std::vector<double>& got, const std::vector<double>& want) {
  ASSERT_EQ(got.size(), want.size());
  EXPECT_LT(RelativeError(got, want), kTolerance);
}

TEST(GradientTwins, OfActivationsAreTheirComplexSteps) {
  for (const Activation activation :
       {Activation::kSilu, Activation::kGeluTanh, Activation::kGelu, Activation::kRelu,
        Activation::kReluSquared, Activation::kSigmoid}) {
    for (const double at : {-4.0, -0.3, 0.2, 1.0, 6.0}) {
      const double step = ref::Activate<Complex>(activation, {at, 1e-30}).imag() / 1e-30;
      EXPECT_NEAR(ref::ActivateSlope<double>(activation, at), step, 1e-12)
          << static_cast<int>(activation) << " at " << at;
    }
  }
}

TEST(GradientTwins, OfTheGatedUnitAndTheSoftCap) {
  const auto gate = RandomDoubles(7, 1);
  const auto up = RandomDoubles(7, 2);
  const auto dy = RandomDoubles(7, 3);
  std::vector<double> dgate(7);
  std::vector<double> dup(7);
  ref::GatedBackward<double>(Activation::kSilu, gate, up, dy, dgate, dup);
  const auto run = [&](std::span<const Complex> g, std::span<const Complex> u) {
    std::vector<Complex> out(7);
    ref::Gated<Complex>(Activation::kSilu, g, u, out);
    return Inner(out, dy);
  };
  ExpectNear(dgate, ComplexStep(gate, [&](auto g) { return run(g, Cast<Complex>(up)); }));
  ExpectNear(dup, ComplexStep(up, [&](auto u) { return run(Cast<Complex>(gate), u); }));
  std::vector<double> dx(7);
  ref::SoftCapBackward<double>(gate, 0.7, dy, dx);
  ExpectNear(dx, ComplexStep(gate, [&](std::span<const Complex> x) {
               std::vector<Complex> out(7);
               ref::SoftCap<Complex>(x, 0.7, out);
               return Inner(out, dy);
             }));
}

TEST(GradientTwins, OfTheNormWithGroupsAndAddOne) {
  for (const bool add_one : {false, true}) {
    const auto x = RandomDoubles(24, 1);
    const auto weight = RandomDoubles(6, 2);
    const auto dy = RandomDoubles(24, 3);
    std::vector<double> dx(24);
    std::vector<double> dweight(6);
    ref::RmsNormBackward<double>(x, weight, 1e-3, add_one, 6, dy, dx, dweight);
    const auto run = [&](std::span<const Complex> a, std::span<const Complex> w) {
      std::vector<Complex> out(24);
      ref::RmsNorm<Complex>(a, w, 1e-3, add_one, 6, out);
      return Inner(out, dy);
    };
    ExpectNear(dx, ComplexStep(x, [&](auto a) { return run(a, Cast<Complex>(weight)); }));
    ExpectNear(dweight, ComplexStep(weight, [&](auto w) { return run(Cast<Complex>(x), w); }));
  }
}

TEST(GradientTwins, OfRope) {
  const std::vector<float> frequencies = {1.0F, 0.3F, 0.01F};
  for (const bool interleaved : {false, true}) {
    const auto x = RandomDoubles(8, 1);
    const auto dy = RandomDoubles(8, 2);
    std::vector<double> dx(8);
    ref::RopeBackward<double>(dy, 17, frequencies, interleaved, 1.25, dx);
    ExpectNear(dx, ComplexStep(x, [&](std::span<const Complex> a) {
                 std::vector<Complex> out(8);
                 ref::Rope<Complex>(a, 17, frequencies, interleaved, 1.25, out);
                 return Inner(out, dy);
               }));
  }
}

TEST(GradientTwins, OfTheProductAndTheEmbedding) {
  const auto weight = RandomDoubles(12, 1);
  const auto x = RandomDoubles(6, 2);
  const auto dy = RandomDoubles(8, 3);
  std::vector<double> dx(6);
  std::vector<double> dweight(12);
  ref::LinearBackward<double>(weight, x, dy, 2, 3, 4, dx, dweight);
  const auto run = [&](std::span<const Complex> w, std::span<const Complex> a) {
    std::vector<Complex> out(8);
    ref::Linear<Complex>(w, a, {}, 2, 3, 4, out);
    return Inner(out, dy);
  };
  ExpectNear(dx, ComplexStep(x, [&](auto a) { return run(Cast<Complex>(weight), a); }));
  ExpectNear(dweight, ComplexStep(weight, [&](auto w) { return run(w, Cast<Complex>(x)); }));

  const std::vector<int32_t> ids = {2, 0, 2, 3};
  std::vector<double> dtable(12);
  const auto slopes = RandomDoubles(12, 4);
  ref::EmbedBackward<double>(ids, 3, 1.5, slopes, dtable);
  ExpectNear(dtable, ComplexStep(weight, [&](std::span<const Complex> table) {
               std::vector<Complex> out(12);
               ref::Embed<Complex>(table, 3, ids, 1.5, out);
               return Inner(out, slopes);
             }));
}

TEST(GradientTwins, OfTheLoss) {
  const auto x = RandomDoubles(9, 1);
  std::vector<double> dx(9);
  ref::CrossEntropyBackward<double>(x, 4, 0.25, dx);
  ExpectNear(dx, ComplexStep(x, [&](std::span<const Complex> a) {
               return 0.25 * ref::CrossEntropy<Complex>(a, 4);
             }));
  ref::CrossEntropyBackward<double>(x, -1, 0.25, dx);
  EXPECT_EQ(dx, std::vector<double>(9));
}

TEST(GradientTwins, OfAttentionWithWindowCapAndSharedKeys) {
  for (const float cap : {0.0F, 1.5F}) {
    for (const int64_t window : {0, 3}) {
      const AttentionParams params{4, 2, 3, 2, 0.7F, cap, window};
      constexpr int64_t kRows = 4;
      constexpr int64_t kBefore = 2;
      constexpr int64_t kKeys = kRows + kBefore;
      const auto q = RandomDoubles(kRows * 12, 1);
      const auto k = RandomDoubles(kKeys * 6, 2);
      const auto v = RandomDoubles(kKeys * 4, 3);
      const auto dout = RandomDoubles(kRows * 8, 4);
      std::vector<double> dq(q.size());
      std::vector<double> dk(k.size());
      std::vector<double> dv(v.size());
      ref::AttentionBackward<double>(params, q, k, v, kRows, kBefore, dout, dq, dk, dv);
      const auto run = [&](std::span<const Complex> cq, std::span<const Complex> ck,
                           std::span<const Complex> cv) {
        std::vector<Complex> out(dout.size());
        ref::Attention<Complex>(params, cq, ck, cv, kRows, kBefore, out);
        return Inner(out, dout);
      };
      const auto cq = Cast<Complex>(q);
      const auto ck = Cast<Complex>(k);
      const auto cv = Cast<Complex>(v);
      ExpectNear(dq, ComplexStep(q, [&](auto a) { return run(a, ck, cv); }));
      ExpectNear(dk, ComplexStep(k, [&](auto a) { return run(cq, a, cv); }));
      ExpectNear(dv, ComplexStep(v, [&](auto a) { return run(cq, ck, a); }));
    }
  }
}

class MoeTwin : public ::testing::TestWithParam<std::pair<bool, bool>> {};

TEST_P(MoeTwin, HasItsGradientWhileTheChoiceStays) {
  constexpr int64_t kExperts = 4;
  constexpr int64_t kWidth = 3;
  constexpr int64_t kFfn = 2;
  constexpr int64_t kRouted = 5;
  ref::MoeChoice choice;
  choice.sigmoid = GetParam().first;
  choice.normalize = GetParam().second;
  choice.chosen = 2;
  choice.weight_scale = 1.5;
  // All numbers in one vector: x, what the router reads, router, then each expert's two matrices.
  constexpr int64_t kInputs = kWidth + kRouted;
  const auto all = RandomDoubles(kInputs + kExperts * (kRouted + 3 * kFfn * kWidth), 5);
  const auto bias = RandomDoubles(kExperts, 6);
  const auto dy = RandomDoubles(kWidth, 7);
  const auto weights_of = [&]<class T>(std::span<const T> numbers, std::span<const T> b) {
    ref::MoeWeights<T> weights;
    const auto take = [&numbers](int64_t count) {
      const auto taken = numbers.first(static_cast<size_t>(count));
      numbers = numbers.subspan(static_cast<size_t>(count));
      return taken;
    };
    weights.router = take(kExperts * kRouted);
    weights.router_bias = b;
    for (int64_t e = 0; e < kExperts; ++e) {
      weights.gate_up.push_back(take(2 * kFfn * kWidth));
      weights.down.push_back(take(kWidth * kFfn));
    }
    return weights;
  };
  const auto step = ComplexStep(all, [&](std::span<const Complex> numbers) {
    const auto b = Cast<Complex>(bias);
    std::vector<Complex> out(kWidth);
    ref::Moe<Complex>(weights_of(numbers.subspan(kInputs), std::span<const Complex>(b)), choice,
                      Activation::kSilu, kFfn, numbers.first(kWidth), out,
                      numbers.subspan(kWidth, kRouted));
    return Inner(out, dy);
  });
  const std::span<const double> numbers(all);
  ref::MoeGradients<double> gradients;
  gradients.router.resize(kExperts * kRouted);
  gradients.gate_up.assign(kExperts, std::vector<double>(2 * kFfn * kWidth));
  gradients.down.assign(kExperts, std::vector<double>(kWidth * kFfn));
  std::vector<double> got(kInputs);
  ref::MoeBackward<double>(weights_of(numbers.subspan(kInputs), std::span<const double>(bias)),
                           choice, Activation::kSilu, kFfn, numbers.first(kWidth),
                           numbers.subspan(kWidth, kRouted), dy, std::span(got).first(kWidth),
                           std::span(got).subspan(kWidth), gradients);
  got.insert(got.end(), gradients.router.begin(), gradients.router.end());
  for (size_t e = 0; e < kExperts; ++e) {
    got.insert(got.end(), gradients.gate_up[e].begin(), gradients.gate_up[e].end());
    got.insert(got.end(), gradients.down[e].begin(), gradients.down[e].end());
  }
  ExpectNear(got, step);
}

INSTANTIATE_TEST_SUITE_P(GradientTwins, MoeTwin,
                         ::testing::Values(std::pair(false, false), std::pair(false, true),
                                           std::pair(true, false), std::pair(true, true)));

}  // namespace
}  // namespace penstock::kernels
