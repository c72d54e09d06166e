// How the pre-tokenizers that GGUF files name in tokenizer.ggml.pre cut a text.
//
// The names are llama.cpp's; the patterns are those of the models' own tokenizer.json files.

#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace penstock::text {

struct GgufPre {
  std::string name;
  std::vector<std::string> patterns;  // applied in turn; each match becomes a piece of its own
  bool nfc = false;                   // the tokenizer normalizes to NFC, which GGUF has no key for
  bool whole_pieces = false;          // a piece that is a token is taken whole
  bool add_bos = false;               // where the file does not say
};

// Null for unknown names.
const GgufPre* FindGgufPre(std::string_view name);

// All names, separated by spaces.
std::string GgufPreNames();

}  // namespace penstock::text
