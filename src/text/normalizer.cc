#include "text/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>

#include "base/json.h"
#include "text/charsmap.h"
#include "text/regex.h"
#include "text/utf8.h"

namespace penstock::text {
namespace {

constexpr std::string_view kSupported =
    "NFC NFD NFKC NFKD Lowercase Strip StripAccents Prepend Replace Precompiled Sequence";
constexpr int kMaxDepth = 16;

bool AllBelow(std::string_view text, uint8_t first_byte) {
  return std::all_of(text.begin(), text.end(),
                     [first_byte](char c) { return static_cast<uint8_t>(c) < first_byte; });
}

Result<> CheckLength(size_t length, const TextPlace& place) {
  if (length > place.limit_bytes) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[text.normalizer] the tokenizer's replacements make a text longer than {} "
                     "bytes",
                     place.limit_bytes);
  }
  return {};
}

class Unicode : public Normalizer {
 public:
  Unicode(bool compose, bool compatible) : compose_(compose), compatible_(compatible) {}

  Result<> Apply(std::string& text, const TextPlace&) const override {
    // ASCII is stable in all four forms, text below U+0300 (lead byte CC) in NFC.
    if (AllBelow(text, compose_ && !compatible_ ? 0xCC : 0x80)) {
      return {};
    }
    std::vector<utf8proc_int32_t> points = Decompose(text);
    Reorder(points);
    if (compose_) {
      const utf8proc_ssize_t count = utf8proc_normalize_utf32(
          points.data(), static_cast<utf8proc_ssize_t>(points.size()),
          static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
      PENSTOCK_CHECK(count >= 0, "composition of well-formed text");
      points.resize(static_cast<size_t>(count));
    }
    text.clear();
    for (const utf8proc_int32_t c : points) {
      AppendUtf8(text, static_cast<char32_t>(c));
    }
    return {};
  }

 private:
  std::vector<utf8proc_int32_t> Decompose(std::string_view text) const {
    const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE |
                                                        (compatible_ ? UTF8PROC_COMPAT : 0));
    std::vector<utf8proc_int32_t> points;
    points.reserve(text.size());
    std::array<utf8proc_int32_t, 32> buffer{};  // the longest decomposition has 18 code points
    for (size_t at = 0; at < text.size();) {
      const char32_t c = NextCodePoint(text, at);
      int last_class = 0;
      const utf8proc_ssize_t count = utf8proc_decompose_char(
          static_cast<utf8proc_int32_t>(c), buffer.data(),
          static_cast<utf8proc_ssize_t>(buffer.size()), options, &last_class);
      if (count < 0 || count > static_cast<utf8proc_ssize_t>(buffer.size())) {
        points.push_back(static_cast<utf8proc_int32_t>(c));
      } else {
        points.insert(points.end(), buffer.begin(), buffer.begin() + count);
      }
    }
    return points;
  }

  // Canonical ordering: runs of combining marks sorted by class. Done here because utf8proc's own
  // pass is quadratic.
  static void Reorder(std::vector<utf8proc_int32_t>& points) {
    const auto combining = [](utf8proc_int32_t c) {
      return utf8proc_get_property(c)->combining_class;
    };
    for (size_t i = 0; i < points.size();) {
      if (combining(points[i]) == 0) {
        ++i;
        continue;
      }
      size_t end = i + 1;
      while (end < points.size() && combining(points[end]) != 0) {
        ++end;
      }
      std::stable_sort(points.begin() + static_cast<std::ptrdiff_t>(i),
                       points.begin() + static_cast<std::ptrdiff_t>(end),
                       [&combining](auto a, auto b) { return combining(a) < combining(b); });
      i = end;
    }
  }

  const bool compose_;
  const bool compatible_;
};

class Lowercase : public Normalizer {
 public:
  Result<> Apply(std::string& text, const TextPlace&) const override {
    std::string out;
    out.reserve(text.size());
    for (size_t at = 0; at < text.size();) {
      const char32_t c = NextCodePoint(text, at);
      if (c == 0x130) {
        out += "i\xCC\x87";  // the only character whose lower case is two
      } else {
        AppendUtf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
      }
    }
    text = std::move(out);
    return {};
  }
};

class StripAccents : public Normalizer {
 public:
  Result<> Apply(std::string& text, const TextPlace&) const override {
    std::string out;
    for (size_t at = 0; at < text.size();) {
      const size_t start = at;
      if (!IsMark(NextCodePoint(text, at))) {
        out.append(text, start, at - start);
      }
    }
    text = std::move(out);
    return {};
  }

  bool StripsStart() const override { return true; }
};

class Strip : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}

  Result<> Apply(std::string& text, const TextPlace&) const override {
    if (right_) {
      text.resize(text.size() - TrailingWhiteSpace(text));
    }
    if (left_) {
      text.erase(0, LeadingWhiteSpace(text));
    }
    return {};
  }

  bool StripsStart() const override { return left_; }

 private:
  const bool left_;
  const bool right_;
};

class Prepend : public Normalizer {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}

  Result<> Apply(std::string& text, const TextPlace& place) const override {
    if (!text.empty() && !place.continues) {
      PENSTOCK_TRY(CheckLength(text.size() + prefix_.size(), place));
      text.insert(0, prefix_);
    }
    return {};
  }

 private:
  const std::string prefix_;
};

class ReplaceString : public Normalizer {
 public:
  ReplaceString(std::string from, std::string to) : from_(std::move(from)), to_(std::move(to)) {}

  Result<> Apply(std::string& text, const TextPlace& place) const override {
    size_t found = from_.empty() ? std::string::npos : text.find(from_);
    if (found == std::string::npos) {
      return {};
    }
    std::string out;
    out.reserve(text.size() + text.size() / 4);
    size_t at = 0;
    for (; found != std::string::npos; found = text.find(from_, at)) {
      out.append(text, at, found - at);
      PENSTOCK_TRY(CheckLength(out.size() + to_.size(), place));
      out += to_;
      at = found + from_.size();
    }
    out.append(text, at);
    text = std::move(out);
    return {};
  }

 private:
  const std::string from_;
  const std::string to_;
};

class ReplaceRegex : public Normalizer {
 public:
  ReplaceRegex(Regex regex, std::string to) : regex_(std::move(regex)), to_(std::move(to)) {}

  Result<> Apply(std::string& text, const TextPlace& place) const override {
    std::vector<Match> parts;
    PENSTOCK_TRY(regex_.Cover(text, 0, parts));
    std::string out;
    for (const Match& part : parts) {
      if (part.matched) {
        PENSTOCK_TRY(CheckLength(out.size() + to_.size(), place));
        out += to_;
      } else {
        out.append(text, part.begin, part.end - part.begin);
      }
    }
    text = std::move(out);
    return {};
  }

  bool StripsStart() const override { return true; }

 private:
  const Regex regex_;
  const std::string to_;
};

class CollapseSpaces : public Normalizer {
 public:
  Result<> Apply(std::string& text, const TextPlace&) const override {
    std::string out;
    out.reserve(text.size());
    for (const char c : text) {
      if (c != ' ' || (!out.empty() && out.back() != ' ')) {
        out += c;
      }
    }
    if (out.ends_with(' ')) {
      out.pop_back();
    }
    text = std::move(out);
    return {};
  }

  bool StripsStart() const override { return true; }
};

class Sequence : public Normalizer {
 public:
  explicit Sequence(std::vector<std::unique_ptr<Normalizer>> parts) : parts_(std::move(parts)) {}

  Result<> Apply(std::string& text, const TextPlace& place) const override {
    for (const auto& part : parts_) {
      PENSTOCK_TRY(part->Apply(text, place));
    }
    return {};
  }

  bool StripsStart() const override {
    return std::any_of(parts_.begin(), parts_.end(),
                       [](const auto& part) { return part->StripsStart(); });
  }

 private:
  const std::vector<std::unique_ptr<Normalizer>> parts_;
};

using Made = Result<std::unique_ptr<Normalizer>>;

Made MakeReplaceFromJson(const JsonReader& reader) {
  const Json* pattern = reader.Find("pattern");
  if (pattern == nullptr || !pattern->is_object()) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        "[text.normalizer] {}: pattern: wanted {{\"String\": ...}} or {{\"Regex\": ...}}",
        reader.where());
  }
  const JsonReader inner(*pattern, reader.where() + ".pattern");
  PENSTOCK_TRY_ASSIGN(std::string content, reader.String("content"));
  if (inner.Has("Regex")) {
    PENSTOCK_TRY_ASSIGN(const std::string source, inner.String("Regex"));
    PENSTOCK_TRY_ASSIGN(Regex regex, Regex::Compile(source, reader.where()));
    return std::unique_ptr<Normalizer>(
        std::make_unique<ReplaceRegex>(std::move(regex), std::move(content)));
  }
  PENSTOCK_TRY_ASSIGN(std::string from, inner.String("String"));
  return MakeReplace(std::move(from), std::move(content));
}

Made MakeAtDepth(const Json& json, const std::string& where, int depth) {
  if (depth > kMaxDepth) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[text.normalizer] {}: nested deeper than {} levels", where, kMaxDepth);
  }
  const JsonReader reader(json, where);
  PENSTOCK_TRY_ASSIGN(const std::string type, reader.String("type"));
  if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
    return std::unique_ptr<Normalizer>(
        std::make_unique<Unicode>(type.back() == 'C', type.size() == 4));
  }
  if (type == "Lowercase") {
    return std::unique_ptr<Normalizer>(std::make_unique<Lowercase>());
  }
  if (type == "StripAccents") {
    return std::unique_ptr<Normalizer>(std::make_unique<StripAccents>());
  }
  if (type == "Strip") {
    PENSTOCK_TRY_ASSIGN(const bool left, reader.BoolOr("strip_left", true));
    PENSTOCK_TRY_ASSIGN(const bool right, reader.BoolOr("strip_right", true));
    return std::unique_ptr<Normalizer>(std::make_unique<Strip>(left, right));
  }
  if (type == "Prepend") {
    PENSTOCK_TRY_ASSIGN(std::string prefix, reader.String("prepend"));
    return MakePrepend(std::move(prefix));
  }
  if (type == "Replace") {
    return MakeReplaceFromJson(reader);
  }
  if (type == "Precompiled") {
    PENSTOCK_TRY_ASSIGN(const std::string text, reader.String("precompiled_charsmap"));
    PENSTOCK_TRY_ASSIGN(const std::string bytes, DecodeBase64(text, where));
    return MakeCharsmap(bytes, CharsmapRule::kGraphemes, where);
  }
  if (type == "Sequence") {
    const Json* list = reader.Find("normalizers");
    if (list == nullptr || !list->is_array()) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "[text.normalizer] {}: normalizers: wanted a list", where);
    }
    std::vector<std::unique_ptr<Normalizer>> parts;
    for (const Json& item : *list) {
      PENSTOCK_TRY_ASSIGN(auto part,
                          MakeAtDepth(item, fmt::format("{}[{}]", where, parts.size()), depth + 1));
      parts.push_back(std::move(part));
    }
    return MakeSequence(std::move(parts));
  }
  return MakeError(ErrorCode::kUnsupported,
                   "[text.normalizer] {}: normalizer \"{}\" is not supported, wanted one of: {}",
                   where, type, kSupported);
}

}  // namespace

Result<std::unique_ptr<Normalizer>> MakeNormalizer(const Json& json, const std::string& where) {
  if (json.is_null()) {
    return std::unique_ptr<Normalizer>();
  }
  return MakeAtDepth(json, where, 0);
}

std::unique_ptr<Normalizer> MakeNfc() {
  return std::make_unique<Unicode>(true, false);
}

std::unique_ptr<Normalizer> MakeCollapseSpaces() {
  return std::make_unique<CollapseSpaces>();
}

std::unique_ptr<Normalizer> MakeReplace(std::string from, std::string to) {
  return std::make_unique<ReplaceString>(std::move(from), std::move(to));
}

std::unique_ptr<Normalizer> MakePrepend(std::string prefix) {
  return std::make_unique<Prepend>(std::move(prefix));
}

std::unique_ptr<Normalizer> MakeSequence(std::vector<std::unique_ptr<Normalizer>> parts) {
  return std::make_unique<Sequence>(std::move(parts));
}

}  // namespace penstock::text
