#include "text/vocabulary.h"

#include <algorithm>
#include <bit>
#include <functional>

namespace penstock::text {

std::string ByteTokenName(uint8_t byte) {
  return fmt::format("<0x{:02X}>", byte);
}

int ByteOfTokenName(std::string_view name) {
  if (name.size() != 6 || name.substr(0, 3) != "<0x" || name[5] != '>') {
    return -1;
  }
  int byte = 0;
  for (const char c : name.substr(3, 2)) {
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                             : -1;
    if (digit < 0) {
      return -1;
    }
    byte = byte * 16 + digit;
  }
  return byte;
}

Result<Vocabulary> Vocabulary::Build(const std::vector<std::pair<std::string, int32_t>>& tokens,
                                     const std::string& source) {
  Vocabulary vocabulary;
  int32_t highest = -1;
  size_t bytes = 0;
  for (const auto& [text, id] : tokens) {
    if (id < 0 || id >= kMaxTokens) {
      return MakeError(ErrorCode::kCorruptData,
                       "[text.vocabulary] {}: token \"{}\" has id {}, wanted 0 to {}", source, text,
                       id, kMaxTokens - 1);
    }
    if (text.size() > kMaxTokenBytes) {
      return MakeError(ErrorCode::kCorruptData,
                       "[text.vocabulary] {}: token {} has {} bytes, wanted up to {}", source, id,
                       text.size(), kMaxTokenBytes);
    }
    highest = std::max(highest, id);
    bytes += text.size();
  }
  if (bytes >= UINT32_MAX) {
    return MakeError(ErrorCode::kCorruptData,
                     "[text.vocabulary] {}: the tokens' texts take {} bytes, wanted under 4 GiB",
                     source, bytes);
  }
  vocabulary.spans_.resize(static_cast<size_t>(highest) + 1);
  vocabulary.texts_.reserve(bytes);
  for (const auto& [text, id] : tokens) {
    Span& span = vocabulary.spans_[id];
    if (span.length != UINT32_MAX) {
      return MakeError(ErrorCode::kCorruptData,
                       "[text.vocabulary] {}: \"{}\" and \"{}\" both have id {}, wanted one token "
                       "per id",
                       source, vocabulary.Text(id), text, id);
    }
    span = {static_cast<uint32_t>(vocabulary.texts_.size()), static_cast<uint32_t>(text.size())};
    vocabulary.texts_ += text;
    vocabulary.longest_ = std::max(vocabulary.longest_, text.size());
    ++vocabulary.count_;
  }
  vocabulary.table_.assign(std::bit_ceil(2 * vocabulary.count_ + 2), -1);
  const size_t mask = vocabulary.table_.size() - 1;
  for (const auto& [text, id] : tokens) {
    size_t slot = std::hash<std::string_view>{}(text)&mask;
    for (; vocabulary.table_[slot] >= 0; slot = (slot + 1) & mask) {
      if (vocabulary.Text(vocabulary.table_[slot]) == text) {
        return MakeError(ErrorCode::kCorruptData,
                         "[text.vocabulary] {}: token \"{}\" has ids {} and {}, wanted one", source,
                         text, vocabulary.table_[slot], id);
      }
    }
    vocabulary.table_[slot] = id;
  }
  return vocabulary;
}

int32_t Vocabulary::Find(std::string_view text) const {
  if (table_.empty() || text.size() > longest_) {
    return -1;
  }
  const size_t mask = table_.size() - 1;
  for (size_t slot = std::hash<std::string_view>{}(text)&mask; table_[slot] >= 0;
       slot = (slot + 1) & mask) {
    if (Text(table_[slot]) == text) {
      return table_[slot];
    }
  }
  return -1;
}

std::string_view Vocabulary::Text(int32_t id) const {
  if (!Has(id)) {
    return {};
  }
  return std::string_view(texts_).substr(spans_[id].offset, spans_[id].length);
}

bool Vocabulary::Has(int32_t id) const {
  return id >= 0 && id < size() && spans_[id].length != UINT32_MAX;
}

}  // namespace penstock::text
