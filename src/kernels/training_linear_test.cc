// Trainable matrices: the three products against their twins, over odd and large shapes.

#include "kernels/ref/linear.h"
#include "kernels/training_test_support.h"

namespace penstock::kernels {
namespace {

struct Shape {
  int64_t rows;
  int64_t outputs;
  int64_t inputs;
};

constexpr Shape kShapes[] = {{1, 1, 1},      {1, 17, 5},    {2, 3, 33},     {5, 16, 16},
                             {7, 70, 31},    {13, 129, 67}, {33, 64, 640},  {64, 250, 48},
                             {97, 481, 9},   {130, 65, 96}, {513, 100, 51}, {600, 20, 130},
                             {3, 12700, 20}, {14, 6200, 9}};

std::vector<double> Rounded(const std::vector<float>& x, ProductType type) {
  std::vector<double> values;
  values.reserve(x.size());
  for (const float value : x) {
    values.push_back(type == ProductType::kBF16 ? RoundToBf16(value) : value);
  }
  return values;
}

struct Case {
  explicit Case(const Shape& s)
      : shape(s),
        w(s.outputs, s.inputs, RandomFloats(s.outputs * s.inputs, 1)),
        x(s.rows, s.inputs, RandomFloats(s.rows * s.inputs, 2)),
        dy(s.rows, s.outputs, RandomFloats(s.rows * s.outputs, 3)),
        bias(1, s.outputs, RandomFloats(s.outputs, 4)) {}

  std::unique_ptr<TrainMatrix> Matrix(TrainingDevice& kernels, ProductType type) {
    auto matrix = kernels.CreateMatrix(shape.outputs, shape.inputs, type, account);
    EXPECT_TRUE(matrix.ok());
    kernels.Repack(*matrix.value(), w.tensor(), 0);
    return std::move(matrix).value();
  }

  Scratch Workspace(TrainingDevice& kernels, ProductType type) const {
    return Scratch(kernels.ProductWorkspaceBytes(shape.outputs, shape.inputs, type, shape.rows));
  }

  Shape shape;
  MemoryAccount account;
  Filled w;
  Filled x;
  Filled dy;
  Filled bias;
};

class TrainLinear : public ::testing::TestWithParam<ProductType> {};

TEST_P(TrainLinear, ForwardAgreesWithTheTwin) {
  for (const Shape& shape : kShapes) {
    Case c(shape);
    const auto got = WithThreads([&](TrainingDevice& kernels) {
      const auto matrix = c.Matrix(kernels, GetParam());
      Scratch scratch = c.Workspace(kernels, GetParam());
      Filled out(shape.rows, shape.outputs, 7.0F);
      kernels.LinearForward(*matrix, c.x.tensor(), c.bias.tensor(), out.tensor(), scratch.tensor());
      return out.values();
    });
    std::vector<double> want(got.size());
    ref::Linear<double>(Rounded(c.w.values(), GetParam()), Rounded(c.x.values(), GetParam()),
                        Doubles(c.bias.values()), shape.rows, shape.inputs, shape.outputs, want);
    EXPECT_LT(RelativeError(got, want), 1e-6) << shape.rows << " x " << shape.outputs;
  }
}

TEST_P(TrainLinear, BackwardInputAgreesWithTheTwinAndAccumulates) {
  for (const Shape& shape : kShapes) {
    Case c(shape);
    const auto got = WithThreads([&](TrainingDevice& kernels) {
      const auto matrix = c.Matrix(kernels, GetParam());
      Scratch scratch = c.Workspace(kernels, GetParam());
      Filled dx(shape.rows, shape.inputs, 7.0F);
      kernels.LinearBackwardInput(*matrix, c.dy.tensor(), false, dx.tensor(), scratch.tensor());
      return dx.values();
    });
    std::vector<double> want(got.size());
    ref::LinearBackward<double>(Rounded(c.w.values(), GetParam()), {},
                                Rounded(c.dy.values(), GetParam()), shape.rows, shape.inputs,
                                shape.outputs, want, {});
    // Long sums lose digits.
    const double tolerance = 1e-6 + 1.5e-10 * static_cast<double>(shape.outputs);
    EXPECT_LT(RelativeError(got, want), tolerance) << shape.rows << " x " << shape.inputs;

    Training t(2);
    const auto matrix = c.Matrix(*t.kernels, GetParam());
    Scratch scratch = c.Workspace(*t.kernels, GetParam());
    Filled dx(shape.rows, shape.inputs, c.x.values());
    t.kernels->LinearBackwardInput(*matrix, c.dy.tensor(), true, dx.tensor(), scratch.tensor());
    for (size_t i = 0; i < got.size(); ++i) {
      if (shape.outputs < 6000) {
        ASSERT_EQ(dx.values()[i], c.x.values()[i] + got[i]) << "the whole term is added at the end";
      } else {
        ASSERT_NEAR(dx.values()[i], c.x.values()[i] + got[i], 1e-4);
      }
    }
  }
}

TEST_P(TrainLinear, BackwardWeightAgreesWithTheTwinAndAccumulates) {
  for (const Shape& shape : kShapes) {
    Case c(shape);
    const auto run = [&](TrainingDevice& kernels, std::vector<float> start, bool accumulate) {
      Scratch scratch = c.Workspace(kernels, GetParam());
      Filled dw(shape.outputs, shape.inputs, std::move(start));
      kernels.LinearBackwardWeight(GetParam(), c.dy.tensor(), c.x.tensor(), accumulate, dw.tensor(),
                                   scratch.tensor());
      return dw.values();
    };
    const auto got = WithThreads([&](TrainingDevice& kernels) {
      return run(kernels, std::vector<float>(c.w.values().size()), true);
    });
    std::vector<double> want(got.size());
    ref::LinearBackward<double>({}, Rounded(c.x.values(), GetParam()),
                                Rounded(c.dy.values(), GetParam()), shape.rows, shape.inputs,
                                shape.outputs, {}, want);
    EXPECT_LT(RelativeError(got, want), 1e-6) << shape.outputs << " x " << shape.inputs;
    Training t(2);
    EXPECT_EQ(run(*t.kernels, c.w.values(), false), got) << "written over what was there";
    const auto sum = run(*t.kernels, c.w.values(), true);
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(sum[i], c.w.values()[i] + got[i]) << "the whole term is added at the end";
    }
  }
}

// A matrix of two parts: the second one's rows begin anywhere in a strip.
TEST_P(TrainLinear, AStepThatPacksGivesTheBitsOfAStepAndAPacking) {
  constexpr int64_t kColumns = 37;
  AdamWParams params;
  params.lr = 1e-2F;
  params.weight_decay = 0.1F;
  for (const int64_t first : {0, 16, 21}) {
    for (const int64_t rows : {1, 15, 70}) {
      const auto run = [&](TrainingDevice& kernels, bool together) {
        const int64_t all = first + rows;
        MemoryAccount account;
        std::vector<std::unique_ptr<TrainMatrix>> matrices;
        std::vector<PackedRows> images;
        for (const int64_t row : {first, int64_t{0}}) {
          matrices.push_back(kernels.CreateMatrix(all, kColumns, GetParam(), account).value());
          Filled before(all, kColumns, RandomFloats(all * kColumns, 5));
          kernels.Repack(*matrices.back(), before.tensor(), 0);
          images.push_back({matrices.back().get(), row});
        }
        if (first % 2 != 0) {
          images.pop_back();  // both ways: images that lie alike, and that do not
        }
        Filled g(rows, kColumns, RandomFloats(rows * kColumns, 1));
        Filled w(rows, kColumns, RandomFloats(rows * kColumns, 2));
        Filled m(rows, kColumns);
        Filled v(rows, kColumns);
        if (together) {
          kernels.AdamWRepack(params, g.tensor(), w.tensor(), m.tensor(), v.tensor(), images);
        } else {
          kernels.AdamW(params, g.tensor(), w.tensor(), m.tensor(), v.tensor());
          for (const PackedRows& image : images) {
            kernels.Repack(*image.matrix, w.tensor(), image.first_row);
          }
        }
        std::vector<float> found = w.values();
        found.insert(found.end(), v.values().begin(), v.values().end());
        for (const auto& matrix : matrices) {
          Scratch scratch(kernels.ProductWorkspaceBytes(all, kColumns, GetParam(), all));
          Filled x(3, kColumns, RandomFloats(3 * kColumns, 3));
          Filled y(3, all);
          kernels.LinearForward(*matrix, x.tensor(), {}, y.tensor(), scratch.tensor());
          Filled dy(3, all, RandomFloats(3 * all, 4));
          Filled dx(3, kColumns);
          kernels.LinearBackwardInput(*matrix, dy.tensor(), false, dx.tensor(), scratch.tensor());
          found.insert(found.end(), y.values().begin(), y.values().end());
          found.insert(found.end(), dx.values().begin(), dx.values().end());
        }
        return found;
      };
      const auto together =
          WithThreads([&](TrainingDevice& kernels) { return run(kernels, true); });
      Training t(1);
      EXPECT_EQ(together, run(*t.kernels, false)) << first << " + " << rows;
    }
  }
}

TEST_P(TrainLinear, ARowHasTheSameBitsAloneAndInABatch) {
  Case c({600, 70, 130});
  Training t(2);
  const auto matrix = c.Matrix(*t.kernels, GetParam());
  Scratch scratch = c.Workspace(*t.kernels, GetParam());
  Filled out(600, 70);
  Filled dx(600, 130);
  t.kernels->LinearForward(*matrix, c.x.tensor(), {}, out.tensor(), scratch.tensor());
  t.kernels->LinearBackwardInput(*matrix, c.dy.tensor(), false, dx.tensor(), scratch.tensor());
  for (const int64_t row : {0, 40, 511, 599}) {
    Filled one(1, 70);
    Filled one_dx(1, 130);
    t.kernels->LinearForward(*matrix, c.x.tensor().Rows(row, 1), {}, one.tensor(),
                             scratch.tensor());
    t.kernels->LinearBackwardInput(*matrix, c.dy.tensor().Rows(row, 1), false, one_dx.tensor(),
                                   scratch.tensor());
    EXPECT_TRUE(std::ranges::equal(one.row(0), out.row(row)));
    EXPECT_TRUE(std::ranges::equal(one_dx.row(0), dx.row(row)));
  }
}

TEST_P(TrainLinear, RepackOfPartsFromAnyRowOnIsRepackOfTheWhole) {
  Case c({40, 77, 53});
  Training t(3);
  Scratch scratch = c.Workspace(*t.kernels, GetParam());
  const auto whole = c.Matrix(*t.kernels, GetParam());
  auto created = t.kernels->CreateMatrix(77, 53, GetParam(), c.account);
  ASSERT_TRUE(created.ok());
  TrainMatrix& parts = *created.value();
  // Old contents must vanish.
  Filled old(77, 53, 3.0F);
  t.kernels->Repack(parts, old.tensor(), 0);
  for (const auto& [first, count] :
       {std::pair<int64_t, int64_t>{50, 27}, {0, 3}, {3, 30}, {33, 1}, {34, 16}}) {
    t.kernels->Repack(parts, c.w.tensor().Rows(first, count), first);
  }
  for (const bool backward : {false, true}) {
    const int64_t columns = backward ? 53 : 77;
    Filled a(40, columns);
    Filled b(40, columns);
    for (auto [matrix, out] : {std::pair{whole.get(), &a}, {&parts, &b}}) {
      if (backward) {
        t.kernels->LinearBackwardInput(*matrix, c.dy.tensor(), false, out->tensor(),
                                       scratch.tensor());
      } else {
        t.kernels->LinearForward(*matrix, c.x.tensor(), {}, out->tensor(), scratch.tensor());
      }
    }
    EXPECT_EQ(a.values(), b.values());
  }
}

TEST_P(TrainLinear, TakesItsBytesFromTheAccountAndSaysWhenTheyDoNotFit) {
  Training t(1);
  MemoryAccount account;
  const int64_t bytes = t.kernels->TrainMatrixBytes(77, 53, GetParam());
  {
    auto matrix = t.kernels->CreateMatrix(77, 53, GetParam(), account);
    ASSERT_TRUE(matrix.ok());
    EXPECT_EQ(matrix.value()->bytes(), bytes);
    EXPECT_EQ(account.current()[MemoryCategory::kWeights], bytes);
    EXPECT_EQ(matrix.value()->rows(), 77);
    EXPECT_EQ(matrix.value()->columns(), 53);
  }
  MemoryAccount small(bytes - 1);
  const auto refused = t.kernels->CreateMatrix(77, 53, GetParam(), small);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfMemory);
}

INSTANTIATE_TEST_SUITE_P(Products, TrainLinear,
                         ::testing::Values(ProductType::kF32, ProductType::kBF16));

TEST(ColumnSums, AccumulateEachColumn) {
  for (const Shape& s : {Shape{1, 0, 1}, {9, 0, 70}, {513, 0, 577}}) {
    const int64_t rows = s.rows;
    const int64_t columns = s.inputs;
    Filled x(rows, columns, RandomFloats(rows * columns, 1));
    const auto got = WithThreads([&](TrainingDevice& kernels) {
      Filled out(1, columns, 2.0F);
      kernels.AddColumnSums(x.tensor(), out.tensor());
      return out.values();
    });
    std::vector<double> want(static_cast<size_t>(columns), 2.0);
    for (int64_t i = 0; i < rows * columns; ++i) {
      want[static_cast<size_t>(i % columns)] += x.values()[static_cast<size_t>(i)];
    }
    EXPECT_LT(RelativeError(got, want), 1e-6);
  }
}

}  // namespace
}  // namespace penstock::kernels
