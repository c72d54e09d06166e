// Row-wise operations against their scalar twins in double.

#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "kernels/ref/activation.h"
#include "kernels/ref/elementwise.h"
#include "kernels/ref/norm.h"
#include "kernels/ref/rope.h"
#include "kernels/test_support.h"

namespace penstock::kernels {
namespace {

constexpr Activation kActivations[] = {Activation::kSilu, Activation::kGeluTanh, Activation::kGelu,
                                       Activation::kRelu, Activation::kReluSquared};

// Numbers over many magnitudes, of both signs.
std::vector<float> WideFloats(int64_t count, uint64_t seed) {
  std::vector<float> values = RandomFloats(count, seed);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] *= std::pow(10.0F, static_cast<float>(i % 9) - 6.0F);
  }
  return values;
}

TEST(RmsNorm, AgreesWithTheScalarTwin) {
  auto device = MakeDevice(2);
  for (const int64_t columns : {1, 36, 64, 577, 2048}) {
    for (const bool add_one : {false, true}) {
      Filled x(9, columns, RandomFloats(9 * columns, 1));
      Filled weight(1, columns, RandomFloats(columns, 2));
      Filled out(9, columns);
      device->RmsNorm(x.tensor(), weight.tensor(), 1e-5F, add_one, 0, out.tensor());
      std::vector<double> want(static_cast<size_t>(9 * columns));
      const double epsilon = 1e-5F;
      ref::RmsNorm<double>(Doubles(x.values()), Doubles(weight.values()), epsilon, add_one, columns,
                           want);
      EXPECT_LT(RelativeError(out.values(), want), 5e-7) << columns;
      device->RmsNorm(x.tensor(), weight.tensor(), 1e-5F, add_one, 0, x.tensor());
      EXPECT_EQ(x.values(), out.values()) << "in place";
    }
  }
}

TEST(RmsNorm, GroupsAreNormalizedApart) {
  auto device = MakeDevice();
  Filled x(3, 40, RandomFloats(120, 3));
  Filled weight(1, 8, RandomFloats(8, 4));
  Filled out(3, 40);
  device->RmsNorm(x.tensor(), weight.tensor(), 1e-6F, false, 8, out.tensor());
  std::vector<double> want(120);
  ref::RmsNorm<double>(Doubles(x.values()), Doubles(weight.values()), 1e-6F, false, 8, want);
  EXPECT_LT(RelativeError(out.values(), want), 5e-7);
}

TEST(Activations, AgreeWithTheScalarTwinOverAllMagnitudes) {
  auto device = MakeDevice(2);
  const int64_t columns = 1003;
  Filled x(3, columns, WideFloats(3 * columns, 5));
  Filled up(3, columns, RandomFloats(3 * columns, 6));
  for (const Activation activation : kActivations) {
    Filled out(3, columns);
    Filled gated(3, columns);
    device->Act(activation, x.tensor(), out.tensor());
    device->Gated(activation, x.tensor(), up.tensor(), gated.tensor());
    for (size_t i = 0; i < x.values().size(); ++i) {
      const double at = x.values()[i];
      const double want = ref::Activate<double>(activation, at);
      EXPECT_NEAR(out.values()[i], want, 1e-6 * std::abs(want) + 3e-7 * std::min(1.0, std::abs(at)))
          << static_cast<int>(activation) << " of " << at;
      EXPECT_EQ(gated.values()[i], out.values()[i] * up.values()[i]);
    }
  }
}

TEST(Activations, OfHugeNumbersAreTheirLimits) {
  auto device = MakeDevice();
  const float inf = std::numeric_limits<float>::infinity();
  Filled x(1, 4, {1e30F, -1e30F, 200.0F, -200.0F});
  for (const Activation activation :
       {Activation::kSilu, Activation::kGeluTanh, Activation::kGelu, Activation::kRelu}) {
    Filled out(1, 4);
    device->Act(activation, x.tensor(), out.tensor());
    EXPECT_EQ(out.values()[0], 1e30F);
    EXPECT_EQ(std::abs(out.values()[1]), 0.0F);
    EXPECT_EQ(out.values()[2], 200.0F);
    EXPECT_EQ(std::abs(out.values()[3]), 0.0F);
  }
  Filled bad(1, 20, std::vector<float>(20, 1.0F));
  bad.values()[3] = std::numeric_limits<float>::quiet_NaN();
  bad.values()[18] = inf;
  for (const Activation activation : kActivations) {
    Filled out(1, 20);
    device->Act(activation, bad.tensor(), out.tensor());
    EXPECT_TRUE(std::isnan(out.values()[3])) << static_cast<int>(activation);
    EXPECT_FALSE(std::isfinite(out.values()[18])) << static_cast<int>(activation);
  }
}

TEST(SoftCap, AgreesWithTheScalarTwinInEveryDigit) {
  auto device = MakeDevice();
  Filled x(3, 501, WideFloats(3 * 501, 7));
  Filled out(3, 501);
  device->SoftCap(x.tensor(), 30.0F, out.tensor());
  std::vector<double> want(x.values().size());
  ref::SoftCap<double>(Doubles(x.values()), 30.0, want);
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(out.values()[i], want[i], 1e-6 * std::abs(want[i])) << x.values()[i];
  }
}

TEST(Elementwise, AddScaleAndGatherAreExact) {
  auto device = MakeDevice(2);
  Filled a(130, 37, RandomFloats(130 * 37, 8));
  Filled b(130, 37, RandomFloats(130 * 37, 9));
  Filled out(130, 37);
  device->Add(a.tensor(), b.tensor(), out.tensor());
  std::vector<float> want(a.values().size());
  ref::Add<float>(a.values(), b.values(), want);
  EXPECT_EQ(out.values(), want);
  device->Scale(a.tensor(), 0.3F, out.tensor());
  ref::Scale<float>(a.values(), 0.3F, want);
  EXPECT_EQ(out.values(), want);
  const std::vector<int32_t> rows = {129, 0, 0, 64};
  Filled gathered(4, 37);
  device->GatherRows(a.tensor(), rows, gathered.tensor());
  for (int64_t r = 0; r < 4; ++r) {
    EXPECT_TRUE(std::ranges::equal(gathered.row(r), a.row(rows[static_cast<size_t>(r)])));
  }
}

TEST(FirstNonFiniteRow, FindsTheFirst) {
  auto device = MakeDevice();
  Filled x(9, 35, RandomFloats(9 * 35, 10));
  EXPECT_EQ(device->FirstNonFiniteRow(x.tensor()), -1);
  x.values()[7 * 35 + 34] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(device->FirstNonFiniteRow(x.tensor()), 7);
  x.values()[4 * 35] = -std::numeric_limits<float>::infinity();
  EXPECT_EQ(device->FirstNonFiniteRow(x.tensor()), 4);
}

struct RopeCase {
  int64_t heads;
  int64_t head_dim;
  int64_t rotary_dim;
  bool interleaved;
};

std::vector<float> Frequencies(int64_t count) {
  std::vector<float> frequencies;
  for (int64_t i = 0; i < count; ++i) {
    frequencies.push_back(std::pow(10000.0F, -static_cast<float>(i) / static_cast<float>(count)));
  }
  return frequencies;
}

TEST(Rope, AgreesWithTheScalarTwinAtLargePositions) {
  auto device = MakeDevice(2);
  for (const RopeCase& c :
       {RopeCase{5, 8, 8, false}, RopeCase{3, 64, 64, false}, RopeCase{2, 80, 32, false},
        RopeCase{3, 12, 12, true}, RopeCase{2, 64, 40, true}}) {
    const auto frequencies = Frequencies(c.rotary_dim / 2);
    std::vector<float> longs = frequencies;
    for (float& f : longs) {
      f *= 0.25F;
    }
    RopeParams params;
    params.heads = c.heads;
    params.head_dim = c.head_dim;
    params.rotary_dim = c.rotary_dim;
    params.interleaved = c.interleaved;
    params.inverse_frequencies = frequencies;
    params.long_inverse_frequencies = longs;
    params.scale = 1.25F;
    params.long_scale = 1.5F;
    const int64_t width = c.heads * c.head_dim;
    Filled x(70, width, RandomFloats(70 * width, 11));
    Filled out(70, width);
    SequenceRows sequences[2];
    sequences[0] = {.first_row = 0, .rows = 69, .first_position = 100000, .blocks = {}};
    sequences[1] = {
        .first_row = 69, .rows = 1, .first_position = 7, .blocks = {}, .long_rope = true};
    device->Rope(x.tensor(), params, sequences, out.tensor());
    const auto in = Doubles(x.values());
    std::vector<double> want(in.size());
    for (int64_t r = 0; r < 70; ++r) {
      for (int64_t h = 0; h < c.heads; ++h) {
        const auto at = static_cast<size_t>(r * width + h * c.head_dim);
        const auto n = static_cast<size_t>(c.head_dim);
        const bool second = r == 69;
        ref::Rope<double>(std::span(in).subspan(at, n), second ? 7 : 100000 + r,
                          second ? longs : frequencies, c.interleaved, second ? 1.5 : 1.25,
                          std::span(want).subspan(at, n));
      }
    }
    EXPECT_LT(RelativeError(out.values(), want), 2e-7);
    // A row alone, in place, has the same bits.
    Filled alone(1, width, {x.values().begin() + 33 * width, x.values().begin() + 34 * width});
    const SequenceRows one{.first_row = 0, .rows = 1, .first_position = 100033, .blocks = {}};
    device->Rope(alone.tensor(), params, {&one, 1}, alone.tensor());
    EXPECT_TRUE(std::ranges::equal(alone.row(0), out.row(33)));
  }
}

TEST(ScalarTwins, GiveDerivativesByComplexStep) {
  const double h = 1e-30;
  for (const Activation activation : kActivations) {
    for (const double at : {-2.3, -0.4, 0.7, 3.1}) {
      const double step = ref::Activate<std::complex<double>>(activation, {at, h}).imag() / h;
      const double d = 1e-5;
      const double difference =
          (ref::Activate<double>(activation, at + d) - ref::Activate<double>(activation, at - d)) /
          (2 * d);
      EXPECT_NEAR(step, difference, 1e-8) << static_cast<int>(activation) << " at " << at;
    }
  }
}

}  // namespace
}  // namespace penstock::kernels
