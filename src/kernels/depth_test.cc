// Reads over depth against their scalar twins.

#include <gtest/gtest.h>

#include <complex>
#include <limits>

#include "kernels/ref/depth.h"
#include "kernels/test_support.h"

namespace penstock::kernels {
namespace {

struct ReadCase {
  ReadCase(int64_t count, int64_t rows, int64_t columns, float query_scale = 1.0F)
      : query(1, columns, RandomFloats(columns, 1)), norm(1, columns, RandomFloats(columns, 2)) {
    for (float& q : query.values()) {
      q *= query_scale;
    }
    for (int64_t j = 0; j < count; ++j) {
      sources.emplace_back(rows, columns, RandomFloats(rows * columns, 10 + j));
      for (float& s : sources.back().values()) {
        s *= static_cast<float>(j % 3) + 0.25F;
      }
    }
  }

  std::vector<Tensor> tensors() {
    std::vector<Tensor> result;
    for (Filled& source : sources) {
      result.push_back(source.tensor());
    }
    return result;
  }

  std::vector<double> Reference(bool with_norm, double epsilon) const {
    std::vector<std::vector<double>> doubles;
    for (const Filled& source : sources) {
      doubles.push_back(Doubles(source.values()));
    }
    const std::vector<std::span<const double>> views(doubles.begin(), doubles.end());
    std::vector<double> out(sources[0].values().size());
    const std::vector<double> q = Doubles(query.values());
    const std::vector<double> g = with_norm ? Doubles(norm.values()) : std::vector<double>();
    ref::DepthRead<double>(views, q, g, epsilon, static_cast<int64_t>(q.size()), out);
    return out;
  }

  Filled query;
  Filled norm;
  std::vector<Filled> sources;
};

TEST(DepthRead, AgreesWithTheScalarTwin) {
  auto device = MakeDevice(2);
  for (const int64_t columns : {1, 7, 32, 65, 577}) {
    for (const int64_t count : {1, 2, 5, 40}) {
      for (const bool with_norm : {false, true}) {
        ReadCase read(count, 5, columns);
        Filled out(5, columns);
        device->DepthRead(read.tensors(), read.query.tensor(),
                          with_norm ? read.norm.tensor() : Tensor(), 1e-5F, out.tensor());
        EXPECT_LT(RelativeError(out.values(), read.Reference(with_norm, 1e-5F)), 2e-6)
            << columns << " columns, " << count << " sources";
      }
    }
  }
}

TEST(DepthRead, OfAZeroQueryIsTheMean) {
  auto device = MakeDevice();
  ReadCase read(4, 3, 50, 0.0F);
  Filled out(3, 50);
  device->DepthRead(read.tensors(), read.query.tensor(), read.norm.tensor(), 1e-5F, out.tensor());
  for (size_t i = 0; i < out.values().size(); ++i) {
    float sum = read.sources[0].values()[i];
    for (size_t j = 1; j < 4; ++j) {
      sum += read.sources[j].values()[i];
    }
    EXPECT_EQ(out.values()[i], sum * 0.25F);
  }
}

TEST(DepthRead, OfOneSourceIsThatSource) {
  auto device = MakeDevice();
  ReadCase read(1, 3, 50);
  Filled out(3, 50);
  device->DepthRead(read.tensors(), read.query.tensor(), Tensor(), 1e-5F, out.tensor());
  EXPECT_EQ(out.values(), read.sources[0].values());
}

// Scores of thousands: the softmax is taken from the largest, in whichever place it stands.
TEST(DepthRead, WithALargeQueryChoosesOneSource) {
  auto device = MakeDevice();
  ReadCase read(5, 4, 64, 1e4F);
  Filled out(4, 64);
  device->DepthRead(read.tensors(), read.query.tensor(), Tensor(), 1e-5F, out.tensor());
  EXPECT_LT(RelativeError(out.values(), read.Reference(false, 1e-5F)), 1e-6);
  const std::vector<double> want = read.Reference(false, 1e-5F);
  int chosen = 0;
  for (int64_t r = 0; r < 4; ++r) {
    for (const Filled& source : read.sources) {
      chosen += std::ranges::equal(out.row(r), source.row(r)) ? 1 : 0;
    }
  }
  EXPECT_EQ(chosen, 4);
}

TEST(DepthRead, GivesTheSameBitsForARowInAnyBatchWithAnyThreads) {
  ReadCase read(9, 67, 200);
  Filled whole(67, 200);
  auto device = MakeDevice(1);
  device->DepthRead(read.tensors(), read.query.tensor(), read.norm.tensor(), 1e-5F, whole.tensor());
  auto two = MakeDevice(2);
  Filled other(67, 200);
  two->DepthRead(read.tensors(), read.query.tensor(), read.norm.tensor(), 1e-5F, other.tensor());
  EXPECT_EQ(other.values(), whole.values());
  for (const int64_t r : {int64_t{0}, int64_t{33}, int64_t{66}}) {
    std::vector<Filled> rows;
    std::vector<Tensor> tensors;
    rows.reserve(9);
    for (const Filled& source : read.sources) {
      rows.emplace_back(1, 200, std::vector<float>(source.row(r).begin(), source.row(r).end()));
      tensors.push_back(rows.back().tensor());
    }
    Filled one(1, 200);
    device->DepthRead(tensors, read.query.tensor(), read.norm.tensor(), 1e-5F, one.tensor());
    EXPECT_TRUE(std::ranges::equal(one.row(0), whole.row(r)));
  }
}

TEST(DepthRead, KeepsNanInItsRow) {
  auto device = MakeDevice();
  for (const size_t bad : {size_t{0}, size_t{1}, size_t{2}}) {
    ReadCase read(3, 2, 40);
    read.sources[bad].values()[5] = std::numeric_limits<float>::quiet_NaN();
    Filled out(2, 40);
    device->DepthRead(read.tensors(), read.query.tensor(), Tensor(), 1e-5F, out.tensor());
    EXPECT_EQ(device->FirstNonFiniteRow(out.tensor()), 0);
    for (const float x : out.row(0)) {
      EXPECT_TRUE(std::isnan(x));
    }
    for (const float x : out.row(1)) {
      EXPECT_TRUE(std::isfinite(x));
    }
  }
}

}  // namespace
}  // namespace penstock::kernels
