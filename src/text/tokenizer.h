// Text to token ids and back.
//
// A Tokenizer is a value: cheap to copy (copies share one immutable state), const, and safe to use
// from many threads at once. It is read from a Hugging Face tokenizer.json or from the vocabulary
// of a GGUF file; ids are those of Hugging Face's tokenizers for the same tokenizer.
//
// Text that is not UTF-8: each byte that is in no well-formed sequence stands alone, as if an added
// token lay there. It becomes the token of that byte where the vocabulary has one (byte-level
// vocabularies, and <0xNN> of those with byte fallback), else the unknown token; nothing (no space,
// no prefix) is put in front of the text behind it. So Decode(Encode(x)) gives back the bytes of x
// wherever the vocabulary covers them. What it does not cover is dropped, as Hugging Face's
// tokenizers do, but counted (EncodeReport).
//
// The Unicode tables are those of utf8proc and PCRE2 (Unicode 14 and 15 in Debian 12); characters
// that are younger may be cut otherwise than by a reference with younger tables.
//
// Encode costs O(n log n) at most in the length of the text for the patterns of all supported
// families.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_reader.h"
#include "base/result.h"
#include "text/decoder.h"
#include "text/gguf_vocabulary.h"

namespace penstock::text {

// Longest text that Encode takes: 256 MiB.
inline constexpr size_t kMaxTextBytes = size_t{1} << 28;

struct EncodeOptions {
  // BOS, EOS or whatever else the tokenizer puts around a text.
  bool add_special = true;
  // Recognise the text of special tokens; false takes it as plain text. Added tokens that are not
  // special are always recognised.
  bool parse_special = true;
};

struct EncodeReport {
  size_t lost = 0;  // characters (of byte-level vocabularies: bytes) that no token stands for
  size_t ill_formed_bytes = 0;  // bytes that were not UTF-8
  // Steps of the model and of the search for added tokens: merges looked at, bytes looked up. Not
  // those of the patterns. In proportion to the text, whatever stands in it.
  size_t work = 0;
};

class Tokenizer {
 public:
  // `text`: the content of tokenizer.json; `config`: of tokenizer_config.json beside it, or null;
  // `source` names the file in errors. Of the configuration, bos_token, eos_token, unk_token,
  // pad_token, add_bos_token and add_eos_token count; the latter two add what the post-processor
  // lacks, and take nothing away. Errors: kCorruptData, kInvalidArgument;
  // kUnsupported naming the model, pre-tokenizer, normalizer, post-processor or decoder that this
  // build does not know, with those it does.
  static Result<Tokenizer> FromTokenizerJson(std::string_view text, const Json* config,
                                             const std::string& source);

  // Errors: as above; kUnsupported names an unknown `model` or `pre`.
  static Result<Tokenizer> FromGguf(const GgufVocabulary& vocabulary, const std::string& source);

  // Ids of `text` (any bytes). `report` may be null.
  // Errors: kInvalidArgument (text longer than kMaxTextBytes; a pattern of the file that runs
  // away).
  Result<std::vector<int32_t>> Encode(std::string_view text, const EncodeOptions& options = {},
                                      EncodeReport* report = nullptr) const;

  // The exact bytes that the ids stand for. Errors: kInvalidArgument for an id that has no token.
  Result<std::string> DecodeBytes(std::span<const int32_t> ids, bool skip_special) const;
  // As DecodeBytes, with U+FFFD for each maximal ill-formed subpart.
  Result<std::string> Decode(std::span<const int32_t> ids, bool skip_special) const;

  // Pieces of streaming decoding; see detokenizer.h. `id` may be without a token: then nothing is
  // appended.
  DecodeState StartDecoding(bool at_start) const;
  void AppendDecoded(DecodeState& state, int32_t id, std::string& out) const;

  // Text of a token as the vocabulary writes it ("Ġthe", "<0x0A>"); empty for ids without a token.
  std::string_view TokenText(int32_t id) const;
  // The bytes that it stands for in the middle of a text (" the", "\n").
  std::string TokenBytes(int32_t id) const;
  // The id of a token by its vocabulary text.
  std::optional<int32_t> TokenId(std::string_view token_text) const;

  // Highest id plus one. A model's embedding may have more rows.
  int32_t vocabulary_size() const;
  // Whether the token is control text (skipped by Decode with skip_special).
  bool IsSpecial(int32_t id) const;

  std::optional<int32_t> bos_id() const;
  std::optional<int32_t> eos_id() const;
  std::optional<int32_t> unknown_id() const;
  std::optional<int32_t> padding_id() const;
  // Ids that end a turn or a text: eos_id, the file's end-of-turn id, and the special tokens whose
  // names mean it
  // (<|im_end|>, <|eot_id|>, <end_of_turn>, ...). Ascending. generation_config.json may name more:
  // that is for the caller.
  const std::vector<int32_t>& end_ids() const;

  // What add_special puts around a text.
  std::span<const int32_t> prefix_ids() const;
  std::span<const int32_t> suffix_ids() const;
  // Whether prefix_ids() begins with bos_id().
  bool adds_bos() const;

  struct State;

  explicit Tokenizer(std::shared_ptr<const State> state) : state_(std::move(state)) {}

 private:
  std::shared_ptr<const State> state_;
};

}  // namespace penstock::text
