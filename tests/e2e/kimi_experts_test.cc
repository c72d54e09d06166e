// Experts in 4 bits (MXFP4) as Kimi K3's checkpoint has them, as GGUF blocks, and beside others of
// the same layer that are not.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "support/changed_model.h"
#include "support/npy.h"
#include "support/process.h"

namespace penstock::testing {
namespace {

const std::string kModels = std::string(PENSTOCK_SOURCE_DIR) + "/tests/golden/models/";
const std::string kModel = kModels + "kimi_k3_mxfp4";
const std::string kExpert = "model.layers.2.block_sparse_moe.experts.1.w1.weight";

// The bfloat16 bits of a number in E2M1 times 2^(scale - 127), which all have.
uint16_t Wide(unsigned digit, unsigned scale) {
  constexpr float kMagnitudes[] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
  const float value = std::ldexp(kMagnitudes[digit % 8], static_cast<int>(scale) - 127);
  uint32_t bits = 0;
  std::memcpy(&bits, &value, 4);
  return static_cast<uint16_t>(bits >> 16 | (digit >= 8 ? 0x8000 : 0));
}

// Replaces one tensor in 4 bits by the same numbers in bfloat16. Its bytes become a tensor that
// readers skip, since a file has no holes.
void Widen(Json& tensors, std::string& bytes, const std::string& name) {
  const Json packed = tensors[name + "_packed"];
  const Json scale = tensors[name + "_scale"];
  tensors.erase(name + "_packed");
  tensors.erase(name + "_scale");
  tensors["mm_projector.packed." + name] = packed;
  tensors["mm_projector.scale." + name] = scale;
  const auto rows = packed["shape"][0].get<size_t>();
  const size_t columns = 2 * packed["shape"][1].get<size_t>();
  const size_t begin = bytes.size();
  const auto byte = [&](const Json& tensor, size_t at) {
    return static_cast<unsigned char>(bytes[tensor["data_offsets"][0].get<size_t>() + at]);
  };
  for (size_t i = 0; i < rows * columns; ++i) {
    const unsigned pair = byte(packed, i / 2);
    const uint16_t wide = Wide(i % 2 == 0 ? pair % 16 : pair / 16, byte(scale, i / 32));
    bytes.append(reinterpret_cast<const char*>(&wide), 2);
  }
  tensors[name] = {
      {"dtype", "BF16"}, {"shape", {rows, columns}}, {"data_offsets", {begin, bytes.size()}}};
}

// The folder with the experts of odd numbers, or all of them, in bfloat16.
ChangedModel Widened(bool all) {
  return ChangedModel(kModel, [&](Json&, Json& tensors, std::string& bytes) {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : tensors.items()) {
      const size_t at = name.find(".experts.");
      if (at != std::string::npos && name.ends_with("_packed") &&
          (all || (name[at + 9] - '0') % 2 == 1)) {
        names.push_back(name.substr(0, name.size() - 7));
      }
    }
    EXPECT_FALSE(names.empty());
    for (const std::string& name : names) {
      Widen(tensors, bytes, name);
    }
  });
}

class KimiExperts : public ::testing::Test {
 protected:
  // The bytes that a verb writes.
  std::string Written(const std::string& verb, const std::string& model,
                      const std::vector<std::string>& flags) {
    const std::string path = folder_.path() + (verb == "logits" ? "/x.npy" : "/x.safetensors");
    std::vector<std::string> arguments = {verb, "-m", model,       "--tokens", "5,6,7,8,9,10,11",
                                          "-o", path, "--threads", "1"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const Finished done = RunPenstock(arguments);
    EXPECT_EQ(done.status, 0) << Describe(arguments) << done.err;
    auto text = done.status == 0 ? ReadFile(path) : Result<std::string>(std::string());
    return text.ok() ? text.value() : std::string();
  }

  Npy Logits(const std::string& model, const std::string& weights) {
    EXPECT_FALSE(Written("logits", model, {"--weights", weights}).empty());
    auto npy = ReadNpy(folder_.path() + "/x.npy");
    EXPECT_TRUE(npy.ok());
    return npy.ok() ? std::move(npy).value() : Npy{};
  }

  TemporaryFolder folder_;
};

TEST_F(KimiExperts, AFileOfBlocksHasTheBitsOfTheFolder) {
  for (const std::string weights : {"f32", "bf16", "auto", "int8"}) {
    const std::string folder = Written("logits", kModel, {"--weights", weights});
    ASSERT_FALSE(folder.empty());
    EXPECT_TRUE(folder ==
                Written("logits", kModels + "gguf/kimi_k3_mxfp4.gguf", {"--weights", weights}))
        << weights;
  }
}

TEST_F(KimiExperts, StayInFourBitsUnlessOthersOfTheirLayerAreNot) {
  const ChangedModel mixed = Widened(false);
  const ChangedModel wide = Widened(true);
  for (const std::string weights : {"f32", "bf16"}) {
    const std::string want = Written("logits", kModel, {"--weights", weights});
    EXPECT_TRUE(want == Written("logits", mixed.path(), {"--weights", weights})) << weights;
    EXPECT_TRUE(want == Written("logits", wide.path(), {"--weights", weights})) << weights;
  }
  // A mixture is held in bfloat16, exactly; the whole in 4 bits takes activations in 8.
  const std::string want = Written("logits", wide.path(), {});
  EXPECT_TRUE(want == Written("logits", mixed.path(), {}));
  EXPECT_TRUE(want == Written("logits", mixed.path(), {"--stages", "3"}));
  EXPECT_FALSE(want == Written("logits", kModel, {}));
  const Npy exact = Logits(kModel, "f32");
  EXPECT_LT(RelativeError(Logits(kModel, "auto"), exact), 0.05);
  // In 4 bits a mixture is rounded once more, about as far as the other matrices are.
  const double int4 = RelativeError(Logits(kModel, "int4"), exact);
  EXPECT_LT(RelativeError(Logits(mixed.path(), "int4"), exact), 1.5 * int4);
}

TEST_F(KimiExperts, AreTrainedFromWhatTheyStandFor) {
  const ChangedModel mixed = Widened(false);
  const ChangedModel wide = Widened(true);
  const std::string want = Written("gradients", wide.path(), {});
  ASSERT_FALSE(want.empty());
  EXPECT_TRUE(want == Written("gradients", mixed.path(), {}));
  EXPECT_TRUE(want == Written("gradients", kModel, {}));
}

TEST_F(KimiExperts, ScalesThatAreMissingOrOfAnotherShapeAreNamed) {
  const auto refused = [&](const ChangedModel::Change& change) {
    const ChangedModel model(kModel, change);
    const Finished done = RunPenstock({"logits", "-m", model.path(), "--tokens", "5,6"});
    EXPECT_EQ(done.status, 2);
    EXPECT_NE(done.err.find(kExpert + "_scale"), std::string::npos) << done.err;
  };
  refused([](Json&, Json& tensors, std::string&) {
    tensors["mm_projector.rest"] = tensors[kExpert + "_scale"];
    tensors.erase(kExpert + "_scale");
  });
  refused([](Json&, Json& tensors, std::string&) {
    Json& shape = tensors[kExpert + "_scale"]["shape"];
    shape = {shape[1], shape[0]};
  });
}

}  // namespace
}  // namespace penstock::testing
