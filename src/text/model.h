// What turns one piece of text into token ids. A piece is what the pre-tokenizer cut out; no token
// crosses two pieces.
//
// Models are immutable after construction and thread-safe; they hold a reference to the vocabulary
// that made them.

#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "text/merge_queue.h"
#include "text/vocabulary.h"

namespace penstock::text {

// Working memory of one encoding, reused from piece to piece. One per thread.
struct ModelScratch {
  struct Symbol {
    int32_t id = -1;
    int32_t previous = -1;
    int32_t next = -1;
    uint32_t begin = 0;   // ScoreBpe: its text in the piece
    uint32_t length = 0;  // 0: merged into its left neighbour
  };

  struct Node {
    double score = 0;
    int32_t id = -1;
    int64_t begin = -1;
  };

  std::vector<Symbol> symbols;
  MergeQueue queue;
  std::vector<Node> nodes;
  size_t work = 0;  // steps so far (EncodeReport)
};

class Model {
 public:
  virtual ~Model() = default;

  // Appends the ids of `piece` (well-formed UTF-8, not empty). Characters that the vocabulary
  // cannot express are dropped and counted in `lost`, as Hugging Face's tokenizers drop them.
  virtual void Encode(std::string_view piece, ModelScratch& scratch, std::vector<int32_t>& ids,
                      size_t& lost) const = 0;
};

}  // namespace penstock::text
