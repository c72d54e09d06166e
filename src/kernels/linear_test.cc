// Matrix products of every weight type against scalar twins, and row by row bit equality.

#include <gtest/gtest.h>

#include <limits>

#include "kernels/ref/linear.h"
#include "kernels/test_support.h"

namespace penstock::kernels {
namespace {

struct Shape {
  int64_t out;
  int64_t in;
};

// Odd sizes on purpose: no whole strip, panel, group of columns or block of groups.
const Shape kShapes[] = {{1, 1}, {5, 7}, {40, 36}, {96, 40}, {64, 64}, {130, 577}, {200, 1031}};

int64_t WorkspaceBytes(const Device& device, const Matrix& matrix, int64_t rows) {
  return device.LinearWorkspaceBytes(matrix.rows(), matrix.columns(), matrix.type(), rows);
}

std::unique_ptr<Matrix> Load(Device& device, MemoryAccount& account, const MatrixSource& source,
                             WeightType type) {
  const MatrixSource* parts[] = {&source};
  auto matrix = device.LoadMatrix(parts, type, account);
  EXPECT_TRUE(matrix.ok()) << matrix.error().message;
  return std::move(matrix).value();
}

Filled Multiply(Device& device, const Matrix& matrix, Filled& x, Tensor bias = {}) {
  const int64_t rows = x.tensor().rows();
  Filled out(rows, matrix.rows(), 77.0F);
  Scratch scratch(WorkspaceBytes(device, matrix, rows));
  device.Linear(matrix, x.tensor(), bias, out.tensor(), scratch.tensor());
  return out;
}

std::vector<float> Rounded(std::vector<float> values) {
  for (float& value : values) {
    value = RoundToBf16(value);
  }
  return values;
}

// Integers and the scale of one row, as Device documents them.
struct QuantizedRow {
  std::vector<int64_t> q;
  float scale = 0;
};

QuantizedRow Quantize(std::span<const float> row) {
  float largest = 0;
  for (const float x : row) {
    largest = std::max(largest, std::abs(x));
  }
  QuantizedRow result;
  result.scale = largest / 127.0F;
  const float inverse = largest == 0 ? 0.0F : 127.0F / largest;
  for (const float x : row) {
    result.q.push_back(std::lrintf(x * inverse));
  }
  return result;
}

TEST(Linear, F32AndBf16AgreeWithTheScalarTwinInDouble) {
  for (const WeightType type : {WeightType::kF32, WeightType::kBF16}) {
    for (const Shape& shape : kShapes) {
      for (const int64_t rows : {1, 3, 17}) {
        auto device = MakeDevice(2);
        MemoryAccount account;
        FloatSource source("w", shape.out, shape.in, RandomFloats(shape.out * shape.in, 1));
        auto matrix = Load(*device, account, source, type);
        EXPECT_EQ(account.current().total, matrix->bytes());
        EXPECT_EQ(device->MatrixBytes(shape.out, shape.in, type, DType::kF32), matrix->bytes());
        Filled x(rows, shape.in, RandomFloats(rows * shape.in, 2));
        Filled bias(1, shape.out, RandomFloats(shape.out, 3));
        const Filled out = Multiply(*device, *matrix, x, bias.tensor());

        const bool bf16 = type == WeightType::kBF16;
        const auto w = Doubles(bf16 ? Rounded(source.values()) : source.values());
        const auto rx = Doubles(bf16 ? Rounded(x.values()) : x.values());
        const auto rb = Doubles(bias.values());
        std::vector<double> want(static_cast<size_t>(rows * shape.out));
        ref::Linear<double>(w, rx, rb, rows, shape.in, shape.out, want);
        EXPECT_LT(RelativeError(out.values(), want), 2e-6)
            << WeightTypeName(type) << " " << shape.out << "x" << shape.in << " rows " << rows;
      }
    }
  }
}

TEST(Linear, Int8EqualsTheExactIntegerSumsAndOneRounding) {
  for (const Shape& shape : kShapes) {
    const int64_t rows = 9;
    auto device = MakeDevice(2);
    MemoryAccount account;
    FloatSource source("w", shape.out, shape.in, RandomFloats(shape.out * shape.in, 4));
    auto matrix = Load(*device, account, source, WeightType::kInt8);
    EXPECT_EQ(device->MatrixBytes(shape.out, shape.in, WeightType::kInt8, DType::kF32),
              account.current().total);
    Filled x(rows, shape.in, RandomFloats(rows * shape.in, 5));
    Filled bias(1, shape.out, RandomFloats(shape.out, 6));
    const Filled out = Multiply(*device, *matrix, x, bias.tensor());
    for (int64_t r = 0; r < rows; ++r) {
      const QuantizedRow qx = Quantize(x.row(r));
      for (int64_t n = 0; n < shape.out; ++n) {
        const QuantizedRow qw = Quantize(
            std::span(source.values())
                .subspan(static_cast<size_t>(n * shape.in), static_cast<size_t>(shape.in)));
        int64_t sum = 0;
        for (size_t k = 0; k < qx.q.size(); ++k) {
          sum += qx.q[k] * qw.q[k];
        }
        const float want = std::fma(static_cast<float>(sum), qx.scale * qw.scale,
                                    bias.values()[static_cast<size_t>(n)]);
        ASSERT_EQ(out.row(r)[static_cast<size_t>(n)], want)
            << shape.out << "x" << shape.in << " at " << r << "," << n;
      }
    }
  }
}

TEST(Linear, Int8HoldsTheLargestSumsWithoutSaturation) {
  const int64_t in = 4096;
  auto device = MakeDevice();
  MemoryAccount account;
  std::vector<float> weights(static_cast<size_t>(2 * in), 1.0F);
  std::fill(weights.begin() + in, weights.end(), -1.0F);
  FloatSource source("w", 2, in, weights);
  auto matrix = Load(*device, account, source, WeightType::kInt8);
  for (const float sign : {1.0F, -1.0F}) {
    Filled x(1, in, std::vector<float>(static_cast<size_t>(in), 127.0F * sign));
    const Filled out = Multiply(*device, *matrix, x);
    EXPECT_FLOAT_EQ(out.row(0)[0], 127.0F * 4096 * sign);
    EXPECT_FLOAT_EQ(out.row(0)[1], -127.0F * 4096 * sign);
  }
}

TEST(Linear, RowsHaveTheSameBitsForAnyNumberOfRowsAndThreads) {
  const Shape shapes[] = {{200, 1031}, {96, 36}, {576, 576}};
  for (const WeightType type : {WeightType::kF32, WeightType::kBF16, WeightType::kInt8}) {
    for (const Shape& shape : shapes) {
      const int64_t most = 600;
      MemoryAccount account;
      FloatSource source("w", shape.out, shape.in, RandomFloats(shape.out * shape.in, 7));
      auto one = MakeDevice(1);
      auto matrix = Load(*one, account, source, type);
      Filled x(most, shape.in, RandomFloats(most * shape.in, 8));
      const Filled want = Multiply(*one, *matrix, x);
      for (const int threads : {1, 2, 3, 5}) {
        auto device = MakeDevice(threads);
        for (int64_t rows = 1; rows <= 70; rows += threads == 1 ? 1 : 9) {
          // The last rows, so that a row's place in the batch changes too.
          Filled part(rows, shape.in, {x.values().end() - rows * shape.in, x.values().end()});
          const Filled got = Multiply(*device, *matrix, part);
          ASSERT_EQ(
              0, std::memcmp(got.values().data(), want.values().data() + (most - rows) * shape.out,
                             static_cast<size_t>(rows * shape.out) * 4))
              << WeightTypeName(type) << " rows " << rows << " threads " << threads;
        }
      }
    }
  }
}

TEST(Linear, ReadsAndWritesSlicesOfWiderMatrices) {
  for (const WeightType type : {WeightType::kF32, WeightType::kBF16, WeightType::kInt8}) {
    auto device = MakeDevice();
    MemoryAccount account;
    FloatSource source("w", 24, 20, RandomFloats(24 * 20, 9));
    auto matrix = Load(*device, account, source, type);
    Filled wide(7, 50, RandomFloats(7 * 50, 10));
    Filled narrow(7, 20);
    for (int64_t r = 0; r < 7; ++r) {
      std::ranges::copy(wide.row(r).subspan(11, 20), narrow.tensor().Row<float>(r).begin());
    }
    const Filled want = Multiply(*device, *matrix, narrow);
    Filled out(7, 40, 5.0F);
    Scratch scratch(WorkspaceBytes(*device, *matrix, 7));
    device->Linear(*matrix, wide.tensor().Columns(11, 20), {}, out.tensor().Columns(3, 24),
                   scratch.tensor());
    for (int64_t r = 0; r < 7; ++r) {
      for (size_t c = 0; c < 40; ++c) {
        const bool inside = c >= 3 && c < 27;
        EXPECT_EQ(out.row(r)[c], inside ? want.row(r)[c - 3] : 5.0F);
      }
    }
  }
}

TEST(Linear, PartsAreOneMatrixInTheirOrder) {
  auto device = MakeDevice();
  MemoryAccount account;
  FloatSource q("q", 20, 12, RandomFloats(20 * 12, 11));
  FloatSource k("k", 7, 12, RandomFloats(7 * 12, 12));
  const MatrixSource* parts[] = {&q, &k};
  auto fused = device->LoadMatrix(parts, WeightType::kInt8, account);
  ASSERT_TRUE(fused.ok());
  ASSERT_EQ(fused.value()->rows(), 27);
  Filled x(2, 12, RandomFloats(24, 13));
  const Filled out = Multiply(*device, *fused.value(), x);
  const Filled out_q = Multiply(*device, *Load(*device, account, q, WeightType::kInt8), x);
  const Filled out_k = Multiply(*device, *Load(*device, account, k, WeightType::kInt8), x);
  for (int64_t r = 0; r < 2; ++r) {
    for (size_t c = 0; c < 27; ++c) {
      EXPECT_EQ(out.row(r)[c], c < 20 ? out_q.row(r)[c] : out_k.row(r)[c - 20]);
    }
  }
}

TEST(Linear, ANonFiniteActivationShowsInItsRowAndOnlyThere) {
  for (const WeightType type : {WeightType::kF32, WeightType::kBF16, WeightType::kInt8}) {
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      auto device = MakeDevice();
      MemoryAccount account;
      FloatSource source("w", 40, 36, RandomFloats(40 * 36, 14));
      auto matrix = Load(*device, account, source, type);
      Filled x(3, 36, RandomFloats(3 * 36, 15));
      x.values()[36 + 5] = bad;
      Filled out = Multiply(*device, *matrix, x);
      EXPECT_EQ(device->FirstNonFiniteRow(out.tensor()), 1);
      EXPECT_EQ(device->FirstNonFiniteRow(out.tensor().Rows(2, 1)), -1);
    }
  }
}

TEST(Linear, ANonFiniteWeightIsAnErrorThatNamesTheTensor) {
  auto device = MakeDevice(2);
  MemoryAccount account;
  std::vector<float> values = RandomFloats(300 * 300, 16);
  values[250 * 300 + 3] = std::numeric_limits<float>::quiet_NaN();
  FloatSource source("model.layers.3.mlp.down_proj.weight", 300, 300, values);
  const MatrixSource* parts[] = {&source};
  const auto matrix = device->LoadMatrix(parts, WeightType::kInt8, account);
  ASSERT_FALSE(matrix.ok());
  EXPECT_EQ(matrix.error().code, ErrorCode::kCorruptData);
  EXPECT_NE(matrix.error().message.find("model.layers.3.mlp.down_proj.weight, row 250"),
            std::string::npos)
      << matrix.error().message;
  EXPECT_EQ(account.current().total, 0);
}

TEST(Linear, AMatrixBeyondTheAccountIsRefused) {
  auto device = MakeDevice();
  MemoryAccount account(1000);
  FloatSource source("w", 64, 64, RandomFloats(64 * 64, 17));
  const MatrixSource* parts[] = {&source};
  const auto matrix = device->LoadMatrix(parts, WeightType::kBF16, account);
  ASSERT_FALSE(matrix.ok());
  EXPECT_EQ(matrix.error().code, ErrorCode::kOutOfMemory);
}

TEST(Embed, GathersRowsOfThePackedTable) {
  const Shape shape{97, 36};
  auto device = MakeDevice(2);
  MemoryAccount account;
  FloatSource source("embed", shape.out, shape.in, RandomFloats(shape.out * shape.in, 18));
  const std::vector<int32_t> ids = {96, 0, 3, 3, 17};
  for (const WeightType type : {WeightType::kF32, WeightType::kBF16, WeightType::kInt8}) {
    auto matrix = Load(*device, account, source, type);
    Filled out(5, shape.in);
    device->Embed(*matrix, ids, 2.0F, out.tensor());
    for (int64_t r = 0; r < 5; ++r) {
      const auto row = std::span(source.values())
                           .subspan(static_cast<size_t>(ids[static_cast<size_t>(r)] * shape.in),
                                    static_cast<size_t>(shape.in));
      const QuantizedRow q = Quantize(row);
      for (size_t c = 0; c < row.size(); ++c) {
        float want = row[c] * 2.0F;
        if (type == WeightType::kBF16) {
          want = RoundToBf16(row[c]) * 2.0F;
        } else if (type == WeightType::kInt8) {
          want = static_cast<float>(q.q[c]) * q.scale * 2.0F;
        }
        EXPECT_EQ(out.row(r)[c], want) << WeightTypeName(type);
      }
    }
  }
}

}  // namespace
}  // namespace penstock::kernels
