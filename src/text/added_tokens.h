// Added tokens: texts that are found as a whole, before anything else happens to the text.
//
// Semantics of Hugging Face's tokenizers (added_tokens of tokenizer.json): at each place the
// longest one wins, leftmost first. `lstrip`/`rstrip` swallow the white space beside it,
// `single_word` refuses a match that touches a word character, `normalized` ones are looked for in
// the normalized text, the others in the text as it came. Immutable; thread-safe.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/prefix_trie.h"

namespace penstock::text {

struct AddedToken {
  int32_t id = -1;
  std::string text;
  bool special = false;  // control text: skipped on decoding, plain text when special tokens are
                         // not recognised
  bool single_word = false;
  bool lstrip = false;
  bool rstrip = false;
  bool normalized = false;
};

// [begin, end) of the text, and the token there or -1 for text between tokens.
struct AddedSpan {
  size_t begin = 0;
  size_t end = 0;
  int32_t id = -1;
};

class AddedTokenFinder {
 public:
  AddedTokenFinder() = default;
  // `texts[i]` is what to look for in place of tokens[i].text (its normalized form). Empty texts
  // are left out; of equal texts the first counts.
  AddedTokenFinder(std::vector<AddedToken> tokens, const std::vector<std::string>& texts);

  // Appends spans that cover well-formed `text` in order. Where `special` is false, special tokens
  // count as plain text. O(text x longest token), and O(text) for tokens whose first bytes are
  // rare.
  // Gives the bytes that were looked at.
  size_t Find(std::string_view text, bool special, std::vector<AddedSpan>& out) const;

  bool empty() const { return trie_.empty(); }

 private:
  std::vector<AddedToken> tokens_;
  PrefixTrie trie_;
};

}  // namespace penstock::text
