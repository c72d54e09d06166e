#include "model/counted.h"

#include <gtest/gtest.h>

#include <set>

#include "base/config_path.h"
#include "base/json.h"
#include "model/config.h"
#include "model/cut.h"

namespace penstock::model {
namespace {

Model Named(const std::string& name) {
  const auto path = FindConfig("models", "json", name);
  EXPECT_TRUE(path.ok()) << path.error().message;
  const auto json = ReadJsonFile(path.value());
  EXPECT_TRUE(json.ok());
  auto model = BuildModel(json.value(), path.value());
  EXPECT_TRUE(model.ok()) << model.error().message;
  return std::move(model).value();
}

double Parameters(const Graph& graph) {
  double total = 0;
  for (const WeightTensor& tensor : graph.tensors) {
    double n = 1;
    for (const int64_t size : tensor.shape) {
      n *= static_cast<double>(size);
    }
    total += n;
  }
  return total;
}

struct Published {
  const char* name;
  double parameters;
  double tolerance;  // of the published figure's own rounding
};

// Published totals: model cards and papers; exact where the checkpoint's count is known.
constexpr Published kPublished[] = {
    {"deepseek-v3", 671.026e9, 1e-5},    // model card: 671B; checkpoint without the MTP layer
    {"kimi-k2", 1.026e12, 1e-3},         // "1T"; safetensors count 1.026T
    {"kimi-k3", 2.7795e12, 1e-4},        // technical report: 2.78T
    {"kimi-linear-48b", 49.12e9, 2e-3},  // "48B"; safetensors count 49.1B
    {"gpt-oss-120b", 116.83e9, 1e-4},    // model card: 116.83B
    {"gpt3-175b", 174.6e9, 1e-3},        // Brown et al. 2020: 175B; Narayanan et al. 2021: 174.6B
    {"megatron-22b", 22e9, 0.02},
    {"megatron-530b", 529.6e9, 1e-3},  // Narayanan et al. 2021, table 1
    {"megatron-1t", 1008.0e9, 1e-3},
    {"nemotron-4-340b", 341.0e9, 1e-3},  // 331.6B and 9.4B of embeddings
    {"grok-1", 314e9, 0.006},
    {"palm-540b", 540.35e9, 1e-4},
};

TEST(Counted, ParametersEqualThePublishedTotals) {
  for (const Published& p : kPublished) {
    const Model model = Named(p.name);
    EXPECT_NEAR(Parameters(model.graph) / p.parameters, 1, p.tolerance)
        << p.name << " " << Parameters(model.graph);
    EXPECT_EQ(model.graph.num_layers(), model.config.layers + 2) << p.name;
  }
}

TEST(Counted, TheMtpLayerOfDeepseekStandsBesideTheRest) {
  const Model model = Named("deepseek-v3");
  const double total = Parameters(model.graph) + static_cast<double>(model.config.mtp_parameters);
  EXPECT_NEAR(total / 682.6e9, 1, 1e-3) << total;
}

TEST(Counted, TheLatentStateOfDeepseekIs576ValuesPerLayerAndToken) {
  for (const char* name : {"deepseek-v3", "kimi-k2"}) {
    const Model model = Named(name);
    ASSERT_EQ(model.graph.states.size(), 61u);
    for (const LayerState& state : model.graph.states) {
      EXPECT_EQ(state.key_width + state.value_width, 576);
      EXPECT_EQ(state.kind, LayerState::Kind::kLatent);
    }
  }
}

TEST(Counted, KimiK3HasTheStateOfItsReportPerLayerKind) {
  const Model model = Named("kimi-k3");
  std::set<LayerId> recurrent;
  std::set<LayerId> latent;
  int64_t bytes = 0;
  int64_t per_token = 0;
  for (const LayerState& state : model.graph.states) {
    (state.kind == LayerState::Kind::kRecurrent ? recurrent : latent).insert(state.layer);
    bytes += state.sequence_bytes;
    per_token += state.key_width + state.value_width;
  }
  EXPECT_EQ(recurrent.size(), 69U);
  EXPECT_EQ(latent.size(), 24U);
  EXPECT_EQ(per_token, 24 * 576);
  // 414 MiB of state and 14.6 MiB of convolution tails.
  EXPECT_NEAR(static_cast<double>(bytes) / (1 << 20), 414 + 14.6, 0.1);
}

TEST(Counted, BeforeLayerLOfKimiK3CrossTheSumAndTheBankVectors) {
  const Model model = Named("kimi-k3");
  const CutSets cuts(model.graph);
  for (int32_t layer = 0; layer < 93; ++layer) {
    const auto& values = cuts.Crossing(layer + 1);  // unit 0 is the embedding
    // The running sum at a block's border is the next bank vector.
    const int32_t banks = (layer + 11) / 12;
    EXPECT_EQ(static_cast<int32_t>(values.size()), banks + 1) << "before layer " << layer;
    for (const ValueId id : values) {
      EXPECT_EQ(model.graph.value(id).width, 7168);
    }
  }
}

TEST(Counted, EveryNamedModelBuildsOrItsFamilyIsStillToCome) {
  for (const std::string& name : ConfigNames("models", "json")) {
    const auto json = ReadJsonFile(FindConfig("models", "json", name).value());
    ASSERT_TRUE(json.ok()) << json.error().message;
    const auto model = BuildModel(json.value(), name);
    if (!model.ok()) {
      EXPECT_EQ(model.error().code, ErrorCode::kUnsupported) << model.error().message;
    }
  }
}

}  // namespace
}  // namespace penstock::model
