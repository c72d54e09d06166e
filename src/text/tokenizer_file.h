// Reading tokenizer.json without a detour: the vocabulary and the merges go into flat lists while
// the file is parsed, the rest into a Json. (A vocabulary as a Json object would be a list with
// 100,000 members, searched for each new one.)

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace penstock::text {

struct TokenizerFile {  // NOLINT(bugprone-exception-escape): Json's move is noexcept in name only
  Json rest;            // without model.vocab and model.merges
  // model.vocab as an object (BPE): text -> id, or as a list (unigram): text and score, its index
  // the id.
  std::vector<std::pair<std::string, int32_t>> vocabulary;
  std::vector<double> scores;
  bool vocabulary_is_list = false;
  std::vector<std::pair<std::string, std::string>> merges;
};

// Errors: kCorruptData naming `source`: no JSON, nested too deep, a vocabulary or merge of another
// shape.
Result<TokenizerFile> ParseTokenizerFile(std::string_view text, const std::string& source);

}  // namespace penstock::text
