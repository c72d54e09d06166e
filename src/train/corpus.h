// The training text as token ids: read, checked and tokenized once, then mapped from a cache file.
//
// A document is a text file, or one line of a JSONL file. Its tokens are what the tokenizer puts
// around a text, the text itself (special tokens are recognised), and the end-of-text token. Each
// token has a mark that says whether it counts as a target: all of a text, of a conversation the
// assistant's answers with the token that ends the turn.

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/result.h"
#include "train/config.h"
#include "train/tokenizer_source.h"

namespace penstock::train {

// Documents lie one after the other: tokens [starts[d], starts[d + 1]). Immutable, thread-safe.
class Corpus {
 public:
  std::span<const int32_t> tokens() const { return tokens_; }

  std::span<const uint8_t> counts() const { return counts_; }  // one per token, 0 or 1

  std::span<const int64_t> starts() const { return starts_; }  // documents + 1

  int64_t documents() const { return static_cast<int64_t>(starts_.size()) - 1; }

  // Digest of everything that the ids depend on.
  const std::string& key() const { return key_; }

  // Whether it came out of the cache.
  bool cached() const { return cached_; }

 private:
  friend class CorpusFile;
  std::string key_;
  bool cached_ = false;
  std::shared_ptr<const MappedFile> map_;
  std::vector<std::byte> memory_;  // instead of the map, where no cache can be written
  std::span<const int64_t> starts_;
  std::span<const int32_t> tokens_;
  std::span<const uint8_t> counts_;
};

// Where token caches lie: $PENSTOCK_CACHE, $XDG_CACHE_HOME/penstock or ~/.cache/penstock, in
// "tokens"; empty where there is no home.
std::string TokenCacheFolder();

// Reads the files of `data`, or the cache made from the same bytes with the same tokenizer. A cache
// that is damaged is made again; where it cannot be written the tokens stay in memory. Errors:
// kInvalidArgument naming file, line and column: text that is not UTF-8, a line that is not JSON or
// lacks its key, a conversation that the template refuses; nothing but empty documents.
Result<Corpus> OpenCorpus(const DataSection& data, const LoadedTokenizer& tokenizer,
                          const std::string& tokenizer_digest, const std::string& cache_folder);

// Ids of one conversation and which of them count.
struct CountedIds {
  std::vector<int32_t> ids;
  std::vector<uint8_t> counts;
};

// Each answer is encoded behind the prompt that the model would see (so ids are those of
// generation), the token that ends the turn counts, what the template prints behind it does not.
// Errors: those of RenderChat; kUnsupported for a template that prints earlier turns otherwise
// later.
Result<CountedIds> EncodeAnswers(const text::ChatTemplate& chat_template,
                                 const text::Tokenizer& tokenizer,
                                 const std::vector<text::ChatMessage>& messages);

}  // namespace penstock::train
