// Decoders of tokenizer files: token texts back to bytes, one token at a time.
//
// The supported kinds are those of Hugging Face's tokenizers under the same names: ByteLevel,
// ByteFallback, Fuse, Replace, Strip, Metaspace, Sequence. They are compiled to a list of steps
// that run per token with a small state, so that a stream and a whole text are decoded by the same
// code. Unlike there, the result is bytes: what is not UTF-8 is left for the caller. Immutable;
// thread-safe.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_reader.h"
#include "base/result.h"

namespace penstock::text {

// Where one text stands. A fresh one per text.
struct DecodeState {
  bool first_token = true;  // no token yet
  std::vector<uint32_t>
      strip_left;  // what each step that strips the start of the whole text may still strip
};

class Decoder {
 public:
  // Null JSON: tokens are joined by spaces, as Hugging Face's tokenizers do.
  // Errors: kUnsupported naming the kind and listing the supported ones; kInvalidArgument for bad
  // members.
  static Result<Decoder> Make(const Json& json, const std::string& where);
  // Bytes as letters of the byte alphabet.
  static Decoder ByteLevel();
  // Byte tokens <0xNN>, and U+2581 for a space; one space at the very start is dropped where
  // `strip_first_space`.
  static Decoder SentencePiece(bool strip_first_space);

  // For a text that does not continue another one, `at_start` true; otherwise nothing is stripped
  // at its start.
  DecodeState Start(bool at_start) const;

  // Appends the bytes of one token. `literal`: an added token's text, which no step that maps
  // letters or bytes touches.
  void Append(DecodeState& state, std::string_view token, bool literal, std::string& out) const;

 private:
  enum class Kind {
    kByteLevel,
    kByteFallback,
    kReplace,
    kStripToken,
    kStripText,
    kMetaspace,
    kJoin
  };

  struct Step {
    Kind kind = Kind::kJoin;
    std::string from;
    std::string to;
    uint32_t start = 0;  // characters to strip
    uint32_t stop = 0;
    bool drop_first = false;  // Metaspace: the first token loses its replacement characters
  };

  Result<> AddSteps(const Json& json, const std::string& where, int depth);
  Result<> AddStrip(const JsonReader& reader);
  Result<> AddReplace(const JsonReader& reader);
  static void Apply(const Step& step, uint32_t* strip_left, bool first_token, bool literal,
                    std::string& text);

  std::vector<Step> steps_;
  bool fused_ = false;
};

}  // namespace penstock::text
