// Normalizers of tokenizer files: text to text, before it is cut into pieces.
//
// The supported kinds are those of Hugging Face's tokenizers under the same names: NFC, NFD, NFKC,
// NFKD, Lowercase, Strip, StripAccents, Prepend, Replace, Precompiled, Sequence. Each is linear in
// the length of the text (n log n in the length of a run of combining marks). Immutable;
// thread-safe. Unicode data: utf8proc's.

#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_reader.h"
#include "base/result.h"

namespace penstock::text {

// What a normalizer may need to know of where its text lies.
struct TextPlace {
  // The text continues what an ill-formed byte interrupted: nothing is put in front of it.
  bool continues = false;
  // Replacements that would make the text longer than this are an error.
  size_t limit_bytes = size_t{1} << 30;
};

class Normalizer {
 public:
  virtual ~Normalizer() = default;

  // `text` is well-formed before and after. Errors: a runaway pattern (see Regex::Cover).
  virtual Result<> Apply(std::string& text, const TextPlace& place) const = 0;

  // Whether it may take characters off the start.
  virtual bool StripsStart() const { return false; }
};

// From the "normalizer" member of tokenizer.json; null gives null.
// Errors: kUnsupported naming the kind and listing the supported ones; kInvalidArgument for bad
// members.
Result<std::unique_ptr<Normalizer>> MakeNormalizer(const Json& json, const std::string& where);

// For loaders that have no JSON.
std::unique_ptr<Normalizer> MakeNfc();
// Removes spaces (U+0020) at both ends and all but one of each run, as SentencePiece's
// remove_extra_whitespaces does.
std::unique_ptr<Normalizer> MakeCollapseSpaces();
std::unique_ptr<Normalizer> MakeReplace(std::string from, std::string to);
std::unique_ptr<Normalizer> MakePrepend(std::string prefix);
std::unique_ptr<Normalizer> MakeSequence(std::vector<std::unique_ptr<Normalizer>> parts);

}  // namespace penstock::text
