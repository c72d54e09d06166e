// Fuzzes the loader of tokenizer.json and the encoder behind it.
//
// Input: a tokenizer.json, a zero byte, a text. Whatever they are: no crash, no runaway memory; ids
// exist; decoding what was encoded works, and streaming it gives the same text.

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "text/detokenizer.h"
#include "text/jinja_text.h"
#include "text/tokenizer.h"

namespace {

void Require(bool condition) {
  if (!condition) {
    std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace text = penstock::text;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t zero = input.find('\0');
  const std::string_view file = input.substr(0, zero);
  const std::string_view sample = zero == std::string_view::npos
                                      ? std::string_view("ab <s> 1\xFFz\u00e9")
                                      : input.substr(zero + 1);
  (void)text::CanonicalTemplate(sample);
  const auto tokenizer = text::Tokenizer::FromTokenizerJson(file, nullptr, "fuzz");
  if (!tokenizer.ok()) {
    Require(!tokenizer.error().message.empty());
    return 0;
  }
  text::EncodeReport report;
  const auto ids = tokenizer.value().Encode(sample, {}, &report);
  if (!ids.ok()) {
    return 0;
  }
  text::Detokenizer detokenizer(tokenizer.value(), {.skip_special = false});
  std::string streamed;
  for (const int32_t id : ids.value()) {
    Require(id >= 0 && id < tokenizer.value().vocabulary_size());
    streamed += detokenizer.Add(id);
  }
  streamed += detokenizer.Finish();
  const auto decoded = tokenizer.value().Decode(ids.value(), false);
  Require(decoded.ok() && decoded.value() == streamed);
  return 0;
}
