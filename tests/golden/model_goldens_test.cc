// Logits of the tiny models of tests/golden/models against transformers in float64, through
// `penstock logits`: every folder and every GGUF twin, a short and a long prompt.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <ostream>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "support/npy.h"
#include "support/process.h"

namespace penstock::testing {
namespace {

// L2 over L2 against float64; transformers' own float32 is up to 1.4e-6 off on these models.
constexpr double kF32Limit = 2e-5;
// Largest difference over largest logit; twice that for long prompts.
constexpr double kLargest = 1e-5;
// Times the error of transformers' own bf16 run.
constexpr double kBf16Factor = 1.5;

const std::string kModels = std::string(PENSTOCK_SOURCE_DIR) + "/tests/golden/models/";

// One model to open (a folder or its GGUF twin) and the folder that holds its goldens.
struct Source {
  std::string name;
  std::string model;
  std::string folder;
};

void PrintTo(const Source& source, std::ostream* out) {
  *out << source.model;
}

std::vector<Source> Sources() {
  std::vector<Source> out;
  for (const auto& entry : std::filesystem::directory_iterator(kModels)) {
    const std::string folder = entry.path().string();
    const std::string name = entry.path().filename().string();
    if (!FileExists(folder + "/config.json")) {
      continue;
    }
    out.push_back({name, folder, folder});
    const std::string twin = kModels + "gguf/" + name + ".gguf";
    if (FileExists(twin)) {
      out.push_back({name + "_gguf", twin, folder});
    }
  }
  std::sort(out.begin(), out.end(),
            [](const Source& a, const Source& b) { return a.name < b.name; });
  return out;
}

std::string JoinIds(const Json& ids) {
  std::string text;
  for (const Json& id : ids) {
    text += (text.empty() ? "" : ",") + std::to_string(id.get<int64_t>());
  }
  return text;
}

class ModelGoldens : public ::testing::TestWithParam<Source> {
 protected:
  void SetUp() override {
    auto golden = ReadJsonFile(GetParam().folder + "/golden.json");
    ASSERT_TRUE(golden.ok()) << golden.error().message;
    golden_ = std::move(golden.value());
    auto config = ReadJsonFile(GetParam().folder + "/config.json");
    ASSERT_TRUE(config.ok()) << config.error().message;
    const Json& all = config.value();
    layers_ =
        (all.contains("text_config") ? all["text_config"] : all)["num_hidden_layers"].get<int>();
  }

  // The bytes of the file that `penstock logits` writes; empty (and a failure) if it fails.
  std::string LogitsFile(const Json& prompt, const std::vector<std::string>& flags) {
    const std::string path = folder_.path() + "/logits.npy";
    std::vector<std::string> arguments = {
        "logits", "-m", GetParam().model, "--tokens", JoinIds(prompt["tokens"]), "-o", path};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const Finished done = RunPenstock(arguments);
    EXPECT_EQ(done.status, 0) << Describe(arguments) << "\n" << done.err;
    auto text = done.status == 0 ? ReadFile(path) : Result<std::string>(std::string());
    return text.ok() ? text.value() : std::string();
  }

  Npy Logits(const Json& prompt, const std::vector<std::string>& flags) {
    if (LogitsFile(prompt, flags).empty()) {
      return {};
    }
    auto npy = ReadNpy(folder_.path() + "/logits.npy");
    EXPECT_TRUE(npy.ok()) << npy.error().message;
    return npy.ok() ? std::move(npy.value()) : Npy{};
  }

  Npy Wanted(const Json& prompt) {
    auto npy = ReadNpy(GetParam().folder + "/" + prompt["logits"].get<std::string>());
    EXPECT_TRUE(npy.ok()) << npy.error().message;
    return npy.ok() ? std::move(npy.value()) : Npy{};
  }

  // Error below `limit`, and the same best id in every row whose margin is clear of such an error.
  void ExpectNear(const Npy& got, const Npy& want, double limit) {
    const double error = RelativeError(got, want);
    EXPECT_LT(error, limit);
    RecordProperty("relative_error", std::to_string(error));
    if (!std::isfinite(error)) {
      return;
    }
    for (int64_t r = 0; r < want.rows; ++r) {
      const float* row = want.row(r);
      std::vector<float> sorted(row, row + want.columns);
      std::nth_element(sorted.begin(), sorted.begin() + 1, sorted.end(), std::greater<>());
      const double margin = *std::max_element(sorted.begin(), sorted.begin() + 1) - sorted[1];
      const double norm = std::sqrt(std::inner_product(row, row + want.columns, row, 0.0));
      const double scale = norm / std::sqrt(static_cast<double>(want.columns));
      if (margin > 8 * limit * scale) {
        const auto best = [&](const float* x) { return std::max_element(x, x + want.columns) - x; };
        EXPECT_EQ(best(got.row(r)), best(row)) << "row " << r << ", margin " << margin;
      }
    }
  }

  const TemporaryFolder folder_;
  Json golden_;
  int layers_ = 0;
};

TEST_P(ModelGoldens, LogitsWithFloat32WeightsAgreeWithFloat64) {
  for (const Json& prompt : golden_["prompts"]) {
    SCOPED_TRACE(prompt["name"].get<std::string>());
    const Npy got = Logits(prompt, {"--weights", "f32"});
    const Npy want = Wanted(prompt);
    ExpectNear(got, want, kF32Limit);
    EXPECT_LT(LargestError(got, want), prompt["name"] == "short" ? kLargest : 2 * kLargest);
  }
}

TEST_P(ModelGoldens, LogitsWithBf16WeightsAreAsGoodAsThoseOfTransformers) {
  for (const Json& prompt : golden_["prompts"]) {
    SCOPED_TRACE(prompt["name"].get<std::string>());
    const double limit = kBf16Factor * prompt["transformers_bf16_error"].get<double>();
    ExpectNear(Logits(prompt, {"--weights", "bf16"}), Wanted(prompt), limit);
  }
}

TEST_P(ModelGoldens, EveryCutGivesTheSameBits) {
  const Json& prompt = golden_["prompts"][1];
  const std::string last = std::to_string(layers_ + 1);
  const std::vector<std::vector<std::string>> layouts = {
      {"--stages", "2"},
      {"--stages", std::to_string(layers_ + 2)},
      {"--cut", "1," + last},
      {"--cut", "2,2," + last, "--groups", "2"},
  };
  for (const std::string weights : {"f32", "bf16", "int8"}) {
    const std::string whole = LogitsFile(prompt, {"--weights", weights, "--stages", "1"});
    ASSERT_FALSE(whole.empty());
    for (std::vector<std::string> flags : layouts) {
      SCOPED_TRACE(weights + " " + Describe(flags));
      flags.insert(flags.end(), {"--weights", weights});
      EXPECT_TRUE(LogitsFile(prompt, flags) == whole);
    }
  }
}

TEST_P(ModelGoldens, GreedyIdsAreThoseOfFloat64AloneAndInABatch) {
  const Json& prompt = golden_["prompts"][0];
  const std::string ids = JoinIds(prompt["tokens"]);
  const std::string other = JoinIds(golden_["prompts"][1]["tokens"]);
  const std::string count = std::to_string(prompt["greedy"].size());
  const std::vector<std::vector<std::string>> layouts = {
      {"--tokens", ids},
      {"--tokens", ids, "--stages", "3", "--prefill-chunk", "4"},
      {"--tokens", ids, "--tokens", other, "--tokens", ids, "--stages", "2", "--groups", "2"},
  };
  for (const std::vector<std::string>& layout : layouts) {
    std::vector<std::string> arguments = {"run", "-m",          GetParam().model, "-n",
                                          count, "--greedy",    "--json",         "--weights",
                                          "f32", "--ignore-eos"};
    arguments.insert(arguments.end(), layout.begin(), layout.end());
    SCOPED_TRACE(Describe(arguments));
    const Finished done = RunPenstock(arguments);
    ASSERT_EQ(done.status, 0) << done.err;
    auto json = ParseJson(done.out, "standard output");
    ASSERT_TRUE(json.ok()) << json.error().message;
    const Json& outputs = json.value()["outputs"];
    ASSERT_FALSE(outputs.empty());
    EXPECT_EQ(outputs[0]["tokens"], prompt["greedy"]);
    EXPECT_EQ(outputs[outputs.size() - 1]["tokens"], prompt["greedy"]);
  }
}

std::string TestName(const ::testing::TestParamInfo<Source>& source) {
  std::string name = source.param.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, ModelGoldens, ::testing::ValuesIn(Sources()), TestName);

TEST(ModelGoldensFolder, HoldsEveryFamily) {
  EXPECT_GE(Sources().size(), 31U);
}

}  // namespace
}  // namespace penstock::testing
