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

  MoeParams& params() { return params_; }

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

TEST(Moe, ExpertsComeFromTheGroupsWithTheBestPairs) {
  MoeParams params;
  params.sigmoid = true;
  params.chosen = 2;
  params.groups = 3;
  params.chosen_groups = 1;
  Filled router(9, 4);
  params.router = router.tensor();
  // The best single score is in group 0, the best pair in group 1.
  Filled bias(1, 9, {0, 0, 0, 0, 0, 0, -5, 1, 1});
  const std::vector<float> given = {4.0F, -9, -9, 0.5F, 0.4F, 0.3F, -3.0F, -2.5F, -1.0F};
  std::vector<float> logits = given;
  int32_t chosen[2];
  float weights[2];
  RouteRow(params, logits.data(), chosen, weights);
  EXPECT_EQ(chosen[0], 3);
  EXPECT_EQ(chosen[1], 4);
  params.router_bias = bias.tensor();
  logits = given;
  RouteRow(params, logits.data(), chosen, weights);
  // The bias moves the choice to group 2 and stays out of the weights.
  EXPECT_EQ(chosen[0], 8);
  EXPECT_EQ(chosen[1], 7);
  EXPECT_NEAR(weights[0], 1.0F / (1.0F + std::exp(1.0F)), 1e-6);
}

TEST(Moe, GroupedRoutingAgreesWithTheScalarTwin) {
  constexpr int64_t kCount = 24;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const std::vector<float> router = RandomFloats(kCount * 8, seed);
    const std::vector<float> bias = RandomFloats(kCount, seed + 1000);
    const std::vector<float> x = RandomFloats(8, seed + 2000);
    ref::MoeWeights<double> weights;
    const std::vector<double> wide_router = Doubles(router);
    const std::vector<double> wide_bias = Doubles(bias);
    weights.router = wide_router;
    weights.router_bias = wide_bias;
    weights.gate_up.resize(kCount);
    const ref::MoeChoice choice{true, true, 4, 2.5, 6, 2};
    const std::vector<double> want = ref::RouterWeights<double>(weights, choice, Doubles(x));
    MoeParams params;
    params.sigmoid = true;
    params.normalize = true;
    params.chosen = 4;
    params.weight_scale = 2.5F;
    params.groups = 6;
    params.chosen_groups = 2;
    Filled router_rows(kCount, 8, router);
    Filled bias_row(1, kCount, bias);
    params.router = router_rows.tensor();
    params.router_bias = bias_row.tensor();
    std::vector<float> logits;
    for (int64_t e = 0; e < kCount; ++e) {
      double sum = 0;
      for (size_t c = 0; c < 8; ++c) {
        sum += static_cast<double>(router[static_cast<size_t>(e) * 8 + c]) * x[c];
      }
      logits.push_back(static_cast<float>(sum));
    }
    int32_t chosen[4];
    float got[4];
    RouteRow(params, logits.data(), chosen, got);
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_NEAR(got[i], want[static_cast<size_t>(chosen[i])], 1e-6) << "seed " << seed;
    }
  }
}

TEST(Moe, TheRouterMayReadAnotherInputThanTheExperts) {
  auto device = MakeDevice(2);
  Layer layer(*device, true);
  Filled x(5, kWidth, RandomFloats(5 * kWidth, 6));
  Filled other(5, kWidth, RandomFloats(5 * kWidth, 7));
  const std::vector<float> same = Mix(*device, layer, x);
  layer.params().router_input = x.tensor();
  EXPECT_EQ(Mix(*device, layer, x), same);
  layer.params().router_input = other.tensor();
  EXPECT_NE(Mix(*device, layer, x), same);
}

}  // namespace
}  // namespace penstock::kernels
