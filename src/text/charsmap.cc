#include "text/charsmap.h"

#include <utf8proc.h>

#include <array>

#include "text/utf8.h"

namespace penstock::text {
namespace {

uint32_t ReadU32(std::string_view bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) {
    value |= static_cast<uint32_t>(static_cast<uint8_t>(bytes[at + i])) << (8 * i);
  }
  return value;
}

class Charsmap : public Normalizer {
 public:
  Charsmap(std::vector<uint32_t> units, std::string texts, CharsmapRule rule)
      : units_(std::move(units)), texts_(std::move(texts)), rule_(rule) {}

  Result<> Apply(std::string& text, const TextPlace&) const override {
    std::string out;
    out.reserve(text.size());
    if (rule_ == CharsmapRule::kLongestPrefix) {
      ByLongestPrefix(text, out);
    } else {
      ByGraphemes(text, out);
    }
    text = std::move(out);
    return {};
  }

  bool StripsStart() const override { return true; }

 private:
  struct Hit {
    size_t length = 0;  // 0: none
    uint32_t offset = 0;
  };

  // The shortest or the longest prefix of `key` in the trie.
  Hit Look(std::string_view key, bool longest) const {
    Hit hit;
    size_t at = 0;
    uint32_t unit = units_[0];
    at ^= Offset(unit);
    for (size_t i = 0; i < key.size(); ++i) {
      const auto byte = static_cast<uint8_t>(key[i]);
      if (byte == 0) {
        break;
      }
      at ^= byte;
      if (at >= units_.size()) {
        break;
      }
      unit = units_[at];
      if ((unit & 0x800000FFU) != byte) {
        break;
      }
      at ^= Offset(unit);
      if (((unit >> 8) & 1) != 0) {
        if (at >= units_.size()) {
          break;
        }
        hit = {i + 1, units_[at] & 0x7FFFFFFFU};
        if (!longest) {
          break;
        }
      }
    }
    return hit.offset < texts_.size() || hit.length == 0 ? hit : Hit{};
  }

  static size_t Offset(uint32_t unit) {
    return static_cast<size_t>(unit >> 10) << ((unit & (1U << 9)) >> 6);
  }

  void AppendTextAt(std::string& out, uint32_t offset) const {
    const size_t end = texts_.find('\0', offset);
    out += std::string_view(texts_).substr(offset, end - offset);
  }

  void ByLongestPrefix(std::string_view text, std::string& out) const {
    for (size_t at = 0; at < text.size();) {
      const Hit hit = Look(text.substr(at), true);
      if (hit.length > 0) {
        AppendTextAt(out, hit.offset);
        at += hit.length;
      } else {
        const size_t length = SequenceLength(text[at]);
        out += text.substr(at, length);
        at += length;
      }
    }
  }

  void ByGraphemes(std::string_view text, std::string& out) const {
    utf8proc_int32_t state = 0;
    size_t begin = 0;
    while (begin < text.size()) {
      // The end of the grapheme cluster that starts here.
      size_t end = begin;
      char32_t last = NextCodePoint(text, end);
      while (end < text.size()) {
        size_t next = end;
        const char32_t c = NextCodePoint(text, next);
        if (utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(last),
                                             static_cast<utf8proc_int32_t>(c), &state)) {
          break;
        }
        last = c;
        end = next;
      }
      AppendGrapheme(text.substr(begin, end - begin), out);
      begin = end;
    }
  }

  void AppendGrapheme(std::string_view grapheme, std::string& out) const {
    if (grapheme.size() < 6) {
      if (const Hit hit = Look(grapheme, false); hit.length > 0) {
        AppendTextAt(out, hit.offset);
        return;
      }
    }
    for (size_t at = 0; at < grapheme.size();) {
      const std::string_view character = grapheme.substr(at, SequenceLength(grapheme[at]));
      if (const Hit hit = Look(character, false); hit.length > 0) {
        AppendTextAt(out, hit.offset);
      } else {
        out += character;
      }
      at += character.size();
    }
  }

  const std::vector<uint32_t> units_;
  const std::string texts_;
  const CharsmapRule rule_;
};

}  // namespace

Result<std::unique_ptr<Normalizer>> MakeCharsmap(std::string_view bytes, CharsmapRule rule,
                                                 const std::string& source) {
  const size_t trie_bytes = bytes.size() >= 4 ? ReadU32(bytes, 0) : 0;
  if (bytes.size() < 8 || trie_bytes < 4 || trie_bytes % 4 != 0 || trie_bytes > bytes.size() - 4) {
    return MakeError(ErrorCode::kCorruptData,
                     "[text.charsmap] {}: a character map of {} bytes with a trie of {}, wanted a "
                     "trie of whole 4-byte units inside it",
                     source, bytes.size(), trie_bytes);
  }
  std::vector<uint32_t> units(trie_bytes / 4);
  for (size_t i = 0; i < units.size(); ++i) {
    units[i] = ReadU32(bytes, 4 + 4 * i);
  }
  std::string texts(bytes.substr(4 + trie_bytes));
  if (FindIllFormed(texts, 0) != texts.size()) {
    return MakeError(ErrorCode::kCorruptData,
                     "[text.charsmap] {}: the replacements are not valid UTF-8", source);
  }
  texts += '\0';
  return std::unique_ptr<Normalizer>(
      std::make_unique<Charsmap>(std::move(units), std::move(texts), rule));
}

Result<std::string> DecodeBase64(std::string_view text, const std::string& source) {
  std::array<int8_t, 256> value{};
  value.fill(-1);
  constexpr std::string_view kLetters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (size_t i = 0; i < kLetters.size(); ++i) {
    value[static_cast<uint8_t>(kLetters[i])] = static_cast<int8_t>(i);
  }
  size_t padding = 0;
  while (!text.empty() && text.back() == '=' && padding < 2) {
    text.remove_suffix(1);
    ++padding;
  }
  std::string out;
  uint32_t bits = 0;
  int have = 0;
  bool good = (text.size() + padding) % 4 == 0;
  for (const char c : text) {
    const int8_t six = value[static_cast<uint8_t>(c)];
    good &= six >= 0;
    bits = (bits << 6) | static_cast<uint32_t>(six & 0x3F);
    have += 6;
    if (have >= 8) {
      have -= 8;
      out += static_cast<char>((bits >> have) & 0xFF);
    }
  }
  if (!good) {
    return MakeError(ErrorCode::kCorruptData, "[text.charsmap] {}: not valid base64", source);
  }
  return out;
}

}  // namespace penstock::text
