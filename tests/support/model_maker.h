// Makes small Llama folders for tests: random ones, and ones whose answers are known in advance.

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace penstock::testing {

struct PlainTensor {
  std::vector<int64_t> shape;
  std::vector<float> values;  // row-major
};

// By Hugging Face name.
using TensorMap = std::map<std::string, PlainTensor>;

struct LlamaShape {
  int64_t layers = 4;
  int64_t width = 32;
  int64_t heads = 4;
  int64_t kv_heads = 2;
  int64_t ffn = 64;
  int64_t vocabulary = 96;
  int64_t context = 256;
};

// config.json of that shape, untied head.
Json LlamaConfig(const LlamaShape& shape);

// Random weights of that shape; the same for the same seed.
TensorMap RandomLlama(const LlamaShape& shape, uint64_t seed);

// Writes config.json and model.safetensors (float32) into `folder`, which is made.
void WriteModel(const std::string& folder, const Json& config, const TensorMap& tensors);

void WriteText(const std::string& path, std::string_view content);

// ---- A model that plays back text: the next token is a function of the last one. ----

// One token per byte (its value is the id), and these.
inline constexpr int32_t kPlaybackEnd = 256;
inline constexpr int32_t kPlaybackBos = 257;

// Writes the folder, tokenizer and all. After the first byte of `script` comes its second, and so
// on; after its last one the end token. A byte that occurs twice goes on as at its last occurrence,
// so a script whose last byte is an earlier one goes round for ever. `chat_template` stands in
// tokenizer_config.json unless it is empty.
void WritePlayback(const std::string& folder, std::string_view script,
                   const std::string& chat_template = "");

}  // namespace penstock::testing
