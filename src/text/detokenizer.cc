#include "text/detokenizer.h"

#include "text/utf8.h"

namespace penstock::text {

std::string Utf8Assembler::Add(std::string_view bytes) {
  const std::string all = held_ + std::string(bytes);
  held_.clear();
  std::string out;
  for (size_t at = 0; at < all.size();) {
    const size_t bad = FindIllFormed(all, at);
    out.append(all, at, bad - at);
    at = bad;
    if (at == all.size()) {
      break;
    }
    bool incomplete = false;
    const size_t length = IllFormedLength(std::string_view(all).substr(at), &incomplete);
    if (incomplete) {
      held_ = all.substr(at);
      break;
    }
    out += "\xEF\xBF\xBD";
    at += length;
  }
  return out;
}

std::string Utf8Assembler::Finish() {
  const bool unfinished = !held_.empty();
  held_.clear();
  return unfinished ? "\xEF\xBF\xBD" : "";
}

Detokenizer::Detokenizer(Tokenizer tokenizer, const DetokenizerOptions& options)
    : tokenizer_(std::move(tokenizer)),
      options_(options),
      state_(tokenizer_.StartDecoding(options.at_start)) {}

std::string Detokenizer::Add(int32_t id) {
  if (options_.skip_special && tokenizer_.IsSpecial(id)) {
    return {};
  }
  std::string bytes;
  tokenizer_.AppendDecoded(state_, id, bytes);
  return assembler_.Add(bytes);
}

std::string Detokenizer::Finish() {
  return assembler_.Finish();
}

}  // namespace penstock::text
