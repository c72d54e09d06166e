#include "text/pretokenizer.h"

#include <algorithm>
#include <array>
#include <functional>
#include <optional>

#include "base/json.h"
#include "text/byte_level.h"
#include "text/regex.h"
#include "text/utf8.h"

namespace penstock::text {

const char* const kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

namespace {

constexpr std::string_view kSupported =
    "ByteLevel Split Digits Metaspace Punctuation Whitespace WhitespaceSplit CharDelimiterSplit "
    "BertPreTokenizer Sequence";
constexpr int kMaxDepth = 16;

// Appends the pieces that `behavior` makes of a complete cover of one piece.
void AppendParts(const std::vector<Match>& cover, SplitBehavior behavior, bool at_start,
                 std::vector<Piece>& out) {
  const size_t first = out.size();
  const size_t origin = cover.empty() ? 0 : cover.front().begin;
  const auto push = [&](size_t begin, size_t end) {
    if (begin < end) {
      out.push_back({begin, end, at_start && begin == origin});
    }
  };
  switch (behavior) {
    case SplitBehavior::kRemoved:
      for (const Match& part : cover) {
        if (!part.matched) {
          push(part.begin, part.end);
        }
      }
      break;
    case SplitBehavior::kIsolated:
      for (const Match& part : cover) {
        push(part.begin, part.end);
      }
      break;
    case SplitBehavior::kContiguous:
      for (size_t i = 0; i < cover.size();) {
        size_t last = i;
        while (last + 1 < cover.size() && cover[last + 1].matched == cover[i].matched) {
          ++last;
        }
        push(cover[i].begin, cover[last].end);
        i = last + 1;
      }
      break;
    case SplitBehavior::kMergedWithPrevious:
    case SplitBehavior::kMergedWithNext: {
      // A match joins its neighbour, unless that one is a match too.
      const bool next = behavior == SplitBehavior::kMergedWithNext;
      const size_t count = cover.size();
      const auto at = [&](size_t i) -> const Match& { return cover[next ? count - 1 - i : i]; };
      std::vector<Match> joined;
      bool previous_matched = false;
      for (size_t i = 0; i < count; ++i) {
        const Match& part = at(i);
        if (part.matched && !previous_matched && !joined.empty()) {
          joined.back().begin = std::min(joined.back().begin, part.begin);
          joined.back().end = std::max(joined.back().end, part.end);
        } else {
          joined.push_back(part);
        }
        previous_matched = part.matched;
      }
      if (next) {
        std::reverse(joined.begin(), joined.end());
      }
      for (const Match& part : joined) {
        push(part.begin, part.end);
      }
      break;
    }
  }
  // What starts behind a removed first part does not start where the input does.
  for (size_t i = first + 1; i < out.size(); ++i) {
    out[i].at_start = false;
  }
}

class PatternSplit : public PreTokenizer {
 public:
  PatternSplit(Regex regex, SplitBehavior behavior, bool invert)
      : regex_(std::move(regex)), behavior_(behavior), invert_(invert) {}

  Result<> Apply(Pieces& pieces) const override {
    std::vector<Piece> out;
    out.reserve(pieces.list.size());
    std::vector<Match> cover;
    for (const Piece& piece : pieces.list) {
      cover.clear();
      const std::string_view text(pieces.text);
      PENSTOCK_TRY(
          regex_.Cover(text.substr(piece.begin, piece.end - piece.begin), piece.begin, cover));
      for (Match& part : cover) {
        part.matched ^= invert_;
      }
      AppendParts(cover, behavior_, piece.at_start, out);
    }
    pieces.list = std::move(out);
    return {};
  }

 private:
  const Regex regex_;
  const SplitBehavior behavior_;
  const bool invert_;
};

// Cuts by a fixed text: each occurrence is a match.
class TextSplit : public PreTokenizer {
 public:
  TextSplit(std::string separator, SplitBehavior behavior, bool invert)
      : separator_(std::move(separator)), behavior_(behavior), invert_(invert) {}

  Result<> Apply(Pieces& pieces) const override {
    std::vector<Piece> out;
    std::vector<Match> cover;
    const std::string_view text(pieces.text);
    for (const Piece& piece : pieces.list) {
      cover.clear();
      const std::string_view inside = text.substr(0, piece.end);
      size_t at = piece.begin;
      while (at < piece.end) {
        const size_t found =
            separator_.empty() ? std::string_view::npos : inside.find(separator_, at);
        const size_t stop = found == std::string_view::npos ? piece.end : found;
        if (stop > at) {
          cover.push_back({at, stop, invert_});
        }
        if (found == std::string_view::npos) {
          break;
        }
        cover.push_back({found, found + separator_.size(), !invert_});
        at = found + separator_.size();
      }
      AppendParts(cover, behavior_, piece.at_start, out);
    }
    pieces.list = std::move(out);
    return {};
  }

 private:
  const std::string separator_;
  const SplitBehavior behavior_;
  const bool invert_;
};

// Cuts by a property of single characters: each one that has it is a match.
class CharacterSplit : public PreTokenizer {
 public:
  CharacterSplit(bool (*property)(char32_t), SplitBehavior behavior)
      : property_(property), behavior_(behavior) {}

  Result<> Apply(Pieces& pieces) const override {
    std::vector<Piece> out;
    std::vector<Match> cover;
    for (const Piece& piece : pieces.list) {
      cover.clear();
      for (size_t at = piece.begin; at < piece.end;) {
        const size_t start = at;
        const bool matched = property_(NextCodePoint(pieces.text, at));
        if (!matched && !cover.empty() && !cover.back().matched) {
          cover.back().end = at;
        } else {
          cover.push_back({start, at, matched});
        }
      }
      AppendParts(cover, behavior_, piece.at_start, out);
    }
    pieces.list = std::move(out);
    return {};
  }

 private:
  bool (*const property_)(char32_t);
  const SplitBehavior behavior_;
};

// \w+|[^\w\s]+
class Whitespace : public PreTokenizer {
 public:
  Result<> Apply(Pieces& pieces) const override {
    std::vector<Piece> out;
    for (const Piece& piece : pieces.list) {
      int last_kind = -1;
      for (size_t at = piece.begin; at < piece.end;) {
        const size_t start = at;
        const char32_t c = NextCodePoint(pieces.text, at);
        const int kind = IsWord(c) ? 0 : IsWhiteSpace(c) ? 1 : 2;
        if (kind != 1 && kind == last_kind) {
          out.back().end = at;
        } else if (kind != 1) {
          out.push_back({start, at, piece.at_start && start == piece.begin});
        }
        last_kind = kind;
      }
    }
    pieces.list = std::move(out);
    return {};
  }
};

// Writes the text anew, piece by piece. `write` appends one piece's text.
void Rewrite(Pieces& pieces,
             const std::function<void(const Piece&, std::string_view, std::string&)>& write) {
  std::string text;
  text.reserve(pieces.text.size() + pieces.text.size() / 4 + 8);
  for (Piece& piece : pieces.list) {
    const size_t begin = text.size();
    write(piece, std::string_view(pieces.text).substr(piece.begin, piece.end - piece.begin), text);
    piece.begin = begin;
    piece.end = text.size();
  }
  pieces.text = std::move(text);
}

class ByteLevel : public PreTokenizer {
 public:
  ByteLevel(bool add_prefix_space, std::optional<Regex> regex)
      : add_prefix_space_(add_prefix_space) {
    if (regex.has_value()) {
      split_.emplace(*std::move(regex), SplitBehavior::kIsolated, false);
    }
  }

  Result<> Apply(Pieces& pieces) const override {
    if (add_prefix_space_) {
      Rewrite(pieces, [&](const Piece& piece, std::string_view from, std::string& to) {
        const bool interrupted = pieces.continues && &piece == pieces.list.data();
        if (!interrupted && !from.starts_with(' ')) {
          to += ' ';
        }
        to += from;
      });
    }
    if (split_.has_value()) {
      PENSTOCK_TRY(split_->Apply(pieces));
    }
    Rewrite(pieces, [](const Piece&, std::string_view from, std::string& to) {
      AppendByteLevel(to, from);
    });
    return {};
  }

  bool MapsBytes() const override { return true; }

 private:
  const bool add_prefix_space_;
  std::optional<PatternSplit> split_;
};

enum class PrependScheme { kAlways, kFirst, kNever };

class Metaspace : public PreTokenizer {
 public:
  Metaspace(std::string replacement, PrependScheme scheme, bool split)
      : replacement_(std::move(replacement)),
        scheme_(scheme),
        split_(split),
        splitter_(replacement_, SplitBehavior::kMergedWithNext, false) {}

  Result<> Apply(Pieces& pieces) const override {
    Rewrite(pieces, [&](const Piece& piece, std::string_view from, std::string& to) {
      const bool interrupted = pieces.continues && &piece == pieces.list.data();
      const bool wanted = !interrupted && (scheme_ == PrependScheme::kAlways ||
                                           (scheme_ == PrependScheme::kFirst && piece.at_start));
      if (wanted && !from.starts_with(' ') && !from.starts_with(replacement_)) {
        to += replacement_;
      }
      for (const char c : from) {
        if (c == ' ') {
          to += replacement_;
        } else {
          to += c;
        }
      }
    });
    return split_ ? splitter_.Apply(pieces) : Result<>();
  }

 private:
  const std::string replacement_;
  const PrependScheme scheme_;
  const bool split_;
  const TextSplit splitter_;
};

class Sequence : public PreTokenizer {
 public:
  explicit Sequence(std::vector<std::unique_ptr<PreTokenizer>> parts) : parts_(std::move(parts)) {}

  Result<> Apply(Pieces& pieces) const override {
    for (const auto& part : parts_) {
      PENSTOCK_TRY(part->Apply(pieces));
      if (pieces.text.size() > pieces.limit_bytes) {
        return MakeError(ErrorCode::kInvalidArgument,
                         "[text.pretokenizer] the tokenizer makes a text longer than {} bytes",
                         pieces.limit_bytes);
      }
    }
    return {};
  }

  bool MapsBytes() const override {
    return std::any_of(parts_.begin(), parts_.end(),
                       [](const auto& part) { return part->MapsBytes(); });
  }

 private:
  const std::vector<std::unique_ptr<PreTokenizer>> parts_;
};

using Made = Result<std::unique_ptr<PreTokenizer>>;

Result<SplitBehavior> ReadBehavior(const JsonReader& reader, const std::string& fallback) {
  PENSTOCK_TRY_ASSIGN(const std::string name, reader.StringOr("behavior", fallback));
  constexpr std::array<std::pair<std::string_view, SplitBehavior>, 5> kNames = {{
      {"Removed", SplitBehavior::kRemoved},
      {"Isolated", SplitBehavior::kIsolated},
      {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
      {"MergedWithNext", SplitBehavior::kMergedWithNext},
      {"Contiguous", SplitBehavior::kContiguous},
  }};
  for (const auto& [known, behavior] : kNames) {
    if (name == known) {
      return behavior;
    }
  }
  return MakeError(ErrorCode::kUnsupported,
                   "[text.pretokenizer] {}: behavior: got \"{}\", wanted Removed, Isolated, "
                   "MergedWithPrevious, MergedWithNext or Contiguous",
                   reader.where(), name);
}

// A member that must be one character.
Result<std::string> ReadCharacter(const JsonReader& reader, std::string_view key,
                                  const std::string& fallback) {
  PENSTOCK_TRY_ASSIGN(std::string text, reader.StringOr(key, fallback));
  if (text.empty() || WellFormedLength(text) != text.size()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[text.pretokenizer] {}: {}: got \"{}\", wanted one character", reader.where(),
                     key, text);
  }
  return text;
}

Made MakeSplit(const JsonReader& reader) {
  const Json* pattern = reader.Find("pattern");
  if (pattern == nullptr || !pattern->is_object()) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        "[text.pretokenizer] {}: pattern: wanted {{\"String\": ...}} or {{\"Regex\": ...}}",
        reader.where());
  }
  PENSTOCK_TRY_ASSIGN(const SplitBehavior behavior, ReadBehavior(reader, ""));
  PENSTOCK_TRY_ASSIGN(const bool invert, reader.BoolOr("invert", false));
  const JsonReader inner(*pattern, reader.where() + ".pattern");
  if (inner.Has("Regex")) {
    PENSTOCK_TRY_ASSIGN(const std::string source, inner.String("Regex"));
    PENSTOCK_TRY_ASSIGN(Regex regex, Regex::Compile(source, reader.where()));
    return std::unique_ptr<PreTokenizer>(
        std::make_unique<PatternSplit>(std::move(regex), behavior, invert));
  }
  PENSTOCK_TRY_ASSIGN(std::string text, inner.String("String"));
  return std::unique_ptr<PreTokenizer>(
      std::make_unique<TextSplit>(std::move(text), behavior, invert));
}

Made MakeMetaspace(const JsonReader& reader) {
  PENSTOCK_TRY_ASSIGN(std::string replacement, ReadCharacter(reader, "replacement", "\u2581"));
  // Files of old versions have add_prefix_space in place of prepend_scheme.
  PENSTOCK_TRY_ASSIGN(const bool old_prefix, reader.BoolOr("add_prefix_space", true));
  PENSTOCK_TRY_ASSIGN(const std::string scheme,
                      reader.StringOr("prepend_scheme", old_prefix ? "always" : "never"));
  PENSTOCK_TRY_ASSIGN(const bool split, reader.BoolOr("split", true));
  if (scheme != "always" && scheme != "first" && scheme != "never") {
    return MakeError(ErrorCode::kUnsupported,
                     "[text.pretokenizer] {}: prepend_scheme: got \"{}\", wanted always, first or "
                     "never",
                     reader.where(), scheme);
  }
  const PrependScheme value = scheme == "always"  ? PrependScheme::kAlways
                              : scheme == "first" ? PrependScheme::kFirst
                                                  : PrependScheme::kNever;
  return std::unique_ptr<PreTokenizer>(
      std::make_unique<Metaspace>(std::move(replacement), value, split));
}

Made MakeByteLevel(const JsonReader& reader) {
  PENSTOCK_TRY_ASSIGN(const bool prefix, reader.BoolOr("add_prefix_space", true));
  PENSTOCK_TRY_ASSIGN(const bool use_regex, reader.BoolOr("use_regex", true));
  std::optional<Regex> regex;
  if (use_regex) {
    PENSTOCK_TRY_ASSIGN(regex, Regex::Compile(kGpt2Pattern, reader.where()));
  }
  return std::unique_ptr<PreTokenizer>(std::make_unique<ByteLevel>(prefix, std::move(regex)));
}

Made MakeSequenceOf(std::vector<std::unique_ptr<PreTokenizer>> parts) {
  return std::unique_ptr<PreTokenizer>(std::make_unique<Sequence>(std::move(parts)));
}

Made MakeCharacters(bool (*property)(char32_t), SplitBehavior behavior) {
  return std::unique_ptr<PreTokenizer>(std::make_unique<CharacterSplit>(property, behavior));
}

Made MakeAtDepth(const Json& json, const std::string& where, int depth) {
  if (depth > kMaxDepth) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[text.pretokenizer] {}: nested deeper than {} levels", where, kMaxDepth);
  }
  const JsonReader reader(json, where);
  PENSTOCK_TRY_ASSIGN(const std::string type, reader.String("type"));
  if (type == "ByteLevel") {
    return MakeByteLevel(reader);
  }
  if (type == "Split") {
    return MakeSplit(reader);
  }
  if (type == "Metaspace") {
    return MakeMetaspace(reader);
  }
  if (type == "Digits") {
    PENSTOCK_TRY_ASSIGN(const bool single, reader.BoolOr("individual_digits", false));
    return MakeCharacters(IsNumeric,
                          single ? SplitBehavior::kIsolated : SplitBehavior::kContiguous);
  }
  if (type == "Punctuation") {
    PENSTOCK_TRY_ASSIGN(const SplitBehavior behavior, ReadBehavior(reader, "Isolated"));
    return MakeCharacters(IsPunctuation, behavior);
  }
  if (type == "Whitespace") {
    return std::unique_ptr<PreTokenizer>(std::make_unique<Whitespace>());
  }
  if (type == "WhitespaceSplit") {
    return MakeCharacters(IsWhiteSpace, SplitBehavior::kRemoved);
  }
  if (type == "CharDelimiterSplit") {
    PENSTOCK_TRY_ASSIGN(std::string delimiter, ReadCharacter(reader, "delimiter", ""));
    return std::unique_ptr<PreTokenizer>(
        std::make_unique<TextSplit>(std::move(delimiter), SplitBehavior::kRemoved, false));
  }
  if (type == "BertPreTokenizer") {
    std::vector<std::unique_ptr<PreTokenizer>> parts;
    parts.push_back(std::make_unique<CharacterSplit>(IsWhiteSpace, SplitBehavior::kRemoved));
    parts.push_back(std::make_unique<CharacterSplit>(IsPunctuation, SplitBehavior::kIsolated));
    return MakeSequenceOf(std::move(parts));
  }
  if (type == "Sequence") {
    const Json* list = reader.Find("pretokenizers");
    if (list == nullptr || !list->is_array()) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "[text.pretokenizer] {}: pretokenizers: wanted a list", where);
    }
    std::vector<std::unique_ptr<PreTokenizer>> parts;
    for (const Json& item : *list) {
      PENSTOCK_TRY_ASSIGN(auto part,
                          MakeAtDepth(item, fmt::format("{}[{}]", where, parts.size()), depth + 1));
      parts.push_back(std::move(part));
    }
    return MakeSequenceOf(std::move(parts));
  }
  return MakeError(
      ErrorCode::kUnsupported,
      "[text.pretokenizer] {}: pre-tokenizer \"{}\" is not supported, wanted one of: {}", where,
      type, kSupported);
}

}  // namespace

Result<std::unique_ptr<PreTokenizer>> MakePreTokenizer(const Json& json, const std::string& where) {
  if (json.is_null()) {
    return std::unique_ptr<PreTokenizer>();
  }
  return MakeAtDepth(json, where, 0);
}

Result<std::unique_ptr<PreTokenizer>> MakeByteLevelSplits(const std::vector<std::string>& patterns,
                                                          const std::string& source) {
  std::vector<std::unique_ptr<PreTokenizer>> parts;
  for (const std::string& pattern : patterns) {
    PENSTOCK_TRY_ASSIGN(Regex regex, Regex::Compile(pattern, source));
    parts.push_back(
        std::make_unique<PatternSplit>(std::move(regex), SplitBehavior::kIsolated, false));
  }
  parts.push_back(std::make_unique<ByteLevel>(false, std::nullopt));
  return MakeSequenceOf(std::move(parts));
}

}  // namespace penstock::text
