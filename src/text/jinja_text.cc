#include "text/jinja_text.h"

#include <cctype>

namespace penstock::text {
namespace {

bool IsSpace(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v';
}

bool IsName(char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
}

class Canonicalizer {
 public:
  explicit Canonicalizer(std::string_view text) : text_(text) {}

  std::optional<std::string> Run() {
    if (text_.ends_with('\n')) {
      text_.remove_suffix(1);
    }
    while (at_ < text_.size()) {
      const size_t open = text_.find('{', at_);
      if (open == std::string_view::npos || open + 1 == text_.size()) {
        break;
      }
      const char kind = text_[open + 1];
      if (kind != '{' && kind != '%' && kind != '#') {
        plain_ += text_.substr(at_, open + 1 - at_);
        at_ = open + 1;
        continue;
      }
      plain_ += text_.substr(at_, open - at_);
      at_ = open + 2;
      StripBefore(kind);
      const bool good = kind == '#' ? SkipComment() : ReadTag(kind);
      if (!good) {
        return std::nullopt;
      }
    }
    plain_ += text_.substr(at_);
    FlushPlain();
    return std::move(out_);
  }

 private:
  // White space control at the opening of a tag; moves behind the mark.
  void StripBefore(char kind) {
    const char mark = at_ < text_.size() ? text_[at_] : '\0';
    if (mark == '-') {
      while (!plain_.empty() && IsSpace(plain_.back())) {
        plain_.pop_back();
      }
      ++at_;
    } else if (mark == '+' && kind != '{') {
      ++at_;
    } else if (kind != '{') {
      // lstrip_blocks: only spaces since the line began (in the source, not in what is left of it).
      size_t begin = at_ - 2;
      while (begin > 0 && (text_[begin - 1] == ' ' || text_[begin - 1] == '\t')) {
        --begin;
      }
      if (begin == 0 || text_[begin - 1] == '\n') {
        while (!plain_.empty() && (plain_.back() == ' ' || plain_.back() == '\t')) {
          plain_.pop_back();
        }
      }
    }
  }

  // White space control at the end of a tag; at_ is behind it.
  void StripAfter(char kind, char mark) {
    if (mark == '-') {
      while (at_ < text_.size() && IsSpace(text_[at_])) {
        ++at_;
      }
    } else if (mark != '+' && kind != '{' && at_ < text_.size() && text_[at_] == '\n') {
      ++at_;
    }
  }

  bool SkipComment() {
    const size_t close = text_.find("#}", at_);
    if (close == std::string_view::npos) {
      return false;
    }
    const char mark = close > at_ ? text_[close - 1] : '\0';
    at_ = close + 2;
    StripAfter('#', mark);
    return true;
  }

  bool ReadTag(char kind) {
    FlushPlain();
    const char closing = kind == '{' ? '}' : '%';
    out_ += kind;
    char mark = '\0';
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == closing && at_ + 1 < text_.size() && text_[at_ + 1] == '}') {
        at_ += 2;
        out_ += '\x02';
        StripAfter(kind, mark);
        return true;
      }
      if ((c == '-' || c == '+') && text_.substr(at_ + 1, 2) == (kind == '{' ? "}}" : "%}")) {
        mark = c;
        ++at_;
      } else if (c == '\'' || c == '"') {
        if (!ReadString(c)) {
          return false;
        }
      } else if (IsSpace(c)) {
        ++at_;
      } else if (IsName(c)) {
        while (at_ < text_.size() && IsName(text_[at_])) {
          out_ += text_[at_++];
        }
        out_ += '\x01';
      } else {
        out_ += c;
        out_ += '\x01';
        ++at_;
      }
    }
    return false;
  }

  // A string literal, by value.
  bool ReadString(char quote) {
    std::string value;
    for (++at_; at_ < text_.size(); ++at_) {
      char c = text_[at_];
      if (c == quote) {
        ++at_;
        out_ += '"' + std::to_string(value.size()) + ':' + value + '\x01';
        return true;
      }
      if (c == '\\' && at_ + 1 < text_.size()) {
        c = text_[++at_];
        switch (c) {
          case 'n':
            value += '\n';
            break;
          case 't':
            value += '\t';
            break;
          case 'r':
            value += '\r';
            break;
          case '\\':
          case '\'':
          case '"':
            value += c;
            break;
          default:
            value += '\\';
            value += c;
        }
      } else {
        value += c;
      }
    }
    return false;
  }

  void FlushPlain() {
    if (!plain_.empty()) {
      out_ += 'T' + std::to_string(plain_.size()) + ':' + plain_;
      plain_.clear();
    }
  }

  std::string_view text_;
  size_t at_ = 0;
  std::string plain_;
  std::string out_;
};

std::string WithUnixLineEnds(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\r') {
      out += text[i];
    } else if (i + 1 == text.size() || text[i + 1] != '\n') {
      out += '\n';
    }
  }
  return out;
}

}  // namespace

std::optional<std::string> CanonicalTemplate(std::string_view jinja) {
  const std::string text = WithUnixLineEnds(jinja);
  return Canonicalizer(text).Run();
}

std::optional<uint64_t> TemplateFingerprint(std::string_view jinja) {
  const std::optional<std::string> canonical = CanonicalTemplate(jinja);
  if (!canonical.has_value()) {
    return std::nullopt;
  }
  uint64_t hash = 0xCBF29CE484222325ULL;
  for (const char c : *canonical) {
    hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3ULL;
  }
  return hash;
}

}  // namespace penstock::text
