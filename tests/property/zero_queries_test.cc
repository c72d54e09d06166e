// With queries of zero every read of attention residuals is the mean of its sources, and a norm
// takes the factor out: the logits are those of the plain residual, up to the norm's epsilon. For
// every family that is built like Llama.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/json.h"
#include "support/engine_runs.h"
#include "support/model_maker.h"
#include "support/process.h"

namespace penstock::testing {
namespace {

namespace fs = std::filesystem;

const std::vector<std::string>& Families() {
  static const auto& families =
      *new std::vector<std::string>{"llama2",  "llama-yarn", "smollm2", "mistral", "qwen2", "qwen3",
                                    "mixtral", "qwen3_moe",  "phi3",    "gemma2",  "gemma3"};
  return families;
}

class ZeroQueries : public ::testing::TestWithParam<std::string> {
 protected:
  // The family's tiny model with other keys, and with `tensors` beside its own.
  std::vector<float> Logits(const std::string& name, const Json& keys, const TensorMap& tensors,
                            int64_t stages) {
    const std::string golden = TinyModelPath(GetParam());
    const std::string folder = folder_.path() + "/" + name;
    Json config = ReadJsonFile(golden + "/config.json").value();
    config.update(keys);
    WriteModel(folder, config, tensors);
    const std::string own = "model-00002-of-00002.safetensors";
    const std::string family = "model-00001-of-00002.safetensors";
    fs::rename(folder + "/model.safetensors", folder + "/" + own);
    fs::copy_file(golden + "/model.safetensors", folder + "/" + family);
    Json map = Json::object();
    for (const auto& [tensor, plain] : tensors) {
      map[tensor] = own;
    }
    for (const std::string& tensor : Names(golden + "/model.safetensors")) {
      map[tensor] = family;
    }
    std::ofstream(folder + "/model.safetensors.index.json")
        << DumpJson(Json{{"metadata", Json::object()}, {"weight_map", map}});
    auto bundle = serve::OpenBundle(folder);
    EXPECT_TRUE(bundle.ok()) << (bundle.ok() ? "" : bundle.error().message);
    if (!bundle.ok()) {
      return {};
    }
    serve::RunOptions options;
    options.stages = stages;
    options.groups = 1;
    options.threads = 1;
    options.weights = runtime::WeightChoice::kF32;
    options.kv_type = DType::kF32;
    auto logits = EngineLogits(bundle.value(), options, {3, 14, 15, 9, 2, 6, 5, 35, 8, 9, 7, 9});
    EXPECT_TRUE(logits.ok()) << (logits.ok() ? "" : logits.error().message);
    return logits.ok() ? std::move(logits).value() : std::vector<float>();
  }

  static std::vector<std::string> Names(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    uint64_t size = 0;
    file.read(reinterpret_cast<char*>(&size), sizeof(size));
    std::string header(static_cast<size_t>(size), ' ');
    file.read(header.data(), static_cast<std::streamsize>(header.size()));
    std::vector<std::string> names;
    const Json json = ParseJson(header, path).value();
    for (const auto& [name, value] : json.items()) {
      if (name != "__metadata__") {
        names.push_back(name);
      }
    }
    return names;
  }

  TemporaryFolder folder_;
};

TEST_P(ZeroQueries, GiveTheLogitsOfThePlainResidual) {
  const Json golden = ReadJsonFile(TinyModelPath(GetParam()) + "/config.json").value();
  const auto width = golden["hidden_size"].get<int64_t>();
  const auto layers = golden["num_hidden_layers"].get<int64_t>();
  TensorMap queries;
  const PlainTensor zero = {{1, width}, std::vector<float>(static_cast<size_t>(width), 0.0F)};
  const PlainTensor one = {{width}, std::vector<float>(static_cast<size_t>(width), 1.0F)};
  for (int64_t l = 0; l < layers; ++l) {
    for (const char* sublayer : {"self_attention_res", "mlp_res"}) {
      const std::string prefix = fmt::format("model.layers.{}.{}", l, sublayer);
      queries[prefix + "_proj.weight"] = zero;
      queries[prefix + "_norm.weight"] = one;
    }
  }
  queries["model.output_attn_res_proj.weight"] = zero;
  queries["model.output_attn_res_norm.weight"] = one;
  TensorMap plain_tensors;  // a second file must hold something
  plain_tensors["model.unused.weight"] = one;

  const Json small = {{"rms_norm_eps", 1e-12}};
  const std::vector<float> plain = Logits("plain", small, plain_tensors, 1);
  ASSERT_FALSE(plain.empty());
  double norm = 0;
  for (const float x : plain) {
    norm += static_cast<double>(x) * static_cast<double>(x);
  }
  const Json kinds[] = {
      {{"residual", "block"}, {"block_size", 3}, {"key_norm_weight", true}},
      {{"residual", "full"}, {"key_norm_weight", false}},
      {{"residual", "block"}, {"block_size", 2}, {"output", "sum"}},
  };
  for (const Json& kind : kinds) {
    TensorMap tensors = queries;
    std::erase_if(tensors, [&](const auto& entry) {
      return (!kind.value("key_norm_weight", false) && entry.first.ends_with("_norm.weight")) ||
             (kind.value("output", "attend") == "sum" &&
              entry.first.starts_with("model.output_attn_res"));
    });
    Json keys = small;
    keys["attention_residuals"] = kind;
    for (const int64_t stages : {1, 3}) {
      const std::vector<float> got = Logits(
          fmt::format("{}-{}", kind.value("residual", ""), stages) + kind.value("output", "attend"),
          keys, tensors, stages);
      ASSERT_EQ(got.size(), plain.size());
      double difference = 0;
      for (size_t i = 0; i < got.size(); ++i) {
        const double d = static_cast<double>(got[i]) - static_cast<double>(plain[i]);
        difference += d * d;
      }
      EXPECT_LT(std::sqrt(difference / norm), 2e-5) << DumpJson(kind) << " " << stages;
    }
  }
}

std::string TestName(const ::testing::TestParamInfo<std::string>& name) {
  std::string text = name.param;
  std::ranges::replace(text, '-', '_');
  return text;
}

INSTANTIATE_TEST_SUITE_P(Families, ZeroQueries, ::testing::ValuesIn(Families()), TestName);

}  // namespace
}  // namespace penstock::testing
