#include "text/utf8.h"

#include <utf8proc.h>

#include <array>

namespace penstock::text {
namespace {

uint8_t Byte(std::string_view text, size_t i) {
  return static_cast<uint8_t>(text[i]);
}

struct Lead {
  uint8_t length = 0;  // 0: begins nothing
  uint8_t low = 0x80;  // range of the second byte
  uint8_t high = 0xBF;
};

Lead LeadOf(uint8_t b) {
  if (b < 0x80) {
    return {1, 0, 0};
  }
  if (b < 0xC2 || b > 0xF4) {
    return {};
  }
  if (b < 0xE0) {
    return {2, 0x80, 0xBF};
  }
  if (b < 0xF0) {
    return {3, static_cast<uint8_t>(b == 0xE0 ? 0xA0 : 0x80),
            static_cast<uint8_t>(b == 0xED ? 0x9F : 0xBF)};
  }
  return {4, static_cast<uint8_t>(b == 0xF0 ? 0x90 : 0x80),
          static_cast<uint8_t>(b == 0xF4 ? 0x8F : 0xBF)};
}

// How many bytes at the start agree with the form that the first byte begins, and that form's
// length.
struct Prefix {
  size_t good = 0;
  size_t wanted = 0;
};

Prefix MatchPrefix(std::string_view text) {
  const Lead lead = LeadOf(Byte(text, 0));
  Prefix prefix{lead.length > 0 ? size_t{1} : size_t{0}, lead.length};
  while (prefix.good < prefix.wanted && prefix.good < text.size()) {
    const uint8_t b = Byte(text, prefix.good);
    const bool fits = prefix.good == 1 ? b >= lead.low && b <= lead.high : b >= 0x80 && b <= 0xBF;
    if (!fits) {
      break;
    }
    ++prefix.good;
  }
  return prefix;
}

utf8proc_category_t Category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

// Characters that are Alphabetic though their category is So.
bool IsAlphabeticSymbol(char32_t c) {
  return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
         (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
}

}  // namespace

size_t WellFormedLength(std::string_view text) {
  if (text.empty()) {
    return 0;
  }
  const Prefix prefix = MatchPrefix(text);
  return prefix.wanted > 0 && prefix.good == prefix.wanted ? prefix.wanted : 0;
}

size_t IllFormedLength(std::string_view text, bool* incomplete) {
  const Prefix prefix = MatchPrefix(text);
  if (incomplete != nullptr) {
    *incomplete = prefix.good > 0 && prefix.good == text.size();
  }
  return prefix.good > 0 ? prefix.good : 1;
}

size_t FindIllFormed(std::string_view text, size_t from) {
  while (from < text.size()) {
    if (Byte(text, from) < 0x80) {
      ++from;
      continue;
    }
    const size_t length = WellFormedLength(text.substr(from));
    if (length == 0) {
      break;
    }
    from += length;
  }
  return from;
}

std::string ReplaceIllFormed(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const size_t bad = FindIllFormed(text, at);
    out.append(text.substr(at, bad - at));
    at = bad;
    if (at < text.size()) {
      out += "\xEF\xBF\xBD";
      at += IllFormedLength(text.substr(at), nullptr);
    }
  }
  return out;
}

size_t SequenceLength(char first) {
  const auto b = static_cast<uint8_t>(first);
  return b < 0x80 ? 1 : b < 0xE0 ? 2 : b < 0xF0 ? 3 : 4;
}

char32_t NextCodePoint(std::string_view text, size_t& position) {
  const uint8_t first = Byte(text, position);
  const size_t length = SequenceLength(text[position]);
  constexpr std::array<uint8_t, 5> kMask = {0, 0x7F, 0x1F, 0x0F, 0x07};
  char32_t c = first & kMask[length];
  for (size_t i = 1; i < length; ++i) {
    c = (c << 6) | (Byte(text, position + i) & 0x3F);
  }
  position += length;
  return c;
}

void AppendUtf8(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | (c >> 6));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | (c >> 12));
    out += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | (c >> 18));
    out += static_cast<char>(0x80 | ((c >> 12) & 0x3F));
    out += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  }
}

bool IsWhiteSpace(char32_t c) {
  return c == ' ' || (c >= 0x09 && c <= 0x0D) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool IsNumeric(char32_t c) {
  if (c < 0x80) {
    return c >= '0' && c <= '9';
  }
  const utf8proc_category_t category = Category(c);
  return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL ||
         category == UTF8PROC_CATEGORY_NO;
}

bool IsPunctuation(char32_t c) {
  if (c < 0x80) {
    return (c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) ||
           (c >= 123 && c <= 126);
  }
  const utf8proc_category_t category = Category(c);
  return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
}

bool IsWord(char32_t c) {
  if (c < 0x80) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
  }
  switch (Category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return c == 0x200C || c == 0x200D || IsAlphabeticSymbol(c);
  }
}

bool IsMark(char32_t c) {
  const utf8proc_category_t category = Category(c);
  return category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC ||
         category == UTF8PROC_CATEGORY_ME;
}

size_t TrailingWhiteSpace(std::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    size_t start = end - 1;
    while (start > 0 && (Byte(text, start) & 0xC0) == 0x80) {
      --start;
    }
    size_t position = start;
    if (!IsWhiteSpace(NextCodePoint(text, position))) {
      break;
    }
    end = start;
  }
  return text.size() - end;
}

size_t LeadingWhiteSpace(std::string_view text) {
  size_t end = 0;
  while (end < text.size()) {
    size_t position = end;
    if (!IsWhiteSpace(NextCodePoint(text, position))) {
      break;
    }
    end = position;
  }
  return end;
}

}  // namespace penstock::text
