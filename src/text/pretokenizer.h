// Pre-tokenizers of tokenizer files: cut a text into pieces that no token crosses, and write spaces
// or bytes as the vocabulary writes them.
//
// The supported kinds are those of Hugging Face's tokenizers under the same names: ByteLevel,
// Split, Digits, Metaspace, Punctuation, Whitespace, WhitespaceSplit, CharDelimiterSplit,
// BertPreTokenizer, Sequence. Linear in the length of the text for patterns that are. Immutable;
// thread-safe.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/json_reader.h"
#include "base/result.h"

namespace penstock::text {

// [begin, end) of the text. `at_start`: it begins where the whole input begins (Metaspace's
// "first").
struct Piece {
  size_t begin = 0;
  size_t end = 0;
  bool at_start = false;
};

// A well-formed text cut into non-empty pieces in ascending order. Bytes between pieces belong to
// none.
struct Pieces {
  std::string text;
  std::vector<Piece> list;
  // The text continues what an ill-formed byte interrupted: nothing is put in front of the first
  // piece.
  bool continues = false;
  // A tokenizer that makes the text longer than this is an error.
  size_t limit_bytes = size_t{1} << 30;
};

// What becomes of the parts that a pattern matches.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;

  // Errors: a runaway pattern (see Regex::Cover).
  virtual Result<> Apply(Pieces& pieces) const = 0;

  // Whether it writes bytes as letters of the byte alphabet (byte_level.h).
  virtual bool MapsBytes() const { return false; }
};

// From the "pre_tokenizer" member of tokenizer.json; null gives null.
// Errors: kUnsupported naming the kind and listing the supported ones; kInvalidArgument for bad
// members.
Result<std::unique_ptr<PreTokenizer>> MakePreTokenizer(const Json& json, const std::string& where);

// For loaders that have no JSON: cuts by each pattern in turn (every match is a piece of its own),
// then writes bytes as letters. Errors as Regex::Compile.
Result<std::unique_ptr<PreTokenizer>> MakeByteLevelSplits(const std::vector<std::string>& patterns,
                                                          const std::string& source);

// GPT-2's pattern, which ByteLevel uses.
extern const char* const kGpt2Pattern;

}  // namespace penstock::text
