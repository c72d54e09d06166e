// Variations of the decoder together: with each other, with experts, with a tied head, with sliding
// windows and with the norms of Gemma. What may stand together trains and runs with the same bits
// on every cut; what may not is refused by its names (model/variations_test.cc tries all of them).

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "base/json.h"
#include "support/engine_runs.h"
#include "support/process.h"
#include "support/training_runs.h"

namespace penstock::testing {
namespace {

struct Mix {
  const char* name;
  const char* base;  // keys beside those of kCommon
  const char* keys;
};

constexpr const char* kCommon = R"({"hidden_size":16,"intermediate_size":24,"num_hidden_layers":5,
    "num_attention_heads":4,"num_key_value_heads":2,"head_dim":4,"vocab_size":67,
    "max_position_embeddings":256,"rms_norm_eps":1e-5,"bos_token_id":1,"eos_token_id":2})";
constexpr const char* kLlama = R"({"model_type":"llama","tie_word_embeddings":false})";
constexpr const char* kTied = R"({"model_type":"llama","tie_word_embeddings":true})";
constexpr const char* kExperts = R"({"model_type":"mixtral","num_local_experts":4,
    "num_experts_per_tok":2,"sliding_window":6})";
constexpr const char* kWindows = R"({"model_type":"mistral","sliding_window":5})";
constexpr const char* kGemma = R"({"model_type":"gemma2","sliding_window":4,
    "query_pre_attn_scalar":4,"hidden_activation":"gelu_pytorch_tanh"})";

const Mix kMixes[] = {
    {"reads_exits_next_shared", kTied,
     R"({"attention_residuals":{"residual":"block","block_size":3,"key_norm_weight":true},
         "early_exits":{"layers":[1,3],"head":"shared"},"num_nextn_predict_layers":2,
         "shared_layers":[0,1,0,1,4]})"},
    {"full_reads_experts", kExperts,
     R"({"attention_residuals":{"residual":"full","output":"sum"},
         "early_exits":{"layers":[2],"head":"own"},"num_nextn_predict_layers":1})"},
    {"reads_gemma", kGemma,
     R"({"attention_residuals":{"residual":"block","block_size":[1,4,5]},
         "num_nextn_predict_layers":1})"},
    {"skips_per_layer_parallel", kTied,
     R"({"skip_connections":[[0,4],[1,3]],"per_layer_embeddings":{"width":6},
         "use_parallel_residual":true,"num_nextn_predict_layers":1,
         "early_exits":{"layers":[0,2]}})"},
    {"skips_per_layer_experts_windows", kExperts,
     R"({"skip_connections":[[0,2],[0,4],[2,4]],"per_layer_embeddings":{"width":4},
         "shared_layers":[0,0,2,2,4]})"},
    {"skips_windows", kWindows,
     R"({"skip_connections":[[1,3],[0,4]],"early_exits":{"layers":[3],"head":"own"},
         "num_nextn_predict_layers":2})"},
    {"streams_exits_next_tied", kTied,
     R"({"hyper_connections":{"streams":3,"mode":"dynamic"},"early_exits":{"layers":[1]},
         "num_nextn_predict_layers":1,"shared_layers":[0,1,1,0,0]})"},
    {"streams_experts", kExperts,
     R"({"hyper_connections":{"streams":2,"mode":"static"},"num_nextn_predict_layers":1})"},
    {"per_layer_gemma", kGemma,
     R"({"per_layer_embeddings":{"width":6},"shared_layers":[0,1,2,0,1],
         "early_exits":{"layers":[4]}})"},
};

Json ConfigOf(const Mix& mix) {
  Json config = ParseJson(kCommon, "test").value();
  config.update(ParseJson(mix.base, "test").value());
  config.update(ParseJson(mix.keys, "test").value());
  return config;
}

class Mixes : public ::testing::TestWithParam<Mix> {
 protected:
  void SetUp() override {
    path_ = folder_.path() + "/model";
    const auto written = WriteRandomModel(path_, ConfigOf(GetParam()), 23);
    ASSERT_TRUE(written.ok()) << written.error().message;
  }

  TemporaryFolder folder_;
  std::string path_;
};

TEST_P(Mixes, TrainWithTheBitsOfOneStage) {
  auto opened = OpenTrainModel(path_);
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  const TrainModel& model = opened.value();
  const auto batches = RandomBatches(4, 67, 14, 3);
  TrainCase one;
  one.schedule = "1f1b";
  one.micro_batches = 4;
  const auto wanted = RunTrainCase(model, one, batches);
  ASSERT_TRUE(wanted.ok()) << wanted.error().message;
  EXPECT_EQ(wanted->gradients.size(), model.graph.tensors.size());
  const int64_t units = model.graph.num_layers();
  TrainCase cases[4];
  cases[0].schedule = "1f1b";
  cases[0].ranks = 4;
  cases[0].cut = {2, 3, units - 1};
  cases[1].schedule = "zb-v";
  cases[1].ranks = 2;
  cases[1].naive = true;
  cases[2].schedule = "interleaved-1f1b";
  cases[2].ranks = 2;
  cases[2].chunks = 3;
  cases[2].recompute = runtime::Recompute::kFull;
  cases[3].schedule = "zb-h1";
  cases[3].ranks = 2;
  cases[3].cut = {units / 2};
  cases[3].threads = 2;
  for (TrainCase& test : cases) {
    test.micro_batches = 4;
    const auto got = RunTrainCase(model, test, batches);
    ASSERT_TRUE(got.ok()) << test.Text() << ": " << got.error().message;
    EXPECT_EQ(got->loss, wanted->loss) << test.Text();
    ASSERT_EQ(got->gradients.size(), wanted->gradients.size()) << test.Text();
    for (const auto& [name, numbers] : wanted->gradients) {
      const auto it = got->gradients.find(name);
      ASSERT_NE(it, got->gradients.end()) << test.Text() << ": " << name;
      EXPECT_EQ(std::memcmp(numbers.data(), it->second.data(), numbers.size() * 4), 0)
          << test.Text() << ": " << name;
    }
  }
}

TEST_P(Mixes, RunWithTheBitsOfOneStage) {
  const auto bundle = serve::OpenBundle(path_);
  ASSERT_TRUE(bundle.ok()) << bundle.error().message;
  serve::RunOptions options;
  options.threads = 1;
  options.weights = runtime::WeightChoice::kF32;
  options.kv_type = DType::kF32;
  const std::vector<int32_t> ids = {3, 14, 15, 9, 2, 6, 5, 35, 8, 9, 7, 9};
  const auto one = EngineLogits(bundle.value(), options, ids);
  ASSERT_TRUE(one.ok()) << one.error().message;
  for (const std::vector<int64_t>& cut : {std::vector<int64_t>{3}, {1, 2, 6}, {2, 2, 4}}) {
    options.cut = cut;
    options.groups = 2;
    options.prefill_chunk = 5;
    const auto got = EngineLogits(bundle.value(), options, ids);
    ASSERT_TRUE(got.ok()) << got.error().message;
    EXPECT_EQ(got.value(), one.value()) << LayoutText(options);
  }
  // Decoding one id after the other gives what all rows at once gave.
  serve::RunOptions decode = options;
  decode.cut = {2, 4};
  const auto whole = EngineIds(bundle.value(), options, {ids}, 6);
  const auto cut = EngineIds(bundle.value(), decode, {ids}, 6);
  ASSERT_TRUE(whole.ok() && cut.ok());
  EXPECT_EQ(whole.value(), cut.value());
}

INSTANTIATE_TEST_SUITE_P(All, Mixes, ::testing::ValuesIn(kMixes),
                         [](const ::testing::TestParamInfo<Mix>& mix) {
                           return std::string(mix.param.name);
                         });

}  // namespace
}  // namespace penstock::testing
