// Mixture of experts against its scalar twin, routing rules, and bit equality over batches.

#include <gtest/gtest.h>

#include "kernels/cpu/moe_routing.h"
#include "kernels/ref/moe.h"
#include "kernels/test_support.h"

namespace penstock::kernels {
namespace {

constexpr int64_t kExperts = 7;
constexpr int64_t kWidth = 40;
constexpr int64_t kFfn = 24;

// Experts of one layer on a device, and the same weights for the twin.
class Layer {
 public:
  Layer(Device& device, bool sigmoid)
      : router_(kExperts, kWidth, RandomFloats(kExperts * kWidth, 1)),
        bias_(1, kExperts, RandomFloats(kExperts, 2)) {
    for (uint64_t e = 0; e < kExperts; ++e) {
      up_.emplace_back("up", 2 * kFfn, kWidth, RandomFloats(2 * kFfn * kWidth, 10 + e));
      down_.emplace_back("down", kWidth, kFfn, RandomFloats(kWidth * kFfn, 20 + e));
    }
    for (size_t e = 0; e < kExperts; ++e) {
      owned_.push_back(Load(device, up_[e]));
      gate_up_.push_back(owned_.back().get());
      owned_.push_back(Load(device, down_[e]));
      down_matrices_.push_back(owned_.back().get());
    }
    params_.sigmoid = sigmoid;
    params_.normalize = true;
    params_.chosen = 3;
    params_.weight_scale = 1.5F;
    params_.router = router_.tensor();
    if (sigmoid) {
      params_.router_bias = bias_.tensor();
    }
    params_.gate_up = gate_up_;
    params_.down = down_matrices_;
  }

  const MoeParams& params() const { return params_; }

  std::vector<double> Reference(const Filled& x, int64_t rows) const {
    std::vector<std::vector<double>> store;
    store.reserve(2 + 2 * kExperts);
    const auto keep = [&store](const std::vector<float>& values) -> std::span<const double> {
      return store.emplace_back(values.begin(), values.end());
    };
    ref::MoeWeights<double> weights;
    weights.router = keep(router_.values());
    if (params_.sigmoid) {
      weights.router_bias = keep(bias_.values());
    }
    for (size_t e = 0; e < kExperts; ++e) {
      weights.gate_up.push_back(keep(up_[e].values()));
      weights.down.push_back(keep(down_[e].values()));
    }
    const ref::MoeChoice choice{params_.sigmoid, params_.normalize, params_.chosen,
                                params_.weight_scale};
    std::vector<double> out;
    for (int64_t r = 0; r < rows; ++r) {
      std::vector<double> row(kWidth);
      ref::Moe<double>(weights, choice, Activation::kSilu, kFfn, Doubles(x.row(r)), row);
      out.insert(out.end(), row.begin(), row.end());
    }
    return out;
  }

 private:
  std::unique_ptr<Matrix> Load(Device& device, const MatrixSource& source) {
    const MatrixSource* parts[] = {&source};
    auto matrix = device.LoadMatrix(parts, WeightType::kF32, account_);
    EXPECT_TRUE(matrix.ok());
    return std::move(matrix).value();
  }

  MemoryAccount account_;
  Filled router_;
  Filled bias_;
  std::vector<FloatSource> up_;
  std::vector<FloatSource> down_;
  std::vector<std::unique_ptr<Matrix>> owned_;
  std::vector<const Matrix*> gate_up_;
  std::vector<const Matrix*> down_matrices_;
  MoeParams params_;
};

std::vector<float> Mix(Device& device, const Layer& layer, Filled& x) {
  Filled out(x.tensor().rows(), kWidth, 9.0F);
  const int64_t rows = x.tensor().rows();
  Scratch scratch(device.MoeWorkspaceBytes(kExperts, layer.params().chosen, kWidth, kFfn,
                                           WeightType::kF32, rows));
  device.Moe(layer.params(), x.tensor(), out.tensor(), scratch.tensor());
  return out.values();
}

TEST(Moe, AgreesWithTheScalarTwin) {
  for (const bool sigmoid : {false, true}) {
    auto device = MakeDevice(2);
    const Layer layer(*device, sigmoid);
    Filled x(33, kWidth, RandomFloats(33 * kWidth, 3));
    EXPECT_LT(RelativeError(Mix(*device, layer, x), layer.Reference(x, 33)), 2e-6);
  }
}

TEST(Moe, ARowHasTheSameBitsAloneAndInABatch) {
  auto device = MakeDevice(2);
  const Layer layer(*device, false);
  Filled x(33, kWidth, RandomFloats(33 * kWidth, 4));
  const std::vector<float> all = Mix(*device, layer, x);
  for (const int64_t r : {0, 5, 32}) {
    Filled alone(1, kWidth, {x.row(r).begin(), x.row(r).end()});
    const std::vector<float> one = Mix(*device, layer, alone);
    EXPECT_TRUE(std::equal(one.begin(), one.end(), all.begin() + r * kWidth));
  }
}

TEST(Moe, TiesGoToTheLowerIndexAndNormalizationSumsToTheScale) {
  MoeParams params;
  params.chosen = 3;
  params.normalize = true;
  params.weight_scale = 2.0F;
  Filled router(6, 4);
  params.router = router.tensor();
  float logits[] = {1.0F, 3.0F, 2.0F, 3.0F, 2.0F, 2.0F};
  int32_t chosen[3];
  float weights[3];
  RouteRow(params, logits, chosen, weights);
  EXPECT_EQ(chosen[0], 1);
  EXPECT_EQ(chosen[1], 3);
  EXPECT_EQ(chosen[2], 2);
  EXPECT_EQ(weights[0], weights[1]);
  EXPECT_NEAR(weights[0] + weights[1] + weights[2], 2.0F, 1e-6);
}

TEST(Moe, ARoutersNanStillChoosesDistinctExperts) {
  MoeParams params;
  params.chosen = 3;
  params.sigmoid = true;
  Filled router(4, 4);
  params.router = router.tensor();
  float logits[] = {NAN, NAN, NAN, NAN};
  int32_t chosen[3];
  float weights[3];
  RouteRow(params, logits, chosen, weights);
  EXPECT_EQ(chosen[0], 0);
  EXPECT_EQ(chosen[1], 1);
  EXPECT_EQ(chosen[2], 2);
  EXPECT_TRUE(std::isnan(weights[0]));
}

}  // namespace
}  // namespace penstock::kernels
