// Row-wise backward operations, dropout, the loss and the optimizer against their twins.

#include <numeric>

#include "kernels/ref/activation.h"
#include "kernels/ref/dropout.h"
#include "kernels/ref/elementwise.h"
#include "kernels/ref/loss.h"
#include "kernels/ref/norm.h"
#include "kernels/ref/optimizer.h"
#include "kernels/ref/rope.h"
#include "kernels/training_test_support.h"

namespace penstock::kernels {
namespace {

constexpr Activation kActivations[] = {Activation::kSilu,        Activation::kGeluTanh,
                                       Activation::kGelu,        Activation::kRelu,
                                       Activation::kReluSquared, Activation::kSigmoid};

// backward(kernels, accumulate, dx) -> void. Checks the gradient against `want`, for any number of
// threads, and that accumulating adds the same numbers to what is there.
template <class Backward>
void ExpectGradient(int64_t rows, int64_t columns, const std::vector<double>& want,
                    double tolerance, const Backward& backward) {
  const auto got = WithThreads([&](TrainingDevice& kernels) {
    Filled dx(rows, columns, 5.0F);
    backward(kernels, false, dx.tensor());
    return dx.values();
  });
  EXPECT_LT(RelativeError(got, want), tolerance);
  Training t(2);
  const std::vector<float> before = RandomFloats(rows * columns, 77);
  Filled dx(rows, columns, before);
  backward(*t.kernels, true, dx.tensor());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(dx.values()[i], before[i] + got[i]) << "the whole term is added at the end";
  }
}

struct Shape {
  int64_t rows;
  int64_t columns;
  int64_t group;
};

TEST(TrainOps, NormGradientsAgreeWithTheTwin) {
  for (const Shape& s : {Shape{1, 1, 0},
                         {9, 36, 0},
                         {70, 577, 0},
                         {130, 1024, 0},
                         {5, 40, 8},
                         {90, 576, 64},
                         {33, 66, 33}}) {
    for (const bool add_one : {false, true}) {
      const int64_t group = s.group == 0 ? s.columns : s.group;
      Filled x(s.rows, s.columns, RandomFloats(s.rows * s.columns, 1));
      Filled dy(s.rows, s.columns, RandomFloats(s.rows * s.columns, 2));
      Filled weight(1, group, RandomFloats(group, 3));
      std::vector<double> dx(x.values().size());
      std::vector<double> dweight(static_cast<size_t>(group));
      ref::RmsNormBackward<double>(Doubles(x.values()), Doubles(weight.values()), 1e-5F, add_one,
                                   group, Doubles(dy.values()), dx, dweight);
      if (s.columns > 1) {
        ExpectGradient(s.rows, s.columns, dx, 1e-6,
                       [&](TrainingDevice& kernels, bool accumulate, Tensor out) {
                         kernels.RmsNormBackwardInput(x.tensor(), weight.tensor(), 1e-5F, add_one,
                                                      s.group, dy.tensor(), accumulate, out);
                       });
      }
      const auto got = WithThreads([&](TrainingDevice& kernels) {
        Filled dw(1, group, 2.0F);
        kernels.RmsNormBackwardWeight(x.tensor(), 1e-5F, s.group, dy.tensor(), dw.tensor());
        return dw.values();
      });
      for (double& d : dweight) {
        d += 2.0;
      }
      EXPECT_LT(RelativeError(got, dweight), 1e-6) << s.rows << " x " << s.columns;
    }
  }
}

TEST(TrainOps, ActivationGradientsAgreeWithTheTwin) {
  constexpr int64_t kRows = 37;
  constexpr int64_t kColumns = 1003;
  Filled x(kRows, kColumns, RandomFloats(kRows * kColumns, 1));
  for (size_t i = 0; i < x.values().size(); ++i) {
    x.values()[i] *= std::pow(10.0F, static_cast<float>(i % 7) - 4.0F);
  }
  Filled up(kRows, kColumns, RandomFloats(kRows * kColumns, 2));
  Filled dy(kRows, kColumns, RandomFloats(kRows * kColumns, 3));
  for (const Activation activation : kActivations) {
    std::vector<double> dx(x.values().size());
    std::vector<double> dup(x.values().size());
    std::vector<double> act_dx;
    ref::GatedBackward<double>(activation, Doubles(x.values()), Doubles(up.values()),
                               Doubles(dy.values()), dx, dup);
    for (size_t i = 0; i < x.values().size(); ++i) {
      act_dx.push_back(dy.values()[i] * ref::ActivateSlope<double>(activation, x.values()[i]));
    }
    Filled other(kRows, kColumns);
    ExpectGradient(kRows, kColumns, dx, 1e-6,
                   [&](TrainingDevice& kernels, bool accumulate, Tensor out) {
                     Filled rest(kRows, kColumns);
                     kernels.GatedBackward(activation, x.tensor(), up.tensor(), dy.tensor(),
                                           accumulate, out, false, rest.tensor());
                   });
    ExpectGradient(kRows, kColumns, dup, 1e-6,
                   [&](TrainingDevice& kernels, bool accumulate, Tensor out) {
                     Filled rest(kRows, kColumns);
                     kernels.GatedBackward(activation, x.tensor(), up.tensor(), dy.tensor(), false,
                                           rest.tensor(), accumulate, out);
                   });
    ExpectGradient(kRows, kColumns, act_dx, 1e-6,
                   [&](TrainingDevice& kernels, bool accumulate, Tensor out) {
                     kernels.ActBackward(activation, x.tensor(), dy.tensor(), accumulate, out);
                   });
  }
}

TEST(TrainOps, ActivationGradientsOfHugeNumbersAreTheirLimits) {
  Training t(1);
  Filled x(1, 4, {1e30F, -1e30F, 200.0F, -200.0F});
  Filled dy(1, 4, 1.0F);
  for (const Activation activation :
       {Activation::kSilu, Activation::kGeluTanh, Activation::kGelu, Activation::kRelu}) {
    Filled dx(1, 4);
    t.kernels->ActBackward(activation, x.tensor(), dy.tensor(), false, dx.tensor());
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(std::abs(dx.values()[i]), i % 2 == 0 ? 1.0F : 0.0F)
          << static_cast<int>(activation) << " at " << x.values()[i];
    }
  }
}

TEST(TrainOps, SoftCapScaleAndScatter) {
  constexpr int64_t kRows = 60;
  constexpr int64_t kColumns = 301;
  Filled x(kRows, kColumns, RandomFloats(kRows * kColumns, 1));
  for (float& value : x.values()) {
    value *= 50.0F;
  }
  Filled dy(kRows, kColumns, RandomFloats(kRows * kColumns, 2));
  std::vector<double> dx(x.values().size());
  ref::SoftCapBackward<double>(Doubles(x.values()), 30.0, Doubles(dy.values()), dx);
  ExpectGradient(kRows, kColumns, dx, 1e-6,
                 [&](TrainingDevice& kernels, bool accumulate, Tensor out) {
                   kernels.SoftCapBackward(x.tensor(), 30.0F, dy.tensor(), accumulate, out);
                 });
  ref::Scale<double>(Doubles(dy.values()), 0.3F, dx);
  ExpectGradient(kRows, kColumns, dx, 1e-7,
                 [&](TrainingDevice& kernels, bool accumulate, Tensor out) {
                   kernels.ScaleInto(dy.tensor(), 0.3F, accumulate, out);
                 });
  std::vector<int32_t> rows(kRows);
  for (size_t i = 0; i < kRows; ++i) {
    rows[i] = static_cast<int32_t>(2 * i + i / 7);
  }
  const auto got = WithThreads([&](TrainingDevice& kernels) {
    Filled out(200, kColumns, 1.0F);
    kernels.ScatterAddRows(dy.tensor(), rows, out.tensor());
    return out.values();
  });
  std::vector<float> want(200 * kColumns, 1.0F);
  for (size_t i = 0; i < kRows; ++i) {
    for (size_t c = 0; c < kColumns; ++c) {
      want[static_cast<size_t>(rows[i]) * kColumns + c] += dy.values()[i * kColumns + c];
    }
  }
  EXPECT_EQ(got, want);
}

TEST(TrainOps, EmbeddingAndItsGradientWithRepeatedIds) {
  constexpr int64_t kWidth = 70;
  Filled table(9, kWidth, RandomFloats(9 * kWidth, 1));
  std::vector<int32_t> ids;
  ids.reserve(300);
  for (int32_t i = 0; i < 300; ++i) {
    ids.push_back(i * i % 9);
  }
  Filled dy(300, kWidth, RandomFloats(300 * kWidth, 2));
  const auto out = WithThreads([&](TrainingDevice& kernels) {
    Filled result(300, kWidth);
    kernels.EmbedForward(table.tensor(), ids, 1.5F, result.tensor());
    return result.values();
  });
  std::vector<float> want(out.size());
  ref::Embed<float>(table.values(), kWidth, ids, 1.5, want);
  EXPECT_EQ(out, want);
  const auto got = WithThreads([&](TrainingDevice& kernels) {
    Filled dtable(9, kWidth, 2.0F);
    kernels.EmbedBackwardWeight(ids, 1.5F, dy.tensor(), dtable.tensor());
    return dtable.values();
  });
  std::vector<float> gradient(9 * kWidth, 2.0F);
  ref::EmbedBackward<float>(ids, kWidth, 1.5, dy.values(), gradient);
  EXPECT_EQ(got, gradient) << "rows in ascending order";
}

struct RopeCase {
  int64_t heads;
  int64_t head_dim;
  int64_t rotary_dim;
  bool interleaved;
  int64_t offset;
};

TEST(TrainOps, RopeForwardAndGradientOverSegmentsAndLongRope) {
  for (const RopeCase& c : {RopeCase{5, 8, 8, false, 0}, RopeCase{3, 64, 64, false, 0},
                            RopeCase{2, 80, 32, false, 0}, RopeCase{3, 12, 12, true, 0},
                            RopeCase{2, 64, 40, true, 0}, RopeCase{2, 48, 16, true, 20}}) {
    std::vector<float> frequencies;
    std::vector<float> longs;
    for (int64_t i = 0; i < c.rotary_dim / 2; ++i) {
      frequencies.push_back(
          std::pow(1000.0F, -static_cast<float>(2 * i) / static_cast<float>(c.rotary_dim)));
      longs.push_back(frequencies.back() * 0.25F);
    }
    RopeParams params;
    params.heads = c.heads;
    params.head_dim = c.head_dim;
    params.rotary_dim = c.rotary_dim;
    params.interleaved = c.interleaved;
    params.offset = c.offset;
    params.inverse_frequencies = frequencies;
    params.long_inverse_frequencies = longs;
    params.scale = 1.25F;
    params.long_scale = 1.5F;
    const Segment segments[] = {
        {.first_row = 0, .rows = 40},
        {.first_row = 40, .rows = 30, .first_position = 900, .long_rope = true}};
    const int64_t width = c.heads * c.head_dim;
    Filled x(70, width, RandomFloats(70 * width, 1));
    std::vector<double> forward(x.values().size());
    std::vector<double> back(x.values().size());
    const auto in = Doubles(x.values());
    for (int64_t r = 0; r < 70; ++r) {
      for (int64_t h = 0; h < c.heads; ++h) {
        const auto head = static_cast<size_t>(r * width + h * c.head_dim);
        const auto at = head + static_cast<size_t>(c.offset);
        const auto n = static_cast<size_t>(c.head_dim - c.offset);
        const bool second = r >= 40;
        const int64_t position = second ? 900 + r - 40 : r;
        ref::Rope<double>(std::span(in).subspan(at, n), position, second ? longs : frequencies,
                          c.interleaved, second ? 1.5 : 1.25, std::span(forward).subspan(at, n));
        ref::RopeBackward<double>(std::span(in).subspan(at, n), position,
                                  second ? longs : frequencies, c.interleaved, second ? 1.5 : 1.25,
                                  std::span(back).subspan(at, n));
        std::copy_n(in.begin() + static_cast<std::ptrdiff_t>(head), c.offset,
                    forward.begin() + static_cast<std::ptrdiff_t>(head));
        std::copy_n(in.begin() + static_cast<std::ptrdiff_t>(head), c.offset,
                    back.begin() + static_cast<std::ptrdiff_t>(head));
      }
    }
    const auto got = WithThreads([&](TrainingDevice& kernels) {
      Filled out(70, width);
      kernels.RopeForward(x.tensor(), params, segments, out.tensor());
      return out.values();
    });
    EXPECT_LT(RelativeError(got, forward), 2e-7);
    // One segment after the other: rows of the other are left alone.
    Training t(2);
    Filled apart(70, width, x.values());
    for (const Segment& segment : segments) {
      t.kernels->RopeForward(apart.tensor(), params, {&segment, 1}, apart.tensor());
    }
    EXPECT_EQ(apart.values(), got);
    ExpectGradient(70, width, back, 2e-7,
                   [&](TrainingDevice& kernels, bool accumulate, Tensor out) {
                     kernels.RopeBackward(x.tensor(), params, segments, accumulate, out);
                   });
  }
}

TEST(TrainOps, DropoutIsAFunctionOfItsKeyAndTheIndexAlone) {
  constexpr int64_t kRows = 50;
  constexpr int64_t kColumns = 203;
  Filled x(kRows, kColumns, RandomFloats(kRows * kColumns, 1));
  const DropoutKey key{0x123456789abcdef0U, 7, 3, 11};
  std::vector<double> want;
  int64_t dropped = 0;
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t c = 0; c < kColumns; ++c) {
      const double factor = ref::DropoutFactor(key, 0.3F, r, c);
      dropped += factor == 0 ? 1 : 0;
      want.push_back(x.row(r)[static_cast<size_t>(c)] * factor);
    }
  }
  EXPECT_NEAR(static_cast<double>(dropped) / (kRows * kColumns), 0.3, 0.02);
  ExpectGradient(kRows, kColumns, want, 1e-7,
                 [&](TrainingDevice& kernels, bool accumulate, Tensor out) {
                   kernels.DropoutBackward(x.tensor(), key, 0.3F, accumulate, out);
                 });
  Training t(2);
  Filled whole(kRows, kColumns);
  t.kernels->Dropout(x.tensor(), key, 0.3F, whole.tensor());
  EXPECT_LT(RelativeError(whole.values(), want), 1e-7);
  // A slice of rows has its part of the mask; in place is allowed.
  DropoutKey later = key;
  later.first_row = 20;
  t.kernels->Dropout(x.tensor().Rows(20, 30), later, 0.3F, x.tensor().Rows(20, 30));
  for (int64_t r = 20; r < kRows; ++r) {
    EXPECT_TRUE(std::ranges::equal(x.row(r), whole.row(r)));
  }
  Filled other(kRows, kColumns);
  DropoutKey next = key;
  next.step = 8;
  t.kernels->Dropout(whole.tensor(), next, 0.3F, other.tensor());
  EXPECT_NE(other.values(), whole.values());
}

TEST(TrainOps, LossAndItsGradientAgreeWithTheTwin) {
  for (const Shape& s : {Shape{1, 1, 0}, {3, 17, 0}, {40, 1001, 0}, {9, 49152, 0}}) {
    const int64_t rows = s.rows;
    const int64_t columns = s.columns;
    Filled logits(rows, columns, RandomFloats(rows * columns, 1));
    for (float& value : logits.values()) {
      value *= 12.0F;
    }
    std::vector<int32_t> targets;
    for (int64_t r = 0; r < rows; ++r) {
      targets.push_back(r % 4 == 1 ? -1 : static_cast<int32_t>(r * 977 % columns));
    }
    std::vector<double> want_nll;
    std::vector<double> want;
    for (int64_t r = 0; r < rows; ++r) {
      const auto row = Doubles(logits.row(r));
      const int32_t target = targets[static_cast<size_t>(r)];
      want_nll.push_back(ref::CrossEntropy<double>(row, target));
      std::vector<double> d(row.size());
      ref::CrossEntropyBackward<double>(row, target, 0.125, d);
      want.insert(want.end(), d.begin(), d.end());
    }
    const auto both = WithThreads([&](TrainingDevice& kernels) {
      std::vector<double> nll(static_cast<size_t>(rows), 3.0);
      Filled lse(rows, 1);
      Filled dlogits(rows, columns, logits.values());
      kernels.CrossEntropy(logits.tensor(), targets, nll, lse.tensor());
      kernels.CrossEntropyBackward(dlogits.tensor(), targets, lse.tensor(), 0.125F,
                                   dlogits.tensor());
      return std::pair(nll, dlogits.values());
    });
    for (size_t r = 0; r < want_nll.size(); ++r) {
      EXPECT_NEAR(both.first[r], want_nll[r], 1e-6 * std::max(1.0, want_nll[r]));
    }
    if (columns > 1) {
      EXPECT_LT(RelativeError(both.second, want), 3e-6) << columns;
    }
  }
}

TEST(TrainOps, LossOfHugeAndOfBrokenLogits) {
  Training t(1);
  Filled logits(3, 20, RandomFloats(60, 1));
  logits.values()[5] = 1e30F;
  logits.values()[25] = std::numeric_limits<float>::quiet_NaN();
  logits.values()[45] = -std::numeric_limits<float>::infinity();
  const std::vector<int32_t> targets = {0, 0, 0};
  std::vector<double> nll(3);
  Filled lse(3, 1);
  t.kernels->CrossEntropy(logits.tensor(), targets, nll, lse.tensor());
  EXPECT_NEAR(nll[0] / 1e30, 1.0, 1e-6);
  EXPECT_TRUE(std::isnan(nll[1])) << "a NaN reaches the loss";
  EXPECT_TRUE(std::isfinite(nll[2])) << "an impossible token is just that";
}

TEST(TrainOps, AdamWAgreesWithTheTwinOverSteps) {
  constexpr int64_t kCount = 70001;
  AdamWParams params;
  params.lr = 1e-2F;
  params.weight_decay = 0.1F;
  params.gradient_factor = 0.5;
  const std::vector<float> start = RandomFloats(kCount, 1);
  const auto got = WithThreads([&](TrainingDevice& kernels) {
    Filled w(1, kCount, start);
    Filled m(1, kCount);
    Filled v(1, kCount);
    AdamWParams p = params;
    for (p.step = 1; p.step <= 3; ++p.step) {
      Filled g(1, kCount, RandomFloats(kCount, 10 + static_cast<uint64_t>(p.step)));
      kernels.AdamW(p, g.tensor(), w.tensor(), m.tensor(), v.tensor());
    }
    return std::pair(w.values(), v.values());
  });
  std::vector<double> w = Doubles(start);
  std::vector<double> m(w.size());
  std::vector<double> v(w.size());
  AdamWParams p = params;
  for (p.step = 1; p.step <= 3; ++p.step) {
    const auto g = RandomFloats(kCount, 10 + static_cast<uint64_t>(p.step));
    for (size_t i = 0; i < w.size(); ++i) {
      ref::AdamW<double>(p, g[i], w[i], m[i], v[i]);
    }
  }
  EXPECT_LT(RelativeError(got.first, w), 1e-6);
  EXPECT_LT(RelativeError(got.second, v), 1e-5);
}

TEST(TrainOps, AShardOfAParameterStepsLikeItsPartOfTheWhole) {
  Training t(2);
  AdamWParams params;
  params.lr = 1e-2F;
  Filled g(40, 33, RandomFloats(40 * 33, 1));
  const std::vector<float> start = RandomFloats(40 * 33, 2);
  Filled w(40, 33, start);
  Filled m(40, 33);
  Filled v(40, 33);
  t.kernels->AdamW(params, g.tensor(), w.tensor(), m.tensor(), v.tensor());
  Filled w2(40, 33, start);
  Filled m2(40, 33);
  Filled v2(40, 33);
  const auto part = [](Filled& whole) {
    return Tensor(whole.values().data() + 100, DType::kF32, 1, 517);
  };
  t.kernels->AdamW(params, part(g), part(w2), part(m2), part(v2));
  for (size_t i = 0; i < start.size(); ++i) {
    EXPECT_EQ(w2.values()[i], i >= 100 && i < 617 ? w.values()[i] : start[i]);
  }
}

TEST(TrainOps, SumOfSquaresHasOneOrderAndKeepsDigits) {
  for (const auto& [rows, columns] :
       {std::pair<int64_t, int64_t>{1, 1}, {7, 33}, {300, 577}, {1, 100001}}) {
    Filled x(rows, columns, RandomFloats(rows * columns, 1));
    const double got =
        WithThreads([&](TrainingDevice& kernels) { return kernels.SumOfSquares(x.tensor()); });
    double want = 0;
    for (const float value : x.values()) {
      want += static_cast<double>(value) * static_cast<double>(value);
    }
    EXPECT_NEAR(got, want, 1e-12 * want);
  }
}

TEST(TrainOps, FillWritesEveryElementAndNothingBeside) {
  Training t(2);
  Filled x(50, 600, 1.0F);
  t.kernels->Fill(x.tensor().Rows(3, 40).Columns(10, 500), 4.0F);
  for (int64_t r = 0; r < 50; ++r) {
    for (int64_t c = 0; c < 600; ++c) {
      const bool inside = r >= 3 && r < 43 && c >= 10 && c < 510;
      ASSERT_EQ(x.row(r)[static_cast<size_t>(c)], inside ? 4.0F : 1.0F);
    }
  }
}

}  // namespace
}  // namespace penstock::kernels
