// The tokenizer.ggml.* fields of a GGUF file as plain data. What they mean is decided in text/.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "weights/gguf.h"

namespace penstock::weights {

struct GgufTokenizerData {
  std::string
      model;  // "gpt2" (byte-level BPE), "llama" (SentencePiece-style BPE), "t5" (unigram), ...
  std::string pre;           // name of the pre-tokenizer; empty when absent
  std::string architecture;  // general.architecture: decides what absent fields mean
  std::vector<std::string> tokens;
  std::vector<float> scores;   // empty, or one per token
  std::vector<int32_t> types;  // empty, or one per token: 1 normal, 2 unknown, 3 control, 4
                               // user-defined, 5 unused, 6 byte
  std::vector<std::string> merges;
  std::optional<int32_t> bos_id, eos_id, eot_id, eom_id, unknown_id, separator_id, padding_id,
      mask_id;
  std::optional<bool> add_bos, add_eos, add_space_prefix, remove_extra_whitespaces;
  std::string precompiled_charsmap;  // bytes; empty when absent
  std::string chat_template;         // tokenizer.chat_template; empty when absent
  std::vector<std::pair<std::string, std::string>>
      named_chat_templates;  // tokenizer.chat_template.NAME
};

// Errors: kUnsupported (no vocabulary), kCorruptData naming the key (counts that disagree, ids
// outside the vocabulary). Cost: copies the vocabulary.
Result<GgufTokenizerData> ReadGgufTokenizer(const GgufMetadata& metadata);

}  // namespace penstock::weights
