// Folders of Kimi K3 whose configuration and tensors disagree: every verb that reads weights says
// which tensor or key it is.

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "support/changed_model.h"
#include "support/npy.h"
#include "support/process.h"

namespace penstock::testing {
namespace {

const std::string kModel = std::string(PENSTOCK_SOURCE_DIR) + "/tests/golden/models/kimi_k3";
const std::string kLayer = "language_model.model.layers.2.";

// The golden folder with `change` applied to its text model's configuration, its header of tensors
// and their bytes.
class Changed {
 public:
  explicit Changed(const ChangedModel::Change& change)
      : model_(kModel, [&](Json& config, Json& tensors, std::string& bytes) {
          change(config["text_config"], tensors, bytes);
        }) {}

  Finished Run(const std::string& verb) const {
    std::vector<std::string> arguments = {verb, "-m", model_.path(), "--tokens", "5,6,7"};
    if (verb == "gradients") {
      arguments.insert(arguments.end(), {"-o", model_.path() + "/g.safetensors"});
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
  ChangedModel model_;
};

TEST(KimiInput, TheGoldenFolderItselfIsTaken) {
  const Changed same([](Json&, Json&, std::string&) {});
  for (const char* verb : {"logits", "gradients"}) {
    const Finished done = same.Run(verb);
    EXPECT_EQ(done.status, 0) << verb << ": " << done.err;
  }
}

TEST(KimiInput, HeadCountsThatContradictTheTensorsNameATensor) {
  Changed([](Json& text, Json&, std::string&) {
    text["linear_attn_config"]["num_heads"] = 8;
  }).ExpectRefused({"self_attn.q_proj.weight", "[64, 32]", "128"});
  Changed([](Json& text, Json&, std::string&) {
    text["linear_attn_config"]["head_dim"] = 8;
  }).ExpectRefused({"self_attn.q_proj.weight"});
}

TEST(KimiInput, ALogOfAnOddLengthIsNamed) {
  const std::string name = kLayer + "self_attn.A_log";
  // Fewer numbers than heads; a number that is not zero behind those of the heads.
  Changed([&](Json&, Json& tensors, std::string&) {
    Json& a_log = tensors[name];
    const auto begin = a_log["data_offsets"][0].get<int64_t>();
    tensors["mm_projector.rest"] = {
        {"dtype", "F32"}, {"shape", {13}}, {"data_offsets", {begin + 12, begin + 64}}};
    a_log["shape"] = {3};
    a_log["data_offsets"] = {begin, begin + 12};
  }).ExpectRefused({"layers.2.self_attn.A_log"});
  Changed([&](Json&, Json& tensors, std::string& bytes) {
    const auto begin = tensors[name]["data_offsets"][0].get<size_t>();
    const float one = 1.0F;
    std::memcpy(bytes.data() + begin + 6 * 4, &one, 4);
  }).ExpectRefused({"layers.2.self_attn.A_log"});
}

TEST(KimiInput, MissingTensorsOfDepthReadsAreNamed) {
  for (const std::string& name :
       {kLayer + "mlp_res_norm.weight", kLayer + "self_attention_res_proj.weight",
        std::string("language_model.model.output_attn_res_proj.weight")}) {
    Changed([&](Json&, Json& tensors, std::string&) {
      tensors["mm_projector.rest"] = tensors[name];  // its bytes are a tensor that is skipped
      tensors.erase(name);
    }).ExpectRefused({name.substr(name.find("model.", 10))});
  }
}

TEST(KimiInput, ListsOfLayersThatContradictTheTensorsAreNamed) {
  Changed([](Json& text, Json&, std::string&) {
    text["linear_attn_config"]["kda_layers"] = {1, 2, 3, 4, 5, 6};
    text["linear_attn_config"]["full_attn_layers"] = {7, 8, 9};
  }).ExpectRefused({"layers.3.self_attn."});
  Changed([](Json& text, Json&, std::string&) {
    text["linear_attn_config"]["kda_layers"] = {1, 2, 3, 5, 6};
  }).ExpectRefused({"full_attn_layers", "layer 7", "neither"});
}

TEST(KimiInput, AnUnknownKeyIsNamed) {
  Changed([](Json& text, Json&, std::string&) {
    text["attn_res_gate"] = true;
  }).ExpectRefused({"attn_res_gate"});
}

TEST(KimiInput, KeysOfAGgufFileThatAreMissingOrNotKnownAreNamed) {
  const auto file = ReadFile(kModel + "/../gguf/kimi_k3.gguf");
  ASSERT_TRUE(file.ok()) << file.error().message;
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/changed.gguf";
  const auto refused = [&](const std::string& key, const std::string& by, const std::string& part) {
    std::string bytes = file.value();
    const size_t at = bytes.find(key);
    ASSERT_NE(at, std::string::npos) << key;
    bytes.replace(at, key.size(), by);
    ASSERT_EQ(bytes.size(), file.value().size());
    std::ofstream(path, std::ios::binary) << bytes;
    const Finished done = RunPenstock({"logits", "-m", path, "--tokens", "5,6"});
    EXPECT_EQ(done.status, 2) << key;
    EXPECT_NE(done.err.find(part), std::string::npos) << done.err;
  };
  for (const std::string rest :
       {"attn_res.block_size", "kda.gate_lower_bound", "activation.situ_beta", "kda.head_dim"}) {
    refused("kimi-k3." + rest, "general." + rest, "kimi-k3." + rest + " is missing");
  }
  refused("kimi-k3.activation.situ_linear_beta", "kimi-k3.activation.situ_linear_bias",
          "kimi-k3.activation.situ_linear_bias: this key is not known");
}

TEST(KimiInput, LatentAttentionIsPlainOrAbsorbedAsTheFlagSays) {
  const TemporaryFolder folder;
  std::vector<Npy> logits;
  for (const char* mode : {"plain", "absorbed"}) {
    const std::string path = folder.path() + "/" + mode + ".npy";
    const Finished done =
        RunPenstock({"logits", "-m", kModel, "--tokens", "5,6,7,8,9,10,11", "--weights", "f32",
                     "--kv", "f32", "--latent-attention", mode, "-o", path});
    ASSERT_EQ(done.status, 0) << done.err;
    auto read = ReadNpy(path);
    ASSERT_TRUE(read.ok()) << read.error().message;
    logits.push_back(std::move(read).value());
  }
  EXPECT_NE(logits[0].values, logits[1].values);  // other sums
  EXPECT_LT(RelativeError(logits[0], logits[1]), 1e-5);
  const Finished other =
      RunPenstock({"logits", "-m", kModel + "/../smollm2", "--tokens", "5", "--latent-attention",
                   "plain", "-o", folder.path() + "/x.npy"});
  EXPECT_EQ(other.status, 2);
  EXPECT_NE(other.err.find("--latent-attention"), std::string::npos) << other.err;
}

}  // namespace
}  // namespace penstock::testing
