// Folders of Kimi K3 whose configuration and tensors disagree: every verb that reads weights says
// which tensor or key it is.

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "support/process.h"

namespace penstock::testing {
namespace {

const std::string kModel = std::string(PENSTOCK_SOURCE_DIR) + "/tests/golden/models/kimi_k3";
const std::string kLayer = "language_model.model.layers.2.";

// The golden folder with `change` applied to its configuration and its header of tensors.
class Changed {
 public:
  explicit Changed(const std::function<void(Json& text, Json& tensors)>& change) {
    auto config = ReadJsonFile(kModel + "/config.json");
    auto file = ReadFile(kModel + "/model.safetensors");
    EXPECT_TRUE(config.ok() && file.ok());
    uint64_t length = 0;
    std::memcpy(&length, file.value().data(), 8);
    auto header = ParseJson(file.value().substr(8, length), "header");
    EXPECT_TRUE(header.ok());
    change(config.value()["text_config"], header.value());
    std::string text = PrintJson(header.value());
    EXPECT_LE(text.size(), length);
    text.resize(length, ' ');  // the tensors stay where they are
    file.value().replace(8, length, text);
    std::ofstream(folder_.path() + "/config.json") << PrintJson(config.value());
    std::ofstream(folder_.path() + "/model.safetensors", std::ios::binary) << file.value();
  }

  Finished Run(const std::string& verb) const {
    std::vector<std::string> arguments = {verb, "-m", folder_.path(), "--tokens", "5,6,7"};
    if (verb == "gradients") {
      arguments.insert(arguments.end(), {"-o", folder_.path() + "/g.safetensors"});
    }
    return RunPenstock(arguments);
  }

  void ExpectRefused(const std::vector<std::string>& parts) const {
    for (const char* verb : {"logits", "gradients"}) {
      const Finished done = Run(verb);
      EXPECT_EQ(done.status, 2) << verb << ": " << done.err;
      for (const std::string& part : parts) {
        EXPECT_NE(done.err.find(part), std::string::npos)
            << verb << ": '" << part << "' in: " << done.err;
      }
    }
  }

 private:
  TemporaryFolder folder_;
};

TEST(KimiInput, TheGoldenFolderItselfIsTaken) {
  const Changed same([](Json&, Json&) {});
  for (const char* verb : {"logits", "gradients"}) {
    const Finished done = same.Run(verb);
    EXPECT_EQ(done.status, 0) << verb << ": " << done.err;
  }
}

TEST(KimiInput, HeadCountsThatContradictTheTensorsNameATensor) {
  Changed([](Json& text, Json&) {
    text["linear_attn_config"]["num_heads"] = 8;
  }).ExpectRefused({"self_attn.q_proj.weight", "[64, 32]", "128"});
  Changed([](Json& text, Json&) {
    text["linear_attn_config"]["head_dim"] = 8;
  }).ExpectRefused({"self_attn.q_proj.weight"});
}

TEST(KimiInput, ALogOfAnOddLengthIsNamed) {
  const std::string name = kLayer + "self_attn.A_log";
  // Fewer numbers than heads; more, of which some beyond the heads are not zero.
  Changed([&](Json&, Json& tensors) {
    Json& a_log = tensors[name];
    const auto begin = a_log["data_offsets"][0].get<int64_t>();
    a_log["shape"] = {3};
    a_log["data_offsets"] = {begin, begin + 12};
  }).ExpectRefused({"layers.2.self_attn.A_log"});
  Changed([&](Json&, Json& tensors) {
    Json& a_log = tensors[name];
    const Json& bias = tensors[kLayer + "self_attn.dt_bias"];
    const auto begin = bias["data_offsets"][0].get<int64_t>();
    a_log["shape"] = {16};
    a_log["data_offsets"] = {begin, begin + 64};
  }).ExpectRefused({"layers.2.self_attn.A_log"});
}

TEST(KimiInput, MissingTensorsOfDepthReadsAreNamed) {
  for (const std::string name :
       {kLayer + "mlp_res_norm.weight", kLayer + "self_attention_res_proj.weight",
        std::string("language_model.model.output_attn_res_proj.weight")}) {
    Changed([&](Json&, Json& tensors) {
      tensors.erase(name);
    }).ExpectRefused({name.substr(name.find("model.", 10))});
  }
}

TEST(KimiInput, ListsOfLayersThatContradictTheTensorsAreNamed) {
  Changed([](Json& text, Json&) {
    text["linear_attn_config"]["kda_layers"] = {1, 2, 3, 4, 5, 6};
    text["linear_attn_config"]["full_attn_layers"] = {7, 8, 9};
  }).ExpectRefused({"layers.3.self_attn."});
  Changed([](Json& text, Json&) {
    text["linear_attn_config"]["kda_layers"] = {1, 2, 3, 5, 6};
  }).ExpectRefused({"full_attn_layers", "layer 7", "neither"});
}

TEST(KimiInput, AnUnknownKeyIsNamed) {
  Changed([](Json& text, Json&) { text["attn_res_gate"] = true; }).ExpectRefused({"attn_res_gate"});
}

}  // namespace
}  // namespace penstock::testing
