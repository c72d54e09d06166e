// SentencePiece's precompiled character map: a double-array trie of UTF-8 prefixes and the texts
// that replace them.
//
// Format (SentencePiece, normalizer.cc): u32 little-endian size of the trie in bytes; the trie
// (darts-clone units, u32 little-endian); the replacements, each ended by a zero byte, addressed by
// offset. Every access is bounds-checked.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/normalizer.h"

namespace penstock::text {

// How prefixes are chosen.
enum class CharsmapRule {
  kLongestPrefix,  // SentencePiece: the longest prefix that the map knows
  kGraphemes,      // Hugging Face's tokenizers: short grapheme clusters whole, else character by
                   // character
};

// Errors: kCorruptData naming `source`.
Result<std::unique_ptr<Normalizer>> MakeCharsmap(std::string_view bytes, CharsmapRule rule,
                                                 const std::string& source);

// Standard base64 with padding. Errors: kCorruptData.
Result<std::string> DecodeBase64(std::string_view text, const std::string& source);

}  // namespace penstock::text
