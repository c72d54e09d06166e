// Byte pair encoding by an ordered list of merges: characters are joined pair by pair, the earliest
// merge in the list first, leftmost first among equals. O(n log n) in the length of a piece.
//
// Serves byte-level vocabularies (the pre-tokenizer maps bytes to letters first) and
// SentencePiece-like ones in tokenizer.json (characters missing from the vocabulary become byte
// tokens). Source of the rules: Sennrich et al. 2016; the ids are those of Hugging Face's
// tokenizers for the same file.

#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/model.h"

namespace penstock::text {

struct BpeOptions {
  int32_t unknown_id = -1;    // for characters without a token; -1: they are dropped
  bool fuse_unknown = false;  // a run of unknown characters gives one unknown token
  bool byte_fallback =
      false;  // such characters become the tokens <0xNN> of their bytes, where all of them exist
  bool whole_pieces = false;  // a piece that is a token is taken whole ("ignore_merges")
};

// `merges` are pairs of token texts, in order. A pair listed twice counts at its last place.
// Errors (kCorruptData, naming `source` and the merge): an empty part, a part or a result that is
// no token. `vocabulary` must outlive the model.
Result<std::unique_ptr<Model>> MakeBpe(
    const Vocabulary& vocabulary, const std::vector<std::pair<std::string, std::string>>& merges,
    const BpeOptions& options, const std::string& source);

}  // namespace penstock::text
