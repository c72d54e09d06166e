// Products with 4-bit weights: the file's blocks without loss, against exact block sums.

#include <gtest/gtest.h>

#include "kernels/ref/linear.h"
#include "kernels/test_support.h"

namespace penstock::kernels {
namespace {

// Small scales that are exact in f16: 2^-6 times 1 to 8.
uint16_t Half(int eighths, bool negative) {
  const float value = static_cast<float>(eighths) / 512.0F;
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t exponent = ((bits >> 23) & 255) - 112;
  return static_cast<uint16_t>((negative ? 0x8000U : 0U) | (exponent << 10) |
                               ((bits >> 13) & 1023));
}

// E2M1.
float E2M1(uint32_t four) {
  constexpr float kMagnitudes[] = {0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F};
  return four < 8 ? kMagnitudes[four] : -kMagnitudes[four - 8];
}

// Random q4_0, q4_1 or mxfp4 blocks in GGUF's layout.
class Int4Source final : public MatrixSource {
 public:
  Int4Source(DType type, int64_t rows, int64_t columns, uint64_t seed)
      : type_(type), rows_(rows), columns_(columns), values_(static_cast<size_t>(rows * columns)) {
    uint64_t state = seed;
    const auto next = [&state] {
      state = state * 6364136223846793005U + 1442695040888963407U;
      return static_cast<uint32_t>(state >> 40);
    };
    bytes_.resize(static_cast<size_t>(rows * RowBytes(type, columns)));
    size_t at = 0;
    for (int64_t b = 0; b < rows * columns / 32; ++b) {
      if (type == DType::kMXFP4) {
        TakeMxfp4(b, next, at);
        continue;
      }
      const int step = 1 + static_cast<int>(next() % 15);
      const bool negative = next() % 2 == 0;
      const float scale = static_cast<float>(negative ? -step : step) / 512.0F;
      const uint16_t half = Half(step, negative);
      std::memcpy(&bytes_[at], &half, 2);
      at += 2;
      float minimum = -8.0F * scale;
      if (type == DType::kQ4_1) {
        const int eighths = 1 + static_cast<int>(next() % 15);
        const uint16_t minimum_half = Half(eighths, true);
        minimum = -static_cast<float>(eighths) / 512.0F;
        std::memcpy(&bytes_[at], &minimum_half, 2);
        at += 2;
      }
      for (size_t j = 0; j < 16; ++j) {
        const uint32_t both = next() & 255;
        bytes_[at++] = static_cast<std::byte>(both);
        values_[static_cast<size_t>(b) * 32 + j] = static_cast<float>(both & 15) * scale + minimum;
        values_[static_cast<size_t>(b) * 32 + 16 + j] =
            static_cast<float>(both >> 4) * scale + minimum;
      }
    }
  }

  const std::string& name() const override { return name_; }

  int64_t rows() const override { return rows_; }

  int64_t columns() const override { return columns_; }

  DType type() const override { return type_; }

  Result<> ReadRows(int64_t begin, int64_t count, std::span<float> out) const override {
    std::copy_n(values_.begin() + begin * columns_, count * columns_, out.begin());
    return {};
  }

  std::span<const std::byte> RawRow(int64_t row) const override {
    const auto size = static_cast<size_t>(RowBytes(type_, columns_));
    return std::span(bytes_).subspan(static_cast<size_t>(row) * size, size);
  }

  void DropPages() const override {}

  const std::vector<float>& values() const { return values_; }

  std::vector<std::byte>& bytes() { return bytes_; }

 private:
  template <class Next>
  void TakeMxfp4(int64_t block, const Next& next, size_t& at) {
    const uint32_t exponent = 118 + next() % 12;
    bytes_[at++] = static_cast<std::byte>(exponent);
    const float scale = std::ldexp(1.0F, static_cast<int>(exponent) - 127);
    for (size_t j = 0; j < 16; ++j) {
      const uint32_t both = next() & 255;
      bytes_[at++] = static_cast<std::byte>(both);
      values_[static_cast<size_t>(block) * 32 + j] = E2M1(both & 15) * scale;
      values_[static_cast<size_t>(block) * 32 + 16 + j] = E2M1(both >> 4) * scale;
    }
  }

  std::string name_ = "blk.0.attn_q.weight";
  DType type_;
  int64_t rows_;
  int64_t columns_;
  std::vector<std::byte> bytes_;
  std::vector<float> values_;
};

// The activations as an int4 product sees them: 8 bits per block of 32.
std::vector<float> QuantizedActivations(const std::vector<float>& x) {
  std::vector<float> result;
  for (size_t b = 0; b < x.size(); b += 32) {
    float largest = 0;
    for (size_t i = b; i < b + 32; ++i) {
      largest = std::max(largest, std::abs(x[i]));
    }
    const float inverse = largest == 0 ? 0.0F : 127.0F / largest;
    for (size_t i = b; i < b + 32; ++i) {
      result.push_back(std::nearbyint(x[i] * inverse) * (largest / 127.0F));
    }
  }
  return result;
}

Filled Multiply(Device& device, const Matrix& matrix, Filled& x) {
  Filled out(x.tensor().rows(), matrix.rows(), 77.0F);
  Scratch scratch(device.LinearWorkspaceBytes(matrix.rows(), matrix.columns(), matrix.type(),
                                              x.tensor().rows()));
  device.Linear(matrix, x.tensor(), {}, out.tensor(), scratch.tensor());
  return out;
}

struct Shape {
  int64_t out;
  int64_t in;
};

const Shape kShapes[] = {{1, 32}, {40, 64}, {96, 96}, {130, 576}, {200, 2080}};

TEST(Int4, AgreesWithTheDequantizedProduct) {
  for (const DType type : {DType::kQ4_0, DType::kQ4_1, DType::kMXFP4}) {
    for (const Shape& shape : kShapes) {
      auto device = MakeDevice(2);
      MemoryAccount account;
      Int4Source source(type, shape.out, shape.in, 3);
      const MatrixSource* parts[] = {&source};
      auto matrix = device->LoadMatrix(parts, WeightType::kInt4, account);
      ASSERT_TRUE(matrix.ok());
      EXPECT_EQ(device->MatrixBytes(shape.out, shape.in, WeightType::kInt4, type),
                account.current().total);
      Filled x(7, shape.in, RandomFloats(7 * shape.in, 4));
      const Filled out = Multiply(*device, *matrix.value(), x);
      std::vector<double> want(static_cast<size_t>(7 * shape.out));
      ref::Linear<double>(Doubles(source.values()), Doubles(QuantizedActivations(x.values())), {},
                          7, shape.in, shape.out, want);
      EXPECT_LT(RelativeError(out.values(), want), 2e-6) << shape.out << "x" << shape.in;
    }
  }
}

TEST(Int4, BlockSumsAreExact) {
  // One block: scale and integers decide alone, with one rounding per float operation.
  for (const DType type : {DType::kQ4_0, DType::kQ4_1, DType::kMXFP4}) {
    auto device = MakeDevice();
    MemoryAccount account;
    Int4Source source(type, 33, 32, 5);
    const MatrixSource* parts[] = {&source};
    auto matrix = device->LoadMatrix(parts, WeightType::kInt4, account);
    ASSERT_TRUE(matrix.ok());
    std::vector<float> values(32);
    for (size_t i = 0; i < 32; ++i) {
      values[i] = static_cast<float>(static_cast<int>(i * 37 % 255) - 127);
    }
    values[0] = 127.0F;  // the scale is exactly 1
    Filled x(1, 32, values);
    const Filled out = Multiply(*device, *matrix.value(), x);
    for (size_t n = 0; n < 33; ++n) {
      double want = 0;
      for (size_t i = 0; i < 32; ++i) {
        want += static_cast<double>(source.values()[n * 32 + i]) * values[i];
      }
      EXPECT_EQ(out.row(0)[n], want);
    }
  }
}

TEST(Int4, RowsHaveTheSameBitsForAnyNumberOfRowsAndThreads) {
  for (const DType type : {DType::kQ4_0, DType::kQ4_1, DType::kMXFP4}) {
    MemoryAccount account;
    Int4Source source(type, 200, 2080, 6);
    const MatrixSource* parts[] = {&source};
    auto one = MakeDevice(1);
    auto matrix = one->LoadMatrix(parts, WeightType::kInt4, account);
    ASSERT_TRUE(matrix.ok());
    Filled x(300, 2080, RandomFloats(300 * 2080, 7));
    const Filled want = Multiply(*one, *matrix.value(), x);
    for (const int threads : {1, 2, 3}) {
      auto device = MakeDevice(threads);
      for (int64_t rows = 1; rows <= 70; rows += threads == 1 ? 1 : 11) {
        Filled part(rows, 2080, {x.values().end() - rows * 2080, x.values().end()});
        const Filled got = Multiply(*device, *matrix.value(), part);
        ASSERT_EQ(0, std::memcmp(got.values().data(), want.values().data() + (300 - rows) * 200,
                                 static_cast<size_t>(rows) * 800))
            << "rows " << rows << " threads " << threads;
      }
    }
  }
}

TEST(Int4, PartsWithAndWithoutMinimaAreOneMatrix) {
  auto device = MakeDevice();
  MemoryAccount account;
  Int4Source q(DType::kQ4_0, 20, 64, 8);
  Int4Source k(DType::kQ4_1, 30, 64, 9);
  const MatrixSource* parts[] = {&q, &k};
  auto matrix = device->LoadMatrix(parts, WeightType::kInt4, account);
  ASSERT_TRUE(matrix.ok());
  EXPECT_EQ(device->MatrixBytes(50, 64, WeightType::kInt4, DType::kQ4_1), matrix.value()->bytes());
  Filled row(1, 64);
  for (int32_t r = 0; r < 50; ++r) {
    device->Embed(*matrix.value(), {&r, 1}, 1.0F, row.tensor());
    const auto& values = r < 20 ? q.values() : k.values();
    const int64_t at = (r < 20 ? r : r - 20) * 64;
    EXPECT_TRUE(std::equal(row.values().begin(), row.values().end(), values.begin() + at));
  }
}

TEST(Int4, ANonFiniteScaleIsAnErrorThatNamesTheTensor) {
  auto device = MakeDevice();
  MemoryAccount account;
  Int4Source source(DType::kQ4_0, 70, 64, 10);
  source.bytes()[static_cast<size_t>(66 * RowBytes(DType::kQ4_0, 64) + 19)] = std::byte{0x7e};
  const MatrixSource* parts[] = {&source};
  const auto matrix = device->LoadMatrix(parts, WeightType::kInt4, account);
  ASSERT_FALSE(matrix.ok());
  EXPECT_EQ(matrix.error().code, ErrorCode::kCorruptData);
  EXPECT_NE(matrix.error().message.find("blk.0.attn_q.weight, row 66"), std::string::npos)
      << matrix.error().message;
}

TEST(Int4, MicroscalingRowsAreReadAsTheyAre) {
  auto device = MakeDevice();
  MemoryAccount account;
  Int4Source source(DType::kMXFP4, 50, 96, 11);
  const MatrixSource* parts[] = {&source};
  auto matrix = device->LoadMatrix(parts, WeightType::kInt4, account);
  ASSERT_TRUE(matrix.ok());
  // 17 bytes per block of 32, rows padded to strips of 16.
  EXPECT_EQ(matrix.value()->bytes(), (64 * 3 * 17 + 63) / 64 * 64);
  Filled row(1, 96);
  for (int32_t r = 0; r < 50; ++r) {
    device->Embed(*matrix.value(), {&r, 1}, 1.0F, row.tensor());
    EXPECT_TRUE(
        std::equal(row.values().begin(), row.values().end(), source.values().begin() + r * 96));
  }
  source.bytes()[static_cast<size_t>(3 * RowBytes(DType::kMXFP4, 96) + 17)] = std::byte{255};
  const auto bad = device->LoadMatrix(parts, WeightType::kInt4, account);
  ASSERT_FALSE(bad.ok());
  EXPECT_NE(bad.error().message.find("row 3"), std::string::npos) << bad.error().message;
}

}  // namespace
}  // namespace penstock::kernels
