// The unigram model (Kudo 2018): of all ways to cut a piece into tokens, the one with the highest
// sum of scores (Viterbi). O(n x longest token). Ties go to the cut that was found first, scanning
// left to right and short tokens before long ones.
//
// A character that no token covers alone costs the lowest score minus 10, as in SentencePiece; runs
// of such characters give one unknown token, or byte tokens <0xNN> with `byte_fallback` where all
// of their bytes have one.

#pragma once

#include <memory>
#include <vector>

#include "text/model.h"

namespace penstock::text {

// `scores[id]` finite for every id; `usable[id]` is false for tokens that text must not produce
// (GGUF's control tokens). `vocabulary` must outlive the model. `unknown_id` -1: uncovered text is
// dropped (or becomes byte tokens). REQUIRES: both lists are as long as vocabulary.size().
std::unique_ptr<Model> MakeUnigram(const Vocabulary& vocabulary, std::vector<double> scores,
                                   const std::vector<bool>& usable, int32_t unknown_id,
                                   bool byte_fallback);

}  // namespace penstock::text
