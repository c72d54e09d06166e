#include "support/model_maker.h"

#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/json.h"
#include "base/rng.h"

namespace penstock::testing {
namespace {

PlainTensor Zeros(int64_t rows, int64_t columns) {
  return {{rows, columns}, std::vector<float>(static_cast<size_t>(rows * columns), 0.0F)};
}

PlainTensor Ones(int64_t count) {
  return {{count}, std::vector<float>(static_cast<size_t>(count), 1.0F)};
}

PlainTensor Random(int64_t rows, int64_t columns, float scale, uint64_t key) {
  PlainTensor tensor = Zeros(rows, columns);
  for (size_t i = 0; i < tensor.values.size(); i += 2) {
    const auto words = Philox({static_cast<uint32_t>(i), 0, 0, 0}, key);
    const auto pair = NormalPair(words[0], words[1]);
    tensor.values[i] = pair[0] * scale;
    if (i + 1 < tensor.values.size()) {
      tensor.values[i + 1] = pair[1] * scale;
    }
  }
  return tensor;
}

// The letters by which byte-level tokenizers write bytes: printable ones stand for themselves, the
// others for code points from 256 on, in ascending order.
std::vector<std::string> ByteLetters() {
  const auto utf8 = [](uint32_t c) {
    if (c < 0x80) {
      return std::string(1, static_cast<char>(c));
    }
    return std::string{static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 0x3F))};
  };
  std::vector<std::string> letters;
  uint32_t next = 256;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool plain = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    letters.push_back(utf8(plain ? byte : next++));
  }
  return letters;
}

Json PlaybackTokenizer() {
  Json vocabulary = Json::object();
  const std::vector<std::string> letters = ByteLetters();
  for (size_t byte = 0; byte < letters.size(); ++byte) {
    vocabulary[letters[byte]] = byte;
  }
  Json added = Json::array();
  for (const auto& [id, text] : {std::pair(kPlaybackEnd, "<|end|>"), {kPlaybackBos, "<|bos|>"}}) {
    vocabulary[text] = id;
    added.push_back({{"id", id},
                     {"content", text},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  const Json bytes = {{"type", "ByteLevel"},
                      {"add_prefix_space", false},
                      {"trim_offsets", true},
                      {"use_regex", true}};
  return {{"version", "1.0"},
          {"added_tokens", added},
          {"normalizer", nullptr},
          {"pre_tokenizer", bytes},
          {"post_processor", nullptr},
          {"decoder", bytes},
          {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", Json::array()}}}};
}

}  // namespace

Json LlamaConfig(const LlamaShape& shape) {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"hidden_size", shape.width},
          {"intermediate_size", shape.ffn},
          {"num_hidden_layers", shape.layers},
          {"num_attention_heads", shape.heads},
          {"num_key_value_heads", shape.kv_heads},
          {"vocab_size", shape.vocabulary},
          {"max_position_embeddings", shape.context},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 10000.0},
          {"tie_word_embeddings", false},
          {"hidden_act", "silu"},
          {"torch_dtype", "float32"}};
}

TensorMap RandomLlama(const LlamaShape& shape, uint64_t seed) {
  uint64_t key = seed;
  const auto matrix = [&key](int64_t rows, int64_t columns, float scale) {
    return Random(rows, columns, scale, ++key);
  };
  const int64_t kv = shape.width / shape.heads * shape.kv_heads;
  TensorMap tensors;
  tensors["model.embed_tokens.weight"] = matrix(shape.vocabulary, shape.width, 1.0F);
  tensors["model.norm.weight"] = Ones(shape.width);
  tensors["lm_head.weight"] = matrix(shape.vocabulary, shape.width, 0.5F);
  for (int64_t layer = 0; layer < shape.layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    const std::string attention = prefix + "self_attn.";
    tensors[attention + "q_proj.weight"] = matrix(shape.width, shape.width, 0.3F);
    tensors[attention + "k_proj.weight"] = matrix(kv, shape.width, 0.3F);
    tensors[attention + "v_proj.weight"] = matrix(kv, shape.width, 0.3F);
    tensors[attention + "o_proj.weight"] = matrix(shape.width, shape.width, 0.3F);
    tensors[prefix + "mlp.gate_proj.weight"] = matrix(shape.ffn, shape.width, 0.3F);
    tensors[prefix + "mlp.up_proj.weight"] = matrix(shape.ffn, shape.width, 0.3F);
    tensors[prefix + "mlp.down_proj.weight"] = matrix(shape.width, shape.ffn, 0.3F);
    tensors[prefix + "input_layernorm.weight"] = Ones(shape.width);
    tensors[prefix + "post_attention_layernorm.weight"] = Ones(shape.width);
  }
  return tensors;
}

void WriteText(const std::string& path, std::string_view content) {
  std::ofstream(path, std::ios::binary) << content;
}

void WriteModel(const std::string& folder, const Json& config, const TensorMap& tensors) {
  std::filesystem::create_directories(folder);
  WriteText(folder + "/config.json", config.dump());
  Json header = Json::object();
  std::string body;
  for (const auto& [name, tensor] : tensors) {
    const size_t start = body.size();
    body.append(reinterpret_cast<const char*>(tensor.values.data()),
                tensor.values.size() * sizeof(float));
    header[name] = {
        {"dtype", "F32"}, {"shape", tensor.shape}, {"data_offsets", {start, body.size()}}};
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t size = text.size();
  std::string length(sizeof size, '\0');
  std::memcpy(length.data(), &size, sizeof size);
  WriteText(folder + "/model.safetensors", length + text + body);
}

void WritePlayback(const std::string& folder, std::string_view script,
                   const std::string& chat_template) {
  // The last token's one-hot vector passes all layers unchanged (their outputs are zero); the head
  // has a one where the next token is.
  LlamaShape shape;
  shape.width = 288;
  shape.vocabulary = 288;
  shape.context = 512;
  TensorMap tensors = RandomLlama(shape, 1);
  PlainTensor identity = Zeros(shape.vocabulary, shape.width);
  std::vector<int64_t> next(static_cast<size_t>(shape.vocabulary), kPlaybackEnd);
  for (size_t i = 0; i + 1 < script.size(); ++i) {
    next[static_cast<uint8_t>(script[i])] = static_cast<uint8_t>(script[i + 1]);
  }
  PlainTensor head = Zeros(shape.vocabulary, shape.width);
  for (int64_t token = 0; token < shape.vocabulary; ++token) {
    identity.values[static_cast<size_t>(token * shape.width + token)] = 1.0F;
    head.values[static_cast<size_t>(next[static_cast<size_t>(token)] * shape.width + token)] = 1.0F;
  }
  tensors["model.embed_tokens.weight"] = identity;
  tensors["lm_head.weight"] = head;
  for (auto& [name, tensor] : tensors) {
    if (name.ends_with("o_proj.weight") || name.ends_with("down_proj.weight")) {
      tensor.values.assign(tensor.values.size(), 0.0F);
    }
  }
  Json config = LlamaConfig(shape);
  config["bos_token_id"] = kPlaybackBos;
  config["eos_token_id"] = kPlaybackEnd;
  WriteModel(folder, config, tensors);
  WriteText(folder + "/tokenizer.json", PlaybackTokenizer().dump());
  Json settings = {{"add_bos_token", false},
                   {"bos_token", "<|bos|>"},
                   {"eos_token", "<|end|>"},
                   {"tokenizer_class", "PreTrainedTokenizerFast"}};
  if (!chat_template.empty()) {
    settings["chat_template"] = chat_template;
  }
  WriteText(folder + "/tokenizer_config.json", settings.dump());
}

}  // namespace penstock::testing
