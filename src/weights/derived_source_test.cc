// Tensors that are computed from stored ones: MXFP4 pairs, padded vectors, GGUF's split and
// transformed tensors.

#include "weights/derived_source.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/json.h"
#include "weights/model_files.h"
#include "weights/testing_files.h"

namespace penstock::weights {
namespace {

using testing::Safetensors;
using testing::TemporaryFolder;

const std::string kModels = std::string(PENSTOCK_SOURCE_DIR) + "/tests/golden/models/";

template <class T>
std::string Raw(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// A folder with one or two tensors.
std::unique_ptr<ModelFiles> Folder(const TemporaryFolder& folder, const std::string& header,
                                   const std::string& data) {
  folder.Write("config.json", R"({"model_type": "kimi_linear"})");
  folder.Write("model.safetensors", Safetensors(header, data));
  auto files = OpenModel(folder.path());
  EXPECT_TRUE(files.ok()) << files.error().message;
  return files.ok() ? std::move(files).value() : nullptr;
}

std::vector<float> Whole(const ModelFiles& files, std::string_view name,
                         const std::vector<int64_t>& shape) {
  const auto source = files.Source(name, shape);
  EXPECT_TRUE(source.ok()) << source.error().message;
  std::vector<float> values(
      static_cast<size_t>(source.value()->rows() * source.value()->columns()));
  EXPECT_TRUE(source.value()->ReadRows(0, source.value()->rows(), values).ok());
  return values;
}

TEST(Mxfp4, NumbersOfAFolderAreScaledE2M1WithTheEvenColumnInTheLowHalf) {
  const TemporaryFolder folder;
  std::vector<uint8_t> packed;
  for (int i = 0; i < 16; ++i) {
    packed.push_back(static_cast<uint8_t>(i | (15 - i) << 4));  // column 2i: i, 2i + 1: 15 - i
  }
  packed.insert(packed.end(), 16, 0x21);
  const std::vector<uint8_t> scales = {130, 126};
  const auto files =
      Folder(folder,
             R"({"w.weight_packed":{"dtype":"U8","shape":[2,16],"data_offsets":[0,32]},)"
             R"("w.weight_scale":{"dtype":"U8","shape":[2,1],"data_offsets":[32,34]}})",
             Raw(packed) + Raw(scales));
  ASSERT_TRUE(files);
  EXPECT_TRUE(files->Has("w.weight"));
  const std::vector<float> got = Whole(*files, "w.weight", {2, 32});
  const float values[] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6, -0.0F, -0.5F, -1, -1.5F, -2, -3, -4, -6};
  for (size_t i = 0; i < 16; ++i) {
    EXPECT_EQ(got[2 * i], 8 * values[i]);
    EXPECT_EQ(got[2 * i + 1], 8 * values[15 - i]);
    EXPECT_EQ(got[32 + 2 * i], 0.25F);
    EXPECT_EQ(got[32 + 2 * i + 1], 0.5F);
  }
  const auto source = files->Source("w.weight", std::vector<int64_t>{2, 32});
  EXPECT_EQ(source.value()->type(), DType::kMXFP4);
  const auto wrong = files->Source("w.weight", std::vector<int64_t>{2, 64});
  ASSERT_FALSE(wrong.ok());
  EXPECT_NE(wrong.error().message.find("w.weight_packed"), std::string::npos);
}

TEST(Mxfp4, AScaleThatIsNotANumberNamesTheTensor) {
  const TemporaryFolder folder;
  const auto files =
      Folder(folder,
             R"({"w.weight_packed":{"dtype":"U8","shape":[1,16],"data_offsets":[0,16]},)"
             R"("w.weight_scale":{"dtype":"U8","shape":[1,1],"data_offsets":[16,17]}})",
             std::string(16, '\x11') + '\xff');
  ASSERT_TRUE(files);
  const auto source = files->Source("w.weight", std::vector<int64_t>{1, 32});
  ASSERT_TRUE(source.ok());
  std::vector<float> row(32);
  const auto read = source.value()->ReadRows(0, 1, row);
  ASSERT_FALSE(read.ok());
  EXPECT_NE(read.error().message.find("w.weight"), std::string::npos);
}

TEST(PaddedVector, ALogMayEndInZerosAndInNothingElse) {
  for (const float tail : {0.0F, 1.0F}) {
    const TemporaryFolder folder;
    const auto files =
        Folder(folder, R"({"x.A_log":{"dtype":"F32","shape":[6],"data_offsets":[0,24]}})",
               Raw(std::vector<float>{1, 2, 3, 4, 0, tail}));
    ASSERT_TRUE(files);
    const auto source = files->Source("x.A_log", std::vector<int64_t>{4});
    if (tail == 0.0F) {
      EXPECT_EQ(Whole(*files, "x.A_log", {4}), (std::vector<float>{1, 2, 3, 4}));
    } else {
      ASSERT_FALSE(source.ok());
      EXPECT_NE(source.error().message.find("x.A_log"), std::string::npos);
      EXPECT_NE(source.error().message.find("4 elements"), std::string::npos);
    }
    EXPECT_FALSE(files->Source("x.A_log", std::vector<int64_t>{7}).ok());
  }
}

// What the folder holds, a GGUF file holds in other forms: split and transposed, as -exp(x), fused.
TEST(GgufTwins, OfLatentAndDeltaAttentionHoldTheSameNumbers) {
  for (const std::string name : {"deepseek_v3", "kimi_linear", "kimi_k3"}) {
    auto folder = OpenModel(kModels + name);
    auto gguf = OpenModel(kModels + "gguf/" + name + ".gguf");
    ASSERT_TRUE(folder.ok()) << folder.error().message;
    ASSERT_TRUE(gguf.ok()) << gguf.error().message;
    const int64_t latent = folder.value()->config()["kv_lora_rank"].get<int64_t>();
    const int64_t heads = folder.value()->config()["num_attention_heads"].get<int64_t>();
    const int64_t rows = heads * (folder.value()->config()["qk_nope_head_dim"].get<int64_t>() +
                                  folder.value()->config()["v_head_dim"].get<int64_t>());
    const std::string expand = "model.layers.3.self_attn.kv_b_proj.weight";
    EXPECT_EQ(Whole(*gguf.value(), expand, {rows, latent}),
              Whole(*folder.value(), expand, {rows, latent}));
    if (name != "deepseek_v3") {
      const auto a = Whole(*folder.value(), "model.layers.0.self_attn.A_log", {heads});
      const auto b = Whole(*gguf.value(), "model.layers.0.self_attn.A_log", {heads});
      for (size_t i = 0; i < a.size(); ++i) {
        EXPECT_NEAR(a[i], b[i], 2e-7);
      }
    }
  }
}

TEST(MissingTensors, OfADepthReadAreNamed) {
  auto files = OpenModel(kModels + "kimi_linear");
  ASSERT_TRUE(files.ok());
  const auto source =
      files.value()->Source("model.layers.1.mlp_res_proj.weight", std::vector<int64_t>{1, 32});
  ASSERT_FALSE(source.ok());
  EXPECT_NE(source.error().message.find("model.layers.1.mlp_res_proj.weight"), std::string::npos);
}

}  // namespace
}  // namespace penstock::weights
