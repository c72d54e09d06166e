// What a GGUF file says about its tokenizer (the keys tokenizer.ggml.*), as plain data. The reader
// of the file fills it.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace penstock::text {

// Values of tokenizer.ggml.token_type.
enum class GgufTokenType : int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

struct GgufVocabulary {
  std::string architecture;  // general.architecture
  std::string model;         // tokenizer.ggml.model: "gpt2", "llama" or "t5"
  std::string pre;           // tokenizer.ggml.pre; only "gpt2" needs it
  std::vector<std::string> tokens;
  std::vector<float> scores;         // "llama" and "t5"; as many as tokens
  std::vector<int32_t> token_types;  // GgufTokenType; empty: all normal
  std::vector<std::string> merges;   // "gpt2": two token texts with a space between

  std::optional<int32_t> bos_id;
  std::optional<int32_t> eos_id;
  std::optional<int32_t> unknown_id;
  std::optional<int32_t> padding_id;
  std::optional<int32_t> eot_id;  // end of a turn
  std::optional<int32_t> eom_id;  // end of a message that a tool answers

  // Absent: the family decides (SentencePiece and Llama 3 vocabularies begin texts with BOS, t5
  // ends them with EOS).
  std::optional<bool> add_bos;
  std::optional<bool> add_eos;
  std::optional<bool> add_space_prefix;          // absent: true
  std::optional<bool> remove_extra_whitespaces;  // "t5"; absent: false
  std::string precompiled_charsmap;              // bytes; empty: none
};

}  // namespace penstock::text
