#include "weights/model_files.h"

#include <gtest/gtest.h>

#include <bit>
#include <filesystem>
#include <map>

#include "base/json.h"
#include "base/log.h"
#include "model/config.h"
#include "weights/gguf_config.h"
#include "weights/left_out.h"
#include "weights/testing_files.h"

namespace penstock::weights {
namespace {

using testing::Bytes;
using testing::GgufBuilder;
using testing::Safetensors;
using testing::TemporaryFolder;

const std::string kModels = std::string(PENSTOCK_SOURCE_DIR) + "/tests/golden/models/";

std::unique_ptr<ModelFiles> MustOpen(const std::string& path) {
  auto model = OpenModel(path);
  EXPECT_TRUE(model.ok()) << model.error().message;
  return model.ok() ? std::move(model).value() : nullptr;
}

Result<std::vector<float>> ReadWhole(const ModelFiles& model, std::string_view name,
                                     const std::vector<int64_t>& shape) {
  PENSTOCK_TRY_ASSIGN(const auto source, model.Source(name, shape));
  std::vector<float> values(static_cast<size_t>(source->rows() * source->columns()));
  PENSTOCK_TRY(source->ReadRows(0, source->rows(), values));
  return values;
}

// A llama of two heads of four rows, width 8, two layers, vocabulary 5: as GGUF metadata and
// tensors.
GgufBuilder TinyLlama() {
  GgufBuilder builder;
  builder.Text("general.architecture", "llama")
      .Uint("llama.block_count", 1)
      .Uint("llama.embedding_length", 8);
  builder.Uint("llama.context_length", 64)
      .Uint("llama.feed_forward_length", 4)
      .Uint("llama.attention.head_count", 2);
  builder.Uint("llama.attention.head_count_kv", 1)
      .Float("llama.attention.layer_norm_rms_epsilon", 1e-5F);
  return builder;
}

std::vector<float> Ramp(size_t count, float first = 0) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = first + static_cast<float>(i);
  }
  return values;
}

// The folder and its GGUF twin hold the same weights: every tensor of the folder must come out of
// both bit for bit.
class Twins : public ::testing::TestWithParam<const char*> {};

TEST_P(Twins, GiveTheSameWeightsUnderTheSameNames) {
  const auto folder = MustOpen(kModels + GetParam());
  const auto gguf = MustOpen(kModels + "gguf/" + GetParam() + ".gguf");
  ASSERT_TRUE(folder && gguf);
  size_t compared = 0;
  for (const StoredTensor& tensor : folder->tensors()) {
    SCOPED_TRACE(tensor.name);
    ASSERT_TRUE(gguf->Has(tensor.name));
    const auto wanted = ReadWhole(*folder, tensor.name, tensor.shape);
    const auto got = ReadWhole(*gguf, tensor.name, tensor.shape);
    ASSERT_TRUE(wanted.ok()) << wanted.error().message;
    ASSERT_TRUE(got.ok()) << got.error().message;
    ASSERT_EQ(got->size(), wanted->size());
    // Gemma's norms are stored as 1 + w in float32, which rounds.
    const bool rounded =
        std::string(GetParam()).starts_with("gemma") && tensor.name.ends_with("norm.weight");
    for (size_t i = 0; i < got->size(); ++i) {
      if (rounded) {
        ASSERT_NEAR(got.value()[i], wanted.value()[i], 1.2e-7) << i;
      } else {
        ASSERT_EQ(std::bit_cast<uint32_t>(got.value()[i]),
                  std::bit_cast<uint32_t>(wanted.value()[i]))
            << i;
      }
    }
    ++compared;
  }
  EXPECT_GT(compared, 20U);
  EXPECT_LE(compared, gguf->tensors().size() + 200);
}

TEST_P(Twins, GiveTheSameConfiguration) {
  const auto folder = MustOpen(kModels + GetParam());
  const auto gguf = MustOpen(kModels + "gguf/" + GetParam() + ".gguf");
  ASSERT_TRUE(folder && gguf);
  const Json& wanted = folder->config();
  const Json& got = gguf->config();
  for (const char* key : {"model_type",
                          "architectures",
                          "vocab_size",
                          "hidden_size",
                          "intermediate_size",
                          "num_hidden_layers",
                          "num_attention_heads",
                          "num_key_value_heads",
                          "max_position_embeddings",
                          "rms_norm_eps",
                          "rope_theta",
                          "head_dim",
                          "num_local_experts",
                          "num_experts",
                          "num_experts_per_tok",
                          "moe_intermediate_size",
                          "norm_topk_prob",
                          "sliding_window",
                          "rope_local_base_freq",
                          "query_pre_attn_scalar",
                          "hidden_activation",
                          "mlp_only_layers",
                          "decoder_sparse_step",
                          "tie_word_embeddings"}) {
    const bool unused =
        std::string_view(key) == "sliding_window" && !wanted.value("use_sliding_window", true);
    if (wanted.contains(key) && !wanted[key].is_null() && !unused) {
      EXPECT_EQ(got.value(key, Json()), wanted[key]) << key;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Goldens, Twins,
                         ::testing::Values("gemma2-plain", "gemma3", "llama-yarn", "llama3",
                                           "mixtral", "phi3", "phi3-longrope", "qwen2", "qwen3",
                                           "qwen3_moe-all", "smollm2"));

// Every tensor of the graph, and each tensor of the file that the graph has no use for.
void ExpectEveryTensorOfTheGraph(const std::string& path) {
  SCOPED_TRACE(path);
  const auto files = MustOpen(path);
  ASSERT_TRUE(files);
  const auto built = model::BuildModel(files->config(), path, model::GraphUse::kTrain);
  ASSERT_TRUE(built.ok()) << built.error().message;
  int64_t bytes = 0;
  for (const model::WeightTensor& tensor : built->graph.tensors) {
    const auto source = files->Source(tensor.name, tensor.shape);
    ASSERT_TRUE(source.ok()) << source.error().message;
    // A_log may be padded with zeros in a file, and is one per head here; kv_b_proj may be two
    // tensors, whose elements are read as float32.
    bytes +=
        tensor.name.ends_with(".A_log") || tensor.name.ends_with("kv_b_proj.weight")
            ? 0
            : source.value()->rows() * RowBytes(source.value()->type(), source.value()->columns());
    EXPECT_TRUE(ReadWhole(*files, tensor.name, tensor.shape).ok()) << tensor.name;
  }
  int64_t stored = 0;
  for (const StoredTensor& tensor : files->tensors()) {
    const bool rope = tensor.name.starts_with("rope_f");
    const bool tied_head = built->config.tied && tensor.name == "lm_head.weight";
    const bool vision =
        tensor.name.starts_with("vision_tower.") || tensor.name.starts_with("mm_projector.");
    const bool padded = tensor.name.ends_with(".A_log") || tensor.name.ends_with(".ssm_a") ||
                        tensor.name.ends_with("kv_b_proj.weight") ||
                        tensor.name.find("attn_k_b") != std::string::npos ||
                        tensor.name.find("attn_v_b") != std::string::npos;
    stored += rope || tied_head || vision || padded ? 0 : static_cast<int64_t>(tensor.bytes);
  }
  EXPECT_EQ(bytes, stored);
}

TEST(ModelFiles, HoldWhatTheGraphsOfAllGoldensAskForAndNothingElse) {
  size_t models = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kModels)) {
    if (entry.is_directory() && std::filesystem::exists(entry.path() / "config.json")) {
      ExpectEveryTensorOfTheGraph(entry.path().string());
      ++models;
    }
  }
  for (const auto& entry : std::filesystem::directory_iterator(kModels + "gguf")) {
    ExpectEveryTensorOfTheGraph(entry.path().string());
    ++models;
  }
  EXPECT_GE(models, 25U);
}

TEST(ModelFiles, RopeScalingOfGgufFilesComesAsHuggingFaceWritesIt) {
  const auto yarn = MustOpen(kModels + "gguf/llama-yarn.gguf");
  EXPECT_EQ(yarn->config()["rope_scaling"]["rope_type"], "yarn");
  EXPECT_EQ(yarn->config()["rope_scaling"]["factor"], 4.0);
  EXPECT_EQ(yarn->config()["rope_scaling"]["original_max_position_embeddings"], 32);
  const auto linear = MustOpen(kModels + "gguf/gemma3.gguf");
  EXPECT_EQ(linear->config()["rope_scaling"]["rope_type"], "linear");
  EXPECT_EQ(linear->config()["layer_types"][4], "sliding_attention");
  EXPECT_EQ(linear->config()["layer_types"][5], "full_attention");
  const auto none = MustOpen(kModels + "gguf/qwen3.gguf");
  EXPECT_TRUE(none->config()["rope_scaling"].is_null());
  // Llama 3's scaling is in the file as divisors, and must not be applied again.
  const auto llama3 = MustOpen(kModels + "gguf/llama3.gguf");
  const Json& scaling = llama3->config()["rope_scaling"];
  EXPECT_EQ(scaling["rope_type"], "factors");
  EXPECT_EQ(scaling["factors"].size(), 8U);
  EXPECT_EQ(scaling["factors"][0], 1.0);
  EXPECT_GT(scaling["factors"][7].get<double>(), 1.0);
}

TEST(ModelFiles, ShardsAreReadThroughTheIndex) {
  const auto model = MustOpen(kModels + "llama3");
  ASSERT_TRUE(model);
  EXPECT_EQ(model->kind(), ModelKind::kFolder);
  const auto expected =
      std::filesystem::file_size(kModels + "llama3/model-00001-of-00003.safetensors") +
      std::filesystem::file_size(kModels + "llama3/model-00002-of-00003.safetensors") +
      std::filesystem::file_size(kModels + "llama3/model-00003-of-00003.safetensors");
  EXPECT_EQ(model->file_bytes(), static_cast<int64_t>(expected));
}

TEST(ModelFiles, AMissingShardIsNamed) {
  const TemporaryFolder folder;
  std::filesystem::copy(kModels + "llama3", folder.path(),
                        std::filesystem::copy_options::recursive);
  std::filesystem::remove(folder.path() + "/model-00002-of-00003.safetensors");
  const auto model = OpenModel(folder.path());
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.error().code, ErrorCode::kNotFound);
  EXPECT_NE(model.error().message.find("model-00002-of-00003.safetensors"), std::string::npos)
      << model.error().message;
}

TEST(ModelFiles, AnIndexThatLiesIsRefused) {
  const std::string one =
      Safetensors(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "1234");
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"weight_map":{"b":"s1.safetensors"}})", "no file does"},
      {R"({"weight_map":{"a":"../s1.safetensors"}})",
       "wanted the name of a .safetensors file of this folder"},
      {R"({"weight_map":{"a":"/etc/passwd"}})",
       "wanted the name of a .safetensors file of this folder"},
      {R"({"weight_map":{"a":5}})", "a is no string"},
      {R"({"weight_map":[]})", "no object weight_map"},
      {R"({"weight_map":{}})", "names 0 files"},
      {R"([1,2])", "no object weight_map"},
      {R"({"weight_map":{"a":"s1.safetensors","b":"s2.safetensors"}})",
       "s2.safetensors (1 tensor)"},
      {R"({"weight_map)", "not valid JSON"},
  };
  for (const auto& [index, says] : cases) {
    SCOPED_TRACE(index);
    const TemporaryFolder folder;
    folder.Write("config.json", R"({"model_type":"llama"})");
    folder.Write("s1.safetensors", one);
    folder.Write("model.safetensors.index.json", index);
    const auto model = OpenModel(folder.path());
    ASSERT_FALSE(model.ok());
    EXPECT_NE(model.error().message.find(says), std::string::npos) << model.error().message;
    EXPECT_EQ(ExitStatus(model.error().code), 2);
  }
}

TEST(ModelFiles, TensorsThatTheIndexForgetsAreReadAndSaid) {
  const TemporaryFolder folder;
  folder.Write("config.json", R"({"model_type":"llama"})");
  folder.Write("s1.safetensors",
               Safetensors(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                           R"("b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]},)"
                           R"("c":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})",
                           "123456789012"));
  folder.Write("s2.safetensors", "a file that the index does not name");
  folder.Write("model.safetensors.index.json", R"({"weight_map":{"b":"s1.safetensors"}})");
  std::string said;
  SetLogSink([&said](LogLevel, const std::string& message) { said += message; });
  const auto model = MustOpen(folder.path());
  SetLogSink({});
  ASSERT_TRUE(model);
  EXPECT_EQ(model->tensors().size(), 3U);
  EXPECT_NE(
      said.find("model.safetensors.index.json: 2 tensors of its files not named there (a, ...)"),
      std::string::npos)
      << said;
  const int64_t shape[] = {1};
  EXPECT_TRUE(model->Source("c", shape).ok());
  const auto missing = model->Source("d", shape);
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(ExitStatus(missing.error().code), 2);
  EXPECT_NE(missing.error().message.find(
                "no tensor d in the 1 file that model.safetensors.index.json names"),
            std::string::npos)
      << missing.error().message;
}

TEST(ModelFiles, OtherSafetensorsFilesAreIgnored) {
  const TemporaryFolder folder;
  folder.Write("config.json", R"({"model_type":"llama"})");
  folder.Write("model.safetensors",
               Safetensors(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "1234"));
  folder.Write("consolidated.safetensors", "rubbish");
  const auto model = MustOpen(folder.path());
  ASSERT_TRUE(model);
  EXPECT_EQ(model->tensors().size(), 1U);
}

TEST(ModelFiles, AnUntiedHeadThatIsMissingIsNamed) {
  const TemporaryFolder folder;
  folder.Write("config.json", R"({"model_type":"llama","tie_word_embeddings":false})");
  folder.Write(
      "model.safetensors",
      Safetensors(
          R"({"model.embed_tokens.weight":{"dtype":"F32","shape":[1,1],"data_offsets":[0,4]}})",
          "1234"));
  const auto model = MustOpen(folder.path());
  ASSERT_TRUE(model);
  const int64_t shape[] = {1, 1};
  const auto head = model->Source("lm_head.weight", shape);
  ASSERT_FALSE(head.ok());
  EXPECT_EQ(head.error().code, ErrorCode::kNotFound);
  EXPECT_NE(head.error().message.find("lm_head.weight"), std::string::npos);
  EXPECT_NE(head.error().message.find("tie_word_embeddings"), std::string::npos);
}

TEST(ModelFiles, OtherPrefixesOfTheSameTensorsAreFound) {
  for (const std::string name :
       {"layers.0.input_layernorm.weight", "model.layers.0.input_layernorm.weight",
        "language_model.model.layers.0.input_layernorm.weight",
        "model.language_model.layers.0.input_layernorm.weight"}) {
    const TemporaryFolder folder;
    folder.Write(
        "config.json",
        R"({"model_type":"gemma3","text_config":{"hidden_size":2},"eos_token_id":[1,106]})");
    const std::vector<float> values = {1, 2};
    folder.Write(
        "model.safetensors",
        Safetensors("{\"" + name + R"(":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
                    {reinterpret_cast<const char*>(values.data()), 8}));
    const auto model = MustOpen(folder.path());
    ASSERT_TRUE(model);
    const auto got = ReadWhole(*model, "model.layers.0.input_layernorm.weight", {2});
    ASSERT_TRUE(got.ok()) << name << ": " << got.error().message;
    EXPECT_EQ(got.value(), values);
    EXPECT_EQ(model->config()["model_type"], "gemma3_text");
    EXPECT_EQ(model->config()["eos_token_id"].size(), 2U);
  }
}

TEST(ModelFiles, StackedExpertsOfTransformers5AreCutIntoTheirMatrices) {
  // 2 experts, inner width 3, width 2: gate rows then up rows per expert.
  const std::vector<float> values = Ramp(2 * 6 * 2 + 2 * 2 * 3);
  const std::string header =
      R"({"model.layers.0.mlp.experts.gate_up_proj":{"dtype":"F32","shape":[2,6,2],"data_offsets":[0,96]},)"
      R"("model.layers.0.mlp.experts.down_proj":{"dtype":"F32","shape":[2,2,3],"data_offsets":[96,144]}})";
  const TemporaryFolder folder;
  folder.Write("config.json", R"({"model_type":"mixtral"})");
  folder.Write("model.safetensors",
               Safetensors(header, {reinterpret_cast<const char*>(values.data()), 144}));
  const auto model = MustOpen(folder.path());
  ASSERT_TRUE(model);
  for (const std::string block : {"mlp", "block_sparse_moe"}) {
    const std::string prefix = "model.layers.0." + block + ".experts.1.";
    const bool mixtral = block != "mlp";
    EXPECT_EQ(
        ReadWhole(*model, prefix + (mixtral ? "w1.weight" : "gate_proj.weight"), {3, 2}).value(),
        Ramp(6, 12));
    EXPECT_EQ(
        ReadWhole(*model, prefix + (mixtral ? "w3.weight" : "up_proj.weight"), {3, 2}).value(),
        Ramp(6, 18));
    EXPECT_EQ(
        ReadWhole(*model, prefix + (mixtral ? "w2.weight" : "down_proj.weight"), {2, 3}).value(),
        Ramp(6, 30));
  }
  EXPECT_FALSE(
      model->Source("model.layers.0.mlp.experts.2.gate_proj.weight", std::vector<int64_t>{3, 2})
          .ok());
}

TEST(ModelFiles, WrongShapesAndTypesAreNamed) {
  const TemporaryFolder folder;
  folder.Write("config.json", R"({"model_type":"llama"})");
  folder.Write(
      "model.safetensors",
      Safetensors(R"({"model.norm.weight":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                  R"("lm_head.weight":{"dtype":"F8_E4M3","shape":[2,2],"data_offsets":[8,12]}})",
                  std::string(12, '\0')));
  const auto model = MustOpen(folder.path());
  ASSERT_TRUE(model);
  const auto shape = model->Source("model.norm.weight", std::vector<int64_t>{3});
  ASSERT_FALSE(shape.ok());
  EXPECT_NE(shape.error().message.find("tensor model.norm.weight: got shape [2], wanted [3]"),
            std::string::npos)
      << shape.error().message;
  EXPECT_NE(shape.error().message.find("model.safetensors"), std::string::npos);
  const auto type = model->Source("lm_head.weight", std::vector<int64_t>{2, 2});
  ASSERT_FALSE(type.ok());
  EXPECT_EQ(type.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(type.error().message.find("F8_E4M3"), std::string::npos) << type.error().message;
}

TEST(ModelFiles, NotANumberIsNamedByTensorAndRow) {
  std::vector<float> values = Ramp(6);
  values[4] = std::bit_cast<float>(0x7fc00000U);
  const TemporaryFolder folder;
  folder.Write("config.json", R"({"model_type":"llama"})");
  folder.Write(
      "model.safetensors",
      Safetensors(R"({"lm_head.weight":{"dtype":"F32","shape":[3,2],"data_offsets":[0,24]}})",
                  {reinterpret_cast<const char*>(values.data()), 24}));
  const auto model = MustOpen(folder.path());
  ASSERT_TRUE(model);
  const auto source = model->Source("lm_head.weight", std::vector<int64_t>{3, 2});
  ASSERT_TRUE(source.ok());
  std::vector<float> rows(4);
  EXPECT_TRUE(source.value()->ReadRows(0, 2, rows).ok());
  const auto bad = source.value()->ReadRows(1, 2, rows);
  ASSERT_FALSE(bad.ok());
  EXPECT_EQ(bad.error().code, ErrorCode::kCorruptData);
  EXPECT_NE(bad.error().message.find("lm_head.weight, row 2"), std::string::npos)
      << bad.error().message;
}

TEST(ModelFiles, ASourceOutlivesItsModelAndItsDroppedPages) {
  auto model = MustOpen(kModels + "smollm2");
  ASSERT_TRUE(model);
  const auto hidden = model->config()["hidden_size"].get<int64_t>();
  const auto vocabulary = model->config()["vocab_size"].get<int64_t>();
  const auto source =
      model->Source("model.embed_tokens.weight", std::vector<int64_t>{vocabulary, hidden});
  ASSERT_TRUE(source.ok());
  model.reset();
  std::vector<float> before(static_cast<size_t>(hidden));
  std::vector<float> after(static_cast<size_t>(hidden));
  ASSERT_TRUE(source.value()->ReadRows(7, 1, before).ok());
  source.value()->DropPages();
  ASSERT_TRUE(source.value()->ReadRows(7, 1, after).ok());
  EXPECT_EQ(before, after);
}

TEST(GgufModel, RowsOfPermutedHeadsComeInHuggingFaceOrder) {
  GgufBuilder builder = TinyLlama();
  builder.Floats("token_embd.weight", {8, 5}, Ramp(40))
      .Floats("blk.0.attn_q.weight", {8, 8}, Ramp(64));
  builder.Floats("blk.0.attn_q.bias", {8}, Ramp(8)).Floats("blk.0.attn_v.weight", {8, 4}, Ramp(32));
  const TemporaryFolder folder;
  const auto model = MustOpen(folder.Write("m.gguf", builder.Build()));
  ASSERT_TRUE(model);
  EXPECT_EQ(model->config()["tie_word_embeddings"], true);
  EXPECT_EQ(model->config()["attention_bias"], true);
  const auto source =
      model->Source("model.layers.0.self_attn.q_proj.weight", std::vector<int64_t>{8, 8});
  ASSERT_TRUE(source.ok()) << source.error().message;
  // Heads of four rows: canonical rows 0 1 2 3 are stored as 0 2 1 3.
  const int64_t stored[] = {0, 2, 1, 3, 4, 6, 5, 7};
  std::vector<float> rows(64);
  ASSERT_TRUE(source.value()->ReadRows(0, 8, rows).ok());
  for (int64_t row = 0; row < 8; ++row) {
    EXPECT_EQ(rows[static_cast<size_t>(row * 8)], static_cast<float>(stored[row] * 8));
    float raw = 0;
    std::memcpy(&raw, source.value()->RawRow(row).data(), sizeof raw);
    EXPECT_EQ(raw, static_cast<float>(stored[row] * 8));
    EXPECT_EQ(source.value()->RawRow(row).size(), 32U);
  }
  EXPECT_EQ(ReadWhole(*model, "model.layers.0.self_attn.q_proj.bias", {8}).value(),
            (std::vector<float>{0, 2, 1, 3, 4, 6, 5, 7}));
  EXPECT_EQ(ReadWhole(*model, "model.layers.0.self_attn.v_proj.weight", {4, 8}).value(), Ramp(32));
}

model::Graph GraphOf(const ModelFiles& files) {
  auto model = model::BuildModel(files.config(), files.path());
  EXPECT_TRUE(model.ok()) << model.error().message;
  return std::move(model).value().graph;
}

TEST(GgufModel, ABiasThatItsFamilyDoesNotReadIsRefused) {
  const TemporaryFolder folder;
  GgufBuilder llama = TinyLlama();
  llama.Floats("token_embd.weight", {8, 5}, Ramp(40)).Floats("blk.0.attn_q.bias", {8}, Ramp(8));
  const auto with = MustOpen(folder.Write("llama.gguf", llama.Build()));
  ASSERT_TRUE(with);
  EXPECT_TRUE(CheckNothingLeftOut(*with, GraphOf(*with)).ok());  // read, as the metadata imply

  for (const char* name : {"blk.0.attn_q.bias", "blk.0.attn_k_norm.weight", "blk.0.ffn_down.bias",
                           "blk.0.attn_norm.bias", "output_norm.bias"}) {
    SCOPED_TRACE(name);
    GgufBuilder mistral = TinyLlama().Uint("llama.attention.sliding_window", 7);
    mistral.Floats("token_embd.weight", {8, 5}, Ramp(40)).Floats(name, {8}, Ramp(8));
    const auto model = MustOpen(folder.Write("m.gguf", mistral.Build()));
    ASSERT_TRUE(model);
    const Result<> checked = CheckNothingLeftOut(*model, GraphOf(*model));
    ASSERT_FALSE(checked.ok());
    EXPECT_EQ(ExitStatus(checked.error().code), 2);
    EXPECT_NE(checked.error().message.find("wanted a file without"), std::string::npos);
  }
}

TEST(ModelFiles, ABiasThatTheConfigurationDoesNotAskForIsSaid) {
  const TemporaryFolder folder;
  folder.Write("config.json",
               R"({"model_type":"llama","vocab_size":5,"hidden_size":8,"intermediate_size":4,
                   "num_hidden_layers":1,"num_attention_heads":2})");
  folder.Write("model.safetensors",
               Safetensors(R"({"model.layers.0.self_attn.k_proj.bias":)"
                           R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                           "1234"));
  const auto model = MustOpen(folder.path());
  ASSERT_TRUE(model);
  std::string said;
  SetLogSink([&said](LogLevel, const std::string& message) { said += message; });
  EXPECT_TRUE(CheckNothingLeftOut(*model, GraphOf(*model)).ok());
  SetLogSink({});
  EXPECT_NE(said.find("model.layers.0.self_attn.k_proj.bias is in its files"), std::string::npos)
      << said;
}

TEST(GgufModel, ExpertsOfOldAndFusedFilesAreFound) {
  GgufBuilder old = TinyLlama();
  old.Uint("llama.expert_count", 2)
      .Uint("llama.expert_used_count", 1)
      .Floats("token_embd.weight", {8, 5}, Ramp(40));
  old.Floats("blk.0.ffn_gate.1.weight", {8, 4}, Ramp(32, 5))
      .Floats("blk.0.ffn_gate_inp.weight", {8, 2}, Ramp(16));
  const TemporaryFolder folder;
  const auto model = MustOpen(folder.Write("old.gguf", old.Build()));
  ASSERT_TRUE(model);
  EXPECT_EQ(model->config()["model_type"], "mixtral");
  EXPECT_EQ(
      ReadWhole(*model, "model.layers.0.block_sparse_moe.experts.1.w1.weight", {4, 8}).value(),
      Ramp(32, 5));
  EXPECT_EQ(ReadWhole(*model, "model.layers.0.block_sparse_moe.gate.weight", {2, 8}).value(),
            Ramp(16));

  GgufBuilder fused = TinyLlama();
  fused.Uint("llama.expert_count", 2)
      .Uint("llama.expert_used_count", 1)
      .Floats("token_embd.weight", {8, 5}, Ramp(40));
  fused.Floats("blk.0.ffn_gate_up_exps.weight", {8, 8, 2}, Ramp(128));
  const auto second = MustOpen(folder.Write("fused.gguf", fused.Build()));
  ASSERT_TRUE(second);
  EXPECT_EQ(
      ReadWhole(*second, "model.layers.0.block_sparse_moe.experts.1.w3.weight", {4, 8}).value(),
      Ramp(32, 96));
}

TEST(GgufModel, AnUnknownArchitectureIsNamedBesideTheKnownOnes) {
  GgufBuilder builder;
  builder.Text("general.architecture", "rwkv7").Floats("token_embd.weight", {8, 5}, Ramp(40));
  const TemporaryFolder folder;
  const auto model = OpenModel(folder.Write("m.gguf", builder.Build()));
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(model.error().message.find("\"rwkv7\", supported: llama, "), std::string::npos)
      << model.error().message;
}

TEST(GgufModel, AnUnsupportedQuantizationIsNamedBesideTheSupportedOnes) {
  GgufBuilder builder = TinyLlama();
  builder.Floats("token_embd.weight", {8, 5}, Ramp(40))
      .Tensor("output.weight", {256}, 23, std::string(136, 'x'));
  const TemporaryFolder folder;
  const auto model = OpenModel(folder.Write("m.gguf", builder.Build()));
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(model.error().message.find("IQ4_XS, supported: F32"), std::string::npos)
      << model.error().message;
}

TEST(GgufModel, AVocabularyOnlyOpens) {
  GgufBuilder builder;
  builder.Text("general.architecture", "bert").Text("tokenizer.ggml.model", "gpt2");
  builder.Strings("tokenizer.ggml.tokens", {"a", "b"}).Text("tokenizer.chat_template", "{{ x }}");
  const TemporaryFolder folder;
  const std::string path = folder.Write("v.gguf", builder.Build());
  const auto model = MustOpen(path);
  ASSERT_TRUE(model);
  EXPECT_TRUE(model->config().is_null());
  EXPECT_FALSE(model->Source("model.norm.weight", std::vector<int64_t>{1}).ok());
  const auto material = OpenTokenizer(path);
  ASSERT_TRUE(material.ok()) << material.error().message;
  EXPECT_EQ(material->gguf->tokens.size(), 2U);
  EXPECT_EQ(material->chat_template, "{{ x }}");
}

TEST(GgufModel, MetadataOutOfRangeIsRefused) {
  const std::vector<std::pair<std::string, std::function<void(GgufBuilder&)>>> cases = {
      {"llama.attention.key_length",
       [](GgufBuilder& b) { b.Uint("llama.attention.key_length", 0); }},
      {"llama.attention.value_length",
       [](GgufBuilder& b) { b.Uint("llama.attention.value_length", 8); }},
      {"llama.rope.dimension_count",
       [](GgufBuilder& b) { b.Uint("llama.rope.dimension_count", 3); }},
      {"llama.rope.freq_base", [](GgufBuilder& b) { b.Float("llama.rope.freq_base", -1); }},
      {"llama.rope.scaling.type",
       [](GgufBuilder& b) { b.Text("llama.rope.scaling.type", "spiral"); }},
      {"llama.rope.scaling.factor",
       [](GgufBuilder& b) {
         b.Text("llama.rope.scaling.type", "yarn")
             .Uint("llama.rope.scaling.original_context_length", 8);
       }},
      {"llama.expert_used_count",
       [](GgufBuilder& b) { b.Uint("llama.expert_count", 2).Uint("llama.expert_used_count", 3); }},
      {"rope_freqs.weight",
       [](GgufBuilder& b) {
         b.Floats("rope_freqs.weight", {3}, {1, 1, 1});
       }},
      {"not positive",
       [](GgufBuilder& b) {
         b.Floats("rope_freqs.weight", {2}, {1, -1});
       }},
  };
  for (const auto& [says, change] : cases) {
    SCOPED_TRACE(says);
    GgufBuilder builder = TinyLlama();
    change(builder);
    builder.Floats("token_embd.weight", {8, 5}, Ramp(40));
    const TemporaryFolder folder;
    const auto model = OpenModel(folder.Write("m.gguf", builder.Build()));
    ASSERT_FALSE(model.ok());
    EXPECT_NE(model.error().message.find(says), std::string::npos) << model.error().message;
    EXPECT_EQ(ExitStatus(model.error().code), 2);
  }
}

// A set of three parts: the tiny model's metadata and embedding in the first, one tensor in each of
// the others.
class SplitSet : public ::testing::Test {
 protected:
  static std::string Part(uint32_t number, uint32_t count = 3, uint32_t tensors = 3) {
    GgufBuilder builder =
        number == 0 ? TinyLlama() : GgufBuilder().Text("general.architecture", "llama");
    builder.Raw("split.no", 2, Bytes().Put(static_cast<uint16_t>(number)).data());
    builder.Raw("split.count", 2, Bytes().Put(static_cast<uint16_t>(count)).data())
        .Uint("split.tensors.count", tensors);
    const char* names[] = {"token_embd.weight", "blk.0.attn_v.weight", "output_norm.weight"};
    const std::vector<uint64_t> shapes[] = {{8, 5}, {8, 4}, {8}};
    const size_t sizes[] = {40, 32, 8};
    builder.Floats(names[number], shapes[number], Ramp(sizes[number]));
    return builder.Build();
  }

  void WriteAll() {
    for (uint32_t i = 0; i < 3; ++i) {
      folder_.Write(Name(i + 1), Part(i));
    }
  }

  static std::string Name(uint32_t number) { return fmt::format("m-{:05}-of-00003.gguf", number); }

  // Opening `name` must fail with these words.
  void ExpectRefused(const std::string& name, const std::vector<std::string>& words) {
    const auto model = OpenModel(folder_.path() + "/" + name);
    ASSERT_FALSE(model.ok());
    EXPECT_EQ(ExitStatus(model.error().code), 2);
    for (const std::string& word : words) {
      EXPECT_NE(model.error().message.find(word), std::string::npos) << model.error().message;
    }
  }

  TemporaryFolder folder_;
};

TEST_F(SplitSet, OpensThroughItsFirstPart) {
  WriteAll();
  const auto model = MustOpen(folder_.path() + "/" + Name(1));
  ASSERT_TRUE(model);
  EXPECT_EQ(model->tensors().size(), 3U);
  EXPECT_EQ(ReadWhole(*model, "model.layers.0.self_attn.v_proj.weight", {4, 8}).value(), Ramp(32));
  EXPECT_EQ(ReadWhole(*model, "model.norm.weight", {8}).value(), Ramp(8));
}

TEST_F(SplitSet, ALaterPartNamesTheFirst) {
  WriteAll();
  ExpectRefused(Name(2), {"split", "part 2", "m-00001-of-00003.gguf"});
}

TEST_F(SplitSet, AHoleNamesTheMissingPart) {
  WriteAll();
  std::filesystem::remove(folder_.path() + "/" + Name(2));
  ExpectRefused(Name(1), {"split", "m-00002-of-00003.gguf", "missing"});
}

TEST_F(SplitSet, JoinedPartsAreRefused) {
  folder_.Write(Name(1), Part(0) + Part(1) + Part(2));
  ExpectRefused(Name(1), {"split", "joined"});
}

TEST_F(SplitSet, ARenamedPartIsRefused) {
  folder_.Write("renamed.gguf", Part(0));
  ExpectRefused("renamed.gguf", {"split", "-00001-of-00003.gguf"});
}

TEST_F(SplitSet, APartOfAnotherSetIsRefused) {
  WriteAll();
  folder_.Write(Name(3), Part(2, 4));
  ExpectRefused(Name(1), {"split", "m-00003-of-00003.gguf", "of 4"});
  folder_.Write(Name(3), Part(1));
  ExpectRefused(Name(1), {"split", "part 2", "wanted part 3"});
}

TEST_F(SplitSet, ATensorInTwoPartsAndAWrongTotalAreRefused) {
  for (uint32_t i = 0; i < 3; ++i) {
    folder_.Write(Name(i + 1), Part(i, 3, 4));
  }
  ExpectRefused(Name(1), {"holds 3 tensors, wanted 4"});
}

// The starting points of the fuzz targets, and whatever they found that is kept with them.
TEST(GgufModel, TheFuzzCorpusIsSurvived) {
  size_t opened = 0;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(PENSTOCK_SOURCE_DIR) +
                                                               "/tests/fuzz/corpus/gguf")) {
    const auto model = OpenModel(entry.path().string());
    EXPECT_TRUE(model.ok() || ExitStatus(model.error().code) == 2);
    opened += model.ok() ? 1 : 0;
  }
  EXPECT_GE(opened, 13U);
}

TEST(ModelFiles, AConfigurationOfHugeManyMembersIsRefusedAtOnce) {
  std::string config = "{";
  for (int i = 0; i < 200000; ++i) {
    config += fmt::format("\"{}\":0,", i);
  }
  const TemporaryFolder folder;
  folder.Write("config.json", config + "\"z\":0}");
  const auto model = OpenModel(folder.path());
  ASSERT_FALSE(model.ok());
  EXPECT_NE(model.error().message.find("wanted at most 20000"), std::string::npos)
      << model.error().message;
}

TEST(ModelFiles, WhatIsNoModelIsRefused) {
  const TemporaryFolder folder;
  const auto nothing = OpenModel(folder.path() + "/none");
  ASSERT_FALSE(nothing.ok());
  EXPECT_EQ(nothing.error().code, ErrorCode::kNotFound);
  EXPECT_FALSE(OpenModel(folder.path()).ok());
  folder.Write("config.json", "{}");
  const auto empty = OpenModel(folder.path());
  ASSERT_FALSE(empty.ok());
  EXPECT_NE(empty.error().message.find("no model.safetensors"), std::string::npos);
  folder.Write("config.json", R"({"quantization_config":{"quant_method":"awq"}})");
  const auto quantized = OpenModel(folder.path());
  ASSERT_FALSE(quantized.ok());
  EXPECT_NE(quantized.error().message.find("awq"), std::string::npos);
  EXPECT_EQ(quantized.error().code, ErrorCode::kUnsupported);
  EXPECT_FALSE(OpenModel(folder.Write("text.gguf", "hello")).ok());
  EXPECT_FALSE(OpenModel(folder.Write("empty.gguf", "")).ok());
}

}  // namespace
}  // namespace penstock::weights
