// The pieces of a vocabulary: text by id and id by text.
//
// Texts are copied into one buffer; lookups by text go through a flat hash table that is built
// once. Ids need not be contiguous, but stay below kMaxTokens. Immutable after Build; then
// thread-safe.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace penstock::text {

// Larger ids are refused, so that no file makes us allocate a table on its word alone.
inline constexpr int32_t kMaxTokens = 1 << 22;
// Longer tokens are refused: at each place of a text the search goes as far as the longest one.
inline constexpr size_t kMaxTokenBytes = 4096;

// Name given to a byte by vocabularies with byte fallback: "<0x0A>".
std::string ByteTokenName(uint8_t byte);
// The byte that such a name stands for, or -1.
int ByteOfTokenName(std::string_view name);

class Vocabulary {
 public:
  Vocabulary() = default;

  // Errors (kCorruptData, naming `source`): an id out of range, a text longer than kMaxTokenBytes,
  // two texts of one id, one text with
  // two ids.
  static Result<Vocabulary> Build(const std::vector<std::pair<std::string, int32_t>>& tokens,
                                  const std::string& source);

  // -1 where the text is no token. O(length).
  int32_t Find(std::string_view text) const;
  // Empty for ids without a token.
  std::string_view Text(int32_t id) const;
  bool Has(int32_t id) const;

  // Highest id plus one; the number of tokens; the longest text in bytes.
  int32_t size() const { return static_cast<int32_t>(spans_.size()); }

  size_t token_count() const { return count_; }

  size_t longest_bytes() const { return longest_; }

 private:
  struct Span {
    uint32_t offset = 0;
    uint32_t length = UINT32_MAX;  // UINT32_MAX: no token
  };

  std::string texts_;
  std::vector<Span> spans_;
  std::vector<int32_t> table_;  // open addressing, -1 is free; size is a power of two
  size_t count_ = 0;
  size_t longest_ = 0;
};

}  // namespace penstock::text
