#include "cost/roofline.h"

#include <gtest/gtest.h>

#include "base/config_path.h"
#include "base/json.h"
#include "model/config.h"

namespace penstock::cost {
namespace {

ModelProfile Named(const std::string& name) {
  const auto json = ReadJsonFile(FindConfig("models", "json", name).value());
  auto model = model::BuildModel(json.value(), name);
  EXPECT_TRUE(model.ok()) << model.error().message;
  auto profile = BuildProfile(model->graph, name, model->config.family);
  EXPECT_TRUE(profile.ok());
  return std::move(profile).value();
}

TEST(Profile, CountsEachParameterOnceAndSharesClassesAmongEqualLayers) {
  const ModelProfile p = Named("llama-3.1-8b");
  EXPECT_EQ(p.parameters, 8030261248.0);
  EXPECT_EQ(p.classes.size(), 3u);  // embedding, decoder, head
  EXPECT_EQ(p.decoder_layers(), 32);
  EXPECT_FALSE(p.tied);
  EXPECT_EQ(p.max_kv_heads, 8);
  double sum = 0;
  for (int32_t l = 0; l < p.num_layers(); ++l) {
    sum += p.layer(l).parameters();
  }
  EXPECT_EQ(sum, p.parameters);
  EXPECT_TRUE(Named("smollm2-135m").tied);
}

TEST(Profile, GptSavesWhatKorthikantiCountPerRowWithTensorParallelism) {
  // Equation 2: s b h (10 + 24/t + 5 a s / (h t)).
  const ModelProfile p = Named("megatron-22b");
  const LayerProfile& layer = p.layer(1);
  EXPECT_EQ(layer.saved.whole, 10.0 * 6144);
  EXPECT_EQ(layer.saved.split, 24.0 * 6144);
  EXPECT_EQ(layer.saved.scores, 5.0 * 64);
}

TEST(Profile, DividesKeysAndValuesByTheirHeadsAtMost) {
  const ModelProfile p = Named("llama-3.1-70b");
  const LayerProfile& layer = p.layer(1);
  int keyed = 0;
  for (const Product& product : layer.products) {
    keyed += product.shard == Product::Shard::kHeads ? 1 : 0;
  }
  EXPECT_EQ(keyed, 2);
  EXPECT_DOUBLE_EQ(layer.states.at(0).share(16), 1.0 / 8);
  const double at8 = ParametersPerDevice(layer, {.tp = 8}).first;
  const double at16 = ParametersPerDevice(layer, {.tp = 16}).first;
  EXPECT_NEAR(at8 / at16, 2, 0.05);
  EXPECT_LT(at8 / at16, 2);
}

TEST(Profile, DeepseekActivates37BillionOf671) {
  const ModelProfile p = Named("deepseek-v3");
  EXPECT_NEAR(p.parameters / 671.026e9, 1, 1e-4);
  EXPECT_NEAR(p.parameters_active / 37.5e9, 1, 0.02);
  EXPECT_EQ(p.layer(20).experts.experts, 256);
  EXPECT_EQ(p.layer(20).experts.inner, 2048);
  EXPECT_EQ(p.layer(20).states.at(0).share(8), 1.0);
}

TEST(Profile, KimiK3Activates104Billion) {
  const ModelProfile p = Named("kimi-k3");
  EXPECT_NEAR(p.parameters / 2.7795e12, 1, 1e-4);
  // The embedding is read, not multiplied: one of its rows.
  EXPECT_NEAR((p.parameters_active - p.layer(0).embedding_parameters) / 104.2e9, 1, 0.003);
}

TEST(Roofline, ExpertsTouchedFollowTheUniformExpectation) {
  EXPECT_NEAR(ExpertsTouched(256, 8, 1), 8, 1e-9);
  EXPECT_NEAR(ExpertsTouched(256, 8, 8), 57, 0.5);
  EXPECT_NEAR(ExpertsTouched(256, 8, 32), 163, 0.5);
  EXPECT_NEAR(ExpertsTouched(256, 8, 128), 252, 0.5);
  EXPECT_EQ(ExpertsTouched(256, 8, 0), 0);
}

// How to Scale Your Model (jax-ml/scaling-book @0819a7d), worked cases: weights as stated there,
// every operation at the bare rates of the data sheet.
struct Book {
  hw::System system;
  hw::Calibration bare;
  LayerProfile layer;

  Book(double parameters, double state_bytes_per_token) {
    system.device.memory_bandwidth = 8.2e11;
    system.device.peak_flops = {{hw::Precision::kBf16, 1.97e14}};  // int8 weights, bf16 products
    system.links.emplace_back();
    bare.matrix_efficiency = hw::Curve(1.0);
    bare.attention_efficiency = 1;
    bare.memory_efficiency = 1;
    bare.activations_through_memory = 0;
    layer.products.push_back({parameters, 1});
    StateWork state;
    state.elements_per_token = state_bytes_per_token / 2;
    state.heads = 1 << 20;
    layer.states.push_back(state);
  }

  double StepMs(double batch, int64_t devices, hw::Precision precision) const {
    const Formats formats{precision, hw::Precision::kBf16};
    const StepShape shape{batch, batch, 0, 8192, 0, true};
    return 1e3 * ForwardTime(layer, shape, {.tp = devices}, formats, {&system, &bare}).busy_s;
  }
};

TEST(Roofline, ReproducesTheScalingBooksDecodeStepsWithin0p3Percent) {
  const Book mha(13e9, 2.0 * 2 * 40 * 5120);
  const Book gqa(13e9, 2.0 * 2 * 40 * 1024);

  const struct {
    const Book& book;
    double batch, ms;
  } cases[] = {{mha, 1, 4.98},   {mha, 8, 12.13},    {mha, 16, 20.3}, {mha, 32, 36.65},
               {mha, 64, 69.33}, {mha, 240, 249.09}, {gqa, 1, 4.17},  {gqa, 8, 5.6},
               {gqa, 64, 17.04}, {gqa, 240, 52.99}};

  for (const auto& c : cases) {
    EXPECT_NEAR(c.book.StepMs(c.batch, 8, hw::Precision::kBf16) / c.ms, 1, 0.003) << c.batch;
  }
}

TEST(Roofline, ReproducesTheScalingBooksInt8StepsAndTheDrainOfFullMemory) {
  const Book int8(30e9, 100e3);
  // Printed with two digits.
  EXPECT_NEAR(int8.StepMs(4, 16, hw::Precision::kInt8), 2.5, 0.05);
  EXPECT_NEAR(int8.StepMs(256, 16, hw::Precision::kInt8), 21, 0.5);
  const hw::Device device = hw::ReadSystem("tpu-v5e").value().device;
  EXPECT_NEAR(device.memory_bytes / device.memory_bandwidth * 1e3, 19, 0.6);
}

TEST(Roofline, ReproducesTheScalingBooksPrefillAndItsThreePrefillServersPerDecodeServer) {
  // 8192 tokens of 70B on 16 devices at 40 % of the peak: 0.91 s. Attention is not counted there.
  Book book(70e9, 0);
  book.layer.states.clear();
  book.bare.matrix_efficiency = hw::Curve(0.4);
  const StepShape prompt{8192, 1, 0, 0, 0, false};
  const double prefill_s =
      ForwardTime(book.layer, prompt, {.tp = 16}, {}, {&book.system, &book.bare}).busy_s;
  EXPECT_NEAR(prefill_s, 0.91, 0.003);
  // While 32 sequences generate 512 tokens at 19 ms a step, as many prompts must be read.
  EXPECT_NEAR(prefill_s * 32 / (512 * 0.019), 3, 0.02);
}

}  // namespace
}  // namespace penstock::cost
