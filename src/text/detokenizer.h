// Streaming decoding: token ids in, whole UTF-8 characters out.
//
// Bytes of an unfinished character are held back until the tokens that complete it have come; what
// can no longer become a character gives U+FFFD at once, one per maximal ill-formed subpart. For
// any cut into calls, the concatenation of all results with that of Finish() is Tokenizer::Decode
// of all ids (for a text at the start).

#pragma once

#include <cstdint>
#include <string>

#include "text/tokenizer.h"

namespace penstock::text {

// Splits bytes that arrive in parts into whole characters.
class Utf8Assembler {
 public:
  // The whole characters of what was held back and `bytes`.
  std::string Add(std::string_view bytes);
  // U+FFFD if an unfinished character was held back, else nothing.
  std::string Finish();

  // At most 3 bytes.
  const std::string& held() const { return held_; }

 private:
  std::string held_;
};

struct DetokenizerOptions {
  bool skip_special = true;
  // The text begins here. False for text that continues a prompt: then a leading space is kept.
  bool at_start = true;
};

// One per sequence; not thread-safe. O(token) per call.
class Detokenizer {
 public:
  Detokenizer(Tokenizer tokenizer, const DetokenizerOptions& options);

  // Whole characters that this id completes; often empty for parts of characters. Ids without a
  // token give nothing.
  std::string Add(int32_t id);
  // What is left at the end of the text.
  std::string Finish();

 private:
  Tokenizer tokenizer_;
  DetokenizerOptions options_;
  DecodeState state_;
  Utf8Assembler assembler_;
};

}  // namespace penstock::text
