#include "model/counted.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

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
  std::string name;
  double parameters = 0;
  double with_mtp = 0;
  double billions = 0;  // as published
  double digit = 0;     // of the last digit that was published, in billions
};

std::vector<Published> ReadPublished() {
  std::ifstream in(PENSTOCK_SOURCE_DIR "/tests/golden/tables/published_parameters.csv");
  std::vector<Published> rows;
  std::string line;
  while (std::getline(in, line)) {
    if (line.starts_with("#") || line.starts_with("name,")) {
      continue;
    }
    std::istringstream cells(line);
    Published row;
    char comma = 0;
    std::getline(cells, row.name, ',');
    cells >> row.parameters >> comma >> row.with_mtp >> comma >> row.billions >> comma >> row.digit;
    EXPECT_FALSE(cells.fail()) << line;
    rows.push_back(row);
  }
  return rows;
}

TEST(Counted, ParametersOfEveryNamedModelEqualThePublishedTotals) {
  std::set<std::string> named;
  for (const std::string& name : ConfigNames("models", "json")) {
    named.insert(name);
  }
  for (const Published& p : ReadPublished()) {
    EXPECT_EQ(named.erase(p.name), 1U) << p.name;
    const Model model = Named(p.name);
    const double counted = Parameters(model.graph);
    EXPECT_EQ(counted, p.parameters) << p.name << fmt::format(" {:.0f}", counted);
    EXPECT_EQ(counted + static_cast<double>(model.config.mtp_parameters), p.with_mtp) << p.name;
    EXPECT_LE(std::abs(counted / 1e9 - p.billions), p.digit / 2 + 1e-9) << p.name;
    EXPECT_EQ(model.graph.num_layers(), model.config.layers + 2) << p.name;
  }
  EXPECT_TRUE(named.empty()) << "without a published total: " << *named.begin();
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
