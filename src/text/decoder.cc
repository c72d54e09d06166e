#include "text/decoder.h"

#include <algorithm>

#include "base/json.h"
#include "text/byte_level.h"
#include "text/utf8.h"
#include "text/vocabulary.h"

namespace penstock::text {
namespace {

constexpr std::string_view kSupported =
    "ByteLevel ByteFallback Fuse Replace Strip Metaspace Sequence";
constexpr int kMaxDepth = 16;
constexpr size_t kMaxSteps = 64;
constexpr const char* kSpaceMark = "\u2581";

void ReplaceAll(std::string& text, const std::string& from, const std::string& to) {
  if (from.empty() || text.find(from) == std::string::npos) {
    return;
  }
  std::string out;
  size_t at = 0;
  for (size_t found = text.find(from); found != std::string::npos; found = text.find(from, at)) {
    out.append(text, at, found - at);
    out += to;
    at = found + from.size();
  }
  out.append(text, at);
  text = std::move(out);
}

}  // namespace

Result<Decoder> Decoder::Make(const Json& json, const std::string& where) {
  Decoder decoder;
  if (json.is_null()) {
    decoder.steps_.push_back({Kind::kJoin});
    return decoder;
  }
  PENSTOCK_TRY(decoder.AddSteps(json, where, 0));
  return decoder;
}

Decoder Decoder::ByteLevel() {
  Decoder decoder;
  decoder.steps_.push_back({Kind::kByteLevel});
  return decoder;
}

Decoder Decoder::SentencePiece(bool strip_first_space) {
  Decoder decoder;
  Step replace{Kind::kReplace};
  replace.from = kSpaceMark;
  replace.to = " ";
  decoder.steps_.push_back(replace);
  decoder.steps_.push_back({Kind::kByteFallback});
  if (strip_first_space) {
    Step strip{Kind::kStripText};
    strip.from = " ";
    strip.start = 1;
    decoder.steps_.push_back(strip);
  }
  return decoder;
}

Result<> Decoder::AddStrip(const JsonReader& reader) {
  Step step;
  PENSTOCK_TRY_ASSIGN(step.from, reader.String("content"));
  PENSTOCK_TRY_ASSIGN(const int64_t start, reader.IntOr("start", 0, 0, 1 << 20));
  PENSTOCK_TRY_ASSIGN(const int64_t stop, reader.IntOr("stop", 0, 0, 1 << 20));
  if (step.from.empty() || WellFormedLength(step.from) != step.from.size()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[text.decoder] {}: content: got \"{}\", wanted one character", reader.where(),
                     step.from);
  }
  if (fused_ && stop > 0) {
    return MakeError(ErrorCode::kUnsupported,
                     "[text.decoder] {}: Strip with stop {} behind Fuse is not supported, wanted 0",
                     reader.where(), stop);
  }
  step.kind = fused_ ? Kind::kStripText : Kind::kStripToken;
  step.start = static_cast<uint32_t>(start);
  step.stop = static_cast<uint32_t>(stop);
  steps_.push_back(std::move(step));
  return {};
}

Result<> Decoder::AddReplace(const JsonReader& reader) {
  const Json* pattern = reader.Find("pattern");
  if (pattern == nullptr || !pattern->is_object() || !pattern->contains("String")) {
    return MakeError(ErrorCode::kUnsupported,
                     "[text.decoder] {}: pattern: wanted {{\"String\": ...}}", reader.where());
  }
  Step step{Kind::kReplace};
  PENSTOCK_TRY_ASSIGN(step.from,
                      JsonReader(*pattern, reader.where() + ".pattern").String("String"));
  PENSTOCK_TRY_ASSIGN(step.to, reader.String("content"));
  if (fused_ && WellFormedLength(step.from) != step.from.size()) {
    return MakeError(ErrorCode::kUnsupported,
                     "[text.decoder] {}: Replace of \"{}\" behind Fuse is not supported, wanted a "
                     "pattern of one character",
                     reader.where(), step.from);
  }
  steps_.push_back(std::move(step));
  return {};
}

Result<> Decoder::AddSteps(const Json& json, const std::string& where, int depth) {
  if (depth > kMaxDepth || steps_.size() > kMaxSteps) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[text.decoder] {}: more than {} steps or {} levels", where, kMaxSteps,
                     kMaxDepth);
  }
  const JsonReader reader(json, where);
  PENSTOCK_TRY_ASSIGN(const std::string type, reader.String("type"));
  if (type == "Sequence") {
    const Json* list = reader.Find("decoders");
    if (list == nullptr || !list->is_array()) {
      return MakeError(ErrorCode::kInvalidArgument, "[text.decoder] {}: decoders: wanted a list",
                       where);
    }
    for (size_t i = 0; i < list->size(); ++i) {
      PENSTOCK_TRY(AddSteps((*list)[i], fmt::format("{}[{}]", where, i), depth + 1));
    }
    return {};
  }
  if (type == "ByteLevel") {
    steps_.push_back({Kind::kByteLevel});
    fused_ = true;  // it gives one text
    return {};
  }
  if (type == "ByteFallback") {
    steps_.push_back({Kind::kByteFallback});
    return {};
  }
  if (type == "Fuse") {
    fused_ = true;
    return {};
  }
  if (type == "Strip") {
    return AddStrip(reader);
  }
  if (type == "Replace") {
    return AddReplace(reader);
  }
  if (type == "Metaspace") {
    Step step{Kind::kMetaspace};
    PENSTOCK_TRY_ASSIGN(step.from, reader.StringOr("replacement", kSpaceMark));
    PENSTOCK_TRY_ASSIGN(const bool old_prefix, reader.BoolOr("add_prefix_space", true));
    PENSTOCK_TRY_ASSIGN(const std::string scheme,
                        reader.StringOr("prepend_scheme", old_prefix ? "always" : "never"));
    step.to = " ";
    step.drop_first = scheme != "never";
    steps_.push_back(std::move(step));
    return {};
  }
  return MakeError(ErrorCode::kUnsupported,
                   "[text.decoder] {}: decoder \"{}\" is not supported, wanted one of: {}", where,
                   type, kSupported);
}

DecodeState Decoder::Start(bool at_start) const {
  DecodeState state;
  state.first_token = at_start;
  for (const Step& step : steps_) {
    if (step.kind == Kind::kStripText) {
      state.strip_left.push_back(at_start ? step.start : 0);
    }
  }
  return state;
}

void Decoder::Apply(const Step& step, uint32_t* strip_left, bool first_token, bool literal,
                    std::string& text) {
  switch (step.kind) {
    case Kind::kByteLevel:
      if (!literal) {
        text = ByteLevelToBytes(text);
      }
      break;
    case Kind::kByteFallback:
      if (const int byte = literal ? -1 : ByteOfTokenName(text); byte >= 0) {
        text.assign(1, static_cast<char>(byte));
      }
      break;
    case Kind::kReplace:
      ReplaceAll(text, step.from, step.to);
      break;
    case Kind::kStripToken: {
      size_t begin = 0;
      for (uint32_t i = 0; i < step.start && text.compare(begin, step.from.size(), step.from) == 0;
           ++i) {
        begin += step.from.size();
      }
      text.erase(0, begin);
      for (uint32_t i = 0; i < step.stop && text.ends_with(step.from); ++i) {
        text.resize(text.size() - step.from.size());
      }
      break;
    }
    case Kind::kStripText: {
      size_t begin = 0;
      while (*strip_left > 0 && text.compare(begin, step.from.size(), step.from) == 0) {
        begin += step.from.size();
        --*strip_left;
      }
      text.erase(0, begin);
      if (!text.empty()) {
        *strip_left = 0;
      }
      break;
    }
    case Kind::kMetaspace:
      ReplaceAll(text, step.from, step.drop_first && first_token ? "" : step.to);
      break;
    case Kind::kJoin:
      if (!first_token) {
        text.insert(0, " ");
      }
      break;
  }
}

void Decoder::Append(DecodeState& state, std::string_view token, bool literal,
                     std::string& out) const {
  std::string text(token);
  size_t stripping = 0;
  for (const Step& step : steps_) {
    uint32_t* left = step.kind == Kind::kStripText ? &state.strip_left[stripping++] : nullptr;
    Apply(step, left, state.first_token, literal, text);
  }
  state.first_token = false;
  out += text;
}

}  // namespace penstock::text
