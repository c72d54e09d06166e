// SentencePiece's BPE: neighbouring pieces are joined whenever the result is a token, the one with
// the highest score first, leftmost first among equals. GGUF files of the kind "llama" hold scores
// instead of merges. O(n log n).
//
// Source of the rules: Kudo and Richardson 2018 (SentencePiece), bpe model. What no token covers
// becomes byte tokens <0xNN> where all of its bytes have one, otherwise the unknown token.

#pragma once

#include <memory>
#include <vector>

#include "text/model.h"

namespace penstock::text {

// `scores[id]` finite for every id of the vocabulary; `mergeable[id]` is false for tokens that must
// not arise from merging (control, unknown and byte tokens). `vocabulary` must outlive the model.
// `unknown_id` -1: such text is dropped. REQUIRES: both lists are as long as vocabulary.size().
std::unique_ptr<Model> MakeScoreBpe(const Vocabulary& vocabulary, std::vector<float> scores,
                                    std::vector<bool> mergeable, int32_t unknown_id);

}  // namespace penstock::text
