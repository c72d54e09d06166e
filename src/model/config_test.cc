#include "model/config.h"

#include <gtest/gtest.h>

namespace penstock::model {
namespace {

int64_t Parameters(const Graph& graph) {
  int64_t sum = 0;
  for (const WeightTensor& tensor : graph.tensors) {
    int64_t elements = 1;
    for (const int64_t size : tensor.shape) {
      elements *= size;
    }
    sum += elements;
  }
  return sum;
}

Json Parse(const char* text) {
  return ParseJson(text, "test").value();
}

struct KnownModel {
  const char* name;
  const char* config;
  int64_t parameters;
  int64_t context;
};

// Keys that matter of published config.json files; parameter counts as the model cards or the
// safetensors indices give them.
const KnownModel kKnown[] = {
    {"Llama-3.1-8B",
     R"({"model_type":"llama","hidden_size":4096,"intermediate_size":14336,"num_hidden_layers":32,
      "num_attention_heads":32,"num_key_value_heads":8,"vocab_size":128256,
      "max_position_embeddings":131072,"rms_norm_eps":1e-05,"rope_theta":500000.0,
      "rope_scaling":{"factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,
      "original_max_position_embeddings":8192,"rope_type":"llama3"},"tie_word_embeddings":false,
      "hidden_act":"silu","attention_bias":false,"mlp_bias":false,"bos_token_id":128000,
      "eos_token_id":[128001,128008,128009],"torch_dtype":"bfloat16"})",
     8030261248, 131072},
    {"SmolLM2-135M",
     R"({"model_type":"llama","hidden_size":576,"intermediate_size":1536,"num_hidden_layers":30,
      "num_attention_heads":9,"num_key_value_heads":3,"vocab_size":49152,
      "max_position_embeddings":8192,"rms_norm_eps":1e-05,"rope_theta":100000,"rope_scaling":null,
      "tie_word_embeddings":true,"hidden_act":"silu","bos_token_id":1,"eos_token_id":2})",
     134515008, 8192},
    {"Mistral-7B-v0.1",
     R"({"model_type":"mistral","hidden_size":4096,"intermediate_size":14336,"num_hidden_layers":32,
      "num_attention_heads":32,"num_key_value_heads":8,"vocab_size":32000,
      "max_position_embeddings":32768,"rms_norm_eps":1e-05,"rope_theta":10000.0,
      "sliding_window":4096,"tie_word_embeddings":false,"hidden_act":"silu"})",
     7241732096, 32768},
};

TEST(Config, ParametersOfPublishedModelsAreCountedExactly) {
  for (const KnownModel& known : kKnown) {
    const auto model = BuildModel(Parse(known.config), known.name);
    ASSERT_TRUE(model.ok()) << model.error().message;
    EXPECT_EQ(Parameters(model->graph), known.parameters) << known.name;
    EXPECT_EQ(model->config.context, known.context) << known.name;
    EXPECT_EQ(model->graph.num_layers(), model->config.layers + 2) << known.name;
  }
}

}  // namespace
}  // namespace penstock::model
