#include "model/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/json.h"

namespace penstock::model {
namespace {

std::vector<float> Floats(const Json& list) {
  std::vector<float> out;
  for (const Json& item : list) {
    out.push_back(static_cast<float>(item.get<double>()));
  }
  return out;
}

int64_t UnitsApart(float a, float b) {
  int32_t x = 0;
  int32_t y = 0;
  std::memcpy(&x, &a, sizeof(x));
  std::memcpy(&y, &b, sizeof(y));
  return std::abs(int64_t{x} - int64_t{y});
}

void ExpectClose(const std::vector<float>& got, const std::vector<float>& wanted,
                 const std::string& name) {
  ASSERT_EQ(got.size(), wanted.size()) << name;
  for (size_t i = 0; i < got.size(); ++i) {
    // torch's power function rounds to either neighbour; the operations after it may double that.
    EXPECT_LE(UnitsApart(got[i], wanted[i]), 3) << name << " [" << i << "]";
  }
}

// tests/golden/rope/rope.json was written by tools/make_rope_goldens.py.
TEST(Rope, FrequenciesAreThoseOfTransformersToTheLastBits) {
  const auto golden = ReadJsonFile(PENSTOCK_SOURCE_DIR "/tests/golden/rope/rope.json");
  ASSERT_TRUE(golden.ok()) << golden.error().message;
  ASSERT_EQ(golden.value()["cases"].size(), 12U);
  for (const Json& item : golden.value()["cases"]) {
    const auto name = item["name"].get<std::string>();
    const Json& config = item["config"];
    const bool phi = config["model_type"] == "phi3";
    const auto rope = ReadRope(JsonReader(config, name),
                               {.head_dim = config["hidden_size"].get<int64_t>() /
                                            config["num_attention_heads"].get<int64_t>(),
                                .max_positions = config["max_position_embeddings"].get<int64_t>(),
                                .partial = phi,
                                .yarn_is_longrope = phi});
    ASSERT_TRUE(rope.ok()) << rope.error().message;
    ExpectClose(rope->table.inverse_frequencies, Floats(item["inverse_frequencies"]), name);
    ExpectClose(rope->table.long_inverse_frequencies, Floats(item["long_inverse_frequencies"]),
                name);
    EXPECT_FLOAT_EQ(rope->table.scale, static_cast<float>(item["scale"].get<double>())) << name;
    if (!rope->table.long_inverse_frequencies.empty()) {
      EXPECT_EQ(rope->table.long_from, 4096) << name;
    }
  }
}

Result<Rope> Read(const char* text, int64_t max_positions = 4096) {
  const Json config = ParseJson(text, "config.json").value();
  return ReadRope(JsonReader(config, "config.json"),
                  {.head_dim = 8, .max_positions = max_positions});
}

TEST(Rope, ContextGrowsWhereTheConfigStatesTheLengthBeforeScaling) {
  EXPECT_EQ(Read("{}")->context, 4096);
  EXPECT_EQ(Read(R"({"rope_scaling":{"type":"linear","factor":4}})")->context, 16384);
  EXPECT_EQ(Read(R"({"rope_scaling":{"type":"yarn","factor":4.0,
                 "original_max_position_embeddings":4096}})")
                ->context,
            16384);
  EXPECT_EQ(Read(R"({"rope_scaling":{"type":"yarn","factor":4.0,
                 "original_max_position_embeddings":4096}})",
                 16384)
                ->context,
            16384)
      << "already the length after scaling";
  EXPECT_EQ(Read(R"({"rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,
                 "high_freq_factor":4.0,"original_max_position_embeddings":512}})")
                ->context,
            4096);
}

TEST(Rope, FactorsDivideTheFrequencies) {
  const auto plain = Read(R"({"rope_theta":10000})");
  const auto divided =
      Read(R"({"rope_theta":10000,"rope_scaling":{"rope_type":"factors","factors":[1,2,4,8]}})");
  ASSERT_TRUE(divided.ok()) << divided.error().message;
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(divided->table.inverse_frequencies[i],
              plain->table.inverse_frequencies[i] / static_cast<float>(1 << i));
  }
}

TEST(Rope, AFactorOfNullIsTheRatioOfThePositions) {
  const auto stated = Read(R"({"rope_scaling":{"type":"yarn","factor":8.0,
                               "original_max_position_embeddings":512}})");
  const auto ratio = Read(R"({"rope_scaling":{"type":"yarn","factor":null,
                              "original_max_position_embeddings":512}})");
  ASSERT_TRUE(stated.ok() && ratio.ok());
  EXPECT_EQ(ratio->table.inverse_frequencies, stated->table.inverse_frequencies);
  EXPECT_EQ(ratio->table.scale, stated->table.scale);
  EXPECT_EQ(ratio->context, 4096);
}

TEST(Rope, PhiStatesTheLengthBeforeScalingOnlyWhereItIsNot4096) {
  const Json config = ParseJson(R"({"rope_scaling":{"type":"longrope","short_factor":[1,1],
      "long_factor":[2,4]}})",
                                "config.json")
                          .value();
  RopeRequest request{.head_dim = 4, .max_positions = 16384, .default_original = 4096};
  const auto rope = ReadRope(JsonReader(config, "config.json"), request);
  ASSERT_TRUE(rope.ok()) << rope.error().message;
  EXPECT_EQ(rope->table.long_from, 4096);
  request.default_original = 0;
  EXPECT_FALSE(ReadRope(JsonReader(config, "config.json"), request).ok());
}

TEST(Rope, ParametersPerLayerTypeAreTakenByLayerType) {
  const Json config = ParseJson(R"({"rope_parameters":{"full_attention":{"rope_theta":1000000.0},
      "sliding_attention":{"rope_theta":10000.0}}})",
                                "config.json")
                          .value();
  const JsonReader reader(config, "config.json");
  const auto full =
      ReadRope(reader, {.head_dim = 4, .max_positions = 64, .layer_type = "full_attention"});
  const auto sliding =
      ReadRope(reader, {.head_dim = 4, .max_positions = 64, .layer_type = "sliding_attention"});
  EXPECT_NEAR(full->table.inverse_frequencies[1], 1e-3, 1e-9);
  EXPECT_NEAR(sliding->table.inverse_frequencies[1], 1e-2, 1e-8);
  const auto none = ReadRope(reader, {.head_dim = 4, .max_positions = 64});
  ASSERT_FALSE(none.ok());
  EXPECT_NE(none.error().message.find("per layer type"), std::string::npos);
}

}  // namespace
}  // namespace penstock::model
