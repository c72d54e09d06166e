// SmolLM2 (the file of scripts/fetch-model) against transformers on the same dequantized weights:
// logits, greedy ids and perplexity, through the commands that a user calls.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/json.h"
#include "support/npy.h"
#include "support/process.h"

namespace penstock::testing {
namespace {

constexpr double kF32Limit = 2e-5;
constexpr double kBf16Factor = 1.5;

const std::string kGoldens = std::string(PENSTOCK_SOURCE_DIR) + "/tests/golden/smollm2/";

std::string ModelPath() {
  const char* folder = std::getenv("PENSTOCK_MODELS");
  const char* home = std::getenv("HOME");
  const std::string base =
      folder != nullptr ? folder
                        : std::string(home != nullptr ? home : "") + "/.cache/penstock/models";
  return base + "/SmolLM2-135M-Instruct.Q4_1.gguf";
}

std::string JoinIds(const Json& ids) {
  std::string text;
  for (const Json& id : ids) {
    text += (text.empty() ? "" : ",") + std::to_string(id.get<int64_t>());
  }
  return text;
}

class SmolLm2 : public ::testing::Test {
 protected:
  void SetUp() override {
    auto golden = ReadJsonFile(kGoldens + "golden.json");
    ASSERT_TRUE(golden.ok()) << golden.error().message;
    golden_ = std::move(golden.value());
  }

  // What the command printed as JSON; a failure and null if it failed.
  Json RunJson(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin() + 1, {"-m", ModelPath(), "--json"});
    const Finished done = RunPenstock(arguments);
    EXPECT_EQ(done.status, 0) << Describe(arguments) << "\n" << done.err;
    auto json = ParseJson(done.out, "standard output");
    EXPECT_TRUE(json.ok()) << json.error().message;
    return json.ok() ? std::move(json.value()) : Json();
  }

  // Relative error over the columns that the golden holds.
  double LogitsError(const Json& prompt, const std::string& weights) {
    const TemporaryFolder folder;
    const std::string path = folder.path() + "/logits.npy";
    const std::vector<std::string> arguments = {
        "logits",    "-m",    ModelPath(), "--tokens", JoinIds(prompt["tokens"]),
        "--weights", weights, "-o",        path};
    const Finished done = RunPenstock(arguments);
    EXPECT_EQ(done.status, 0) << done.err;
    auto got = ReadNpy(path);
    auto want = ReadNpy(kGoldens + prompt["logits"].get<std::string>());
    if (!got.ok() || !want.ok()) {
      ADD_FAILURE() << (got.ok() ? want.error().message : got.error().message);
      return INFINITY;
    }
    const int64_t step = golden_["columns"]["step"].get<int64_t>();
    Npy part{got.value().rows, (got.value().columns + step - 1) / step, {}};
    for (int64_t r = 0; r < part.rows; ++r) {
      for (int64_t c = 0; c < got.value().columns; c += step) {
        part.values.push_back(got.value().row(r)[c]);
      }
    }
    return RelativeError(part, want.value());
  }

  Json golden_;
};

TEST_F(SmolLm2, LogitsWithFloat32WeightsAgreeWithFloat64) {
  for (const Json& prompt : golden_["prompts"]) {
    EXPECT_LT(LogitsError(prompt, "f32"), kF32Limit) << prompt["name"];
  }
}

TEST_F(SmolLm2, LogitsWithBf16WeightsAreAsGoodAsThoseOfTransformers) {
  for (const Json& prompt : golden_["prompts"]) {
    EXPECT_LT(LogitsError(prompt, "bf16"),
              kBf16Factor * prompt["transformers_bf16_error"].get<double>())
        << prompt["name"];
  }
}

TEST_F(SmolLm2, GreedyTextIsThatOfTransformersInOneAndInThreeStages) {
  for (const std::string stages : {"1", "3"}) {
    for (const Json& prompt : golden_["prompts"]) {
      SCOPED_TRACE(prompt["name"].get<std::string>() + ", stages " + stages);
      const Json out = RunJson({"run", "--tokens", JoinIds(prompt["tokens"]), "-n", "64",
                                "--greedy", "--weights", "f32", "--stages", stages});
      ASSERT_TRUE(out.contains("outputs"));
      EXPECT_EQ(out["outputs"][0]["tokens"], prompt["greedy"]);
      EXPECT_EQ(out["outputs"][0]["text"], prompt["greedy_text"]);
      EXPECT_EQ(out["outputs"][0]["finish_reason"], prompt["finish_reason"]);
    }
  }
}

TEST_F(SmolLm2, CountsOnWhateverTheTypeOfTheWeights) {
  const Json& prompt = golden_["prompts"][1];
  ASSERT_EQ(prompt["name"], "count");
  for (const std::string weights : {"bf16", "int8", "int4"}) {
    const Json out = RunJson({"run", "--tokens", JoinIds(prompt["tokens"]), "-n", "64", "--greedy",
                              "--weights", weights, "--stages", "2"});
    ASSERT_TRUE(out.contains("outputs"));
    EXPECT_EQ(out["outputs"][0]["tokens"], prompt["greedy"]) << weights;
  }
}

TEST_F(SmolLm2, PerplexityWithFloat32WeightsIsThatOfFloat64) {
  const Json& want = golden_["perplexity"]["float64"];
  const std::string text =
      std::string(PENSTOCK_SOURCE_DIR) + "/" + golden_["perplexity"]["text"].get<std::string>();
  const Json out = RunJson({"perplexity", "--file", text, "--weights", "f32"});
  ASSERT_TRUE(out.contains("nll_per_token"));
  EXPECT_EQ(out["tokens"], want["tokens"]);
  EXPECT_NEAR(out["nll_per_token"].get<double>(), want["nll_per_token"].get<double>(), 2e-5);
  EXPECT_NEAR(out["perplexity"].get<double>() / want["perplexity"].get<double>(), 1, 2e-5);
}

}  // namespace
}  // namespace penstock::testing
