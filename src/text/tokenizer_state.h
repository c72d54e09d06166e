// The parts of a Tokenizer. For the loaders of this folder only.

#pragma once

#include <array>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "text/added_tokens.h"
#include "text/model.h"
#include "text/normalizer.h"
#include "text/pretokenizer.h"
#include "text/tokenizer.h"
#include "text/vocabulary.h"

namespace penstock::text {

struct Tokenizer::State {
  State() { byte_ids.fill(-1); }

  Vocabulary vocabulary;  // with the added tokens
  std::unique_ptr<Model> model;
  std::unique_ptr<Normalizer> normalizer;      // may be null
  std::unique_ptr<PreTokenizer> pretokenizer;  // may be null
  Decoder decoder;

  AddedTokenFinder raw_tokens;         // looked for in the text as it came
  AddedTokenFinder normalized_tokens;  // looked for in the normalized text
  std::vector<bool> is_special;        // per id
  std::vector<bool> is_added;          // per id
  // Normalized tokens are decoded to what was found in the text: their normalized form, where that
  // differs.
  std::unordered_map<int32_t, std::string> decoded_texts;

  std::array<int32_t, 256> byte_ids{};  // the token of a byte that is not UTF-8, or -1

  std::optional<int32_t> bos_id;
  std::optional<int32_t> eos_id;
  std::optional<int32_t> unknown_id;
  std::optional<int32_t> padding_id;
  // What the model gives for text that it cannot cut; -1: dropped.
  int32_t model_unknown_id = -1;
  std::vector<int32_t> end_ids;
  std::vector<int32_t> prefix_ids;
  std::vector<int32_t> suffix_ids;
};

// The last steps of every loader: fills raw_tokens, normalized_tokens, is_special and is_added from
// `added`, byte_ids from the vocabulary, and end_ids from eos_id, `more_end_ids` and the names of
// special tokens. Errors: a runaway pattern of the normalizer.
Result<> FinishState(Tokenizer::State& state, std::vector<AddedToken> added, bool byte_level,
                     const std::vector<int32_t>& more_end_ids);

}  // namespace penstock::text
