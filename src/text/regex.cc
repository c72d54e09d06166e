#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/regex.h"

#include <pcre2.h>

#include <algorithm>
#include <array>

#include "text/utf8.h"

namespace penstock::text {
namespace {

constexpr std::string_view kWordMembers = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
constexpr size_t kLongestPattern = 16384;

Error Refused(std::string_view pattern, size_t offset, std::string_view what,
              const std::string& source) {
  return MakeError(ErrorCode::kUnsupported,
                   "[text.regex] {}: pattern {} has {} at offset {}, which is not supported",
                   source, pattern, what, offset);
}

// Oniguruma's \p{Han} is the script; PCRE2 would take script extensions. Names of one or two
// letters are categories.
std::string TranslateProperty(std::string_view pattern, size_t offset) {
  const size_t close = pattern.find('}', offset);
  if (offset + 2 >= pattern.size() || pattern[offset + 2] != '{' ||
      close == std::string_view::npos) {
    return {};
  }
  std::string_view name = pattern.substr(offset + 3, close - offset - 3);
  const bool negated = !name.empty() && name[0] == '^';
  name.remove_prefix(negated ? 1 : 0);
  const bool letters = std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
  });
  if (name.size() <= 2 || !letters || name == "Alphabetic" || name == "White_Space") {
    return {};
  }
  return fmt::format("\\{}{{{}sc:", pattern[offset + 1], negated ? "^" : "");
}

// What replaces the escape \c, or "" to leave it as it is.
Result<std::string> TranslateEscape(std::string_view pattern, size_t offset, bool in_class,
                                    const std::string& source) {
  const char c = pattern[offset + 1];
  switch (c) {
    case 's':
      return std::string("\\p{White_Space}");
    case 'S':
      return std::string("\\P{White_Space}");
    case 'd':
      return std::string("\\p{Nd}");
    case 'D':
      return std::string("\\P{Nd}");
    case 'w':
      return in_class ? std::string(kWordMembers) : fmt::format("[{}]", kWordMembers);
    case 'W':
      if (!in_class) {
        return fmt::format("[^{}]", kWordMembers);
      }
      break;
    case 'p':
    case 'P':
      return TranslateProperty(pattern, offset);
    case 'r':
    case 'n':
    case 't':
    case 'f':
    case 'x':
    case 'u':
      return std::string();
    case 'A':
    case 'z':
    case 'Z':
      if (!in_class) {
        return std::string();
      }
      break;
    default: {
      const auto byte = static_cast<uint8_t>(c);
      const bool letter_or_digit =
          (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
      if (byte < 0x80 && !letter_or_digit) {
        return std::string();  // a quoted sign
      }
    }
  }
  return Refused(pattern, offset, fmt::format("the escape \\{}", c), source);
}

}  // namespace

Result<std::string> TranslatePattern(std::string_view pattern, const std::string& source) {
  if (pattern.size() > kLongestPattern) {
    return MakeError(ErrorCode::kUnsupported,
                     "[text.regex] {}: a pattern of {} bytes, wanted up to {}", source,
                     pattern.size(), kLongestPattern);
  }
  if (FindIllFormed(pattern, 0) != pattern.size()) {
    return MakeError(ErrorCode::kInvalidArgument, "[text.regex] {}: a pattern is not valid UTF-8",
                     source);
  }
  std::string out;
  size_t class_start = std::string_view::npos;  // offset behind "[" or "[^"
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    const bool in_class = class_start != std::string_view::npos;
    if (c == '\\') {
      if (i + 1 == pattern.size()) {
        return Refused(pattern, i, "a lone backslash", source);
      }
      PENSTOCK_TRY_ASSIGN(const std::string replaced,
                          TranslateEscape(pattern, i, in_class, source));
      if (!replaced.empty()) {
        out += replaced;
        if (pattern[i + 1] == 'p' || pattern[i + 1] == 'P') {
          i += pattern[i + 3] == '^' ? 2
                                     : 1;  // the brace and a negation are part of what replaces it
        }
      } else if (pattern[i + 1] == 'u') {
        // \uHHHH is \x{HHHH} in PCRE2.
        if (i + 6 > pattern.size()) {
          return Refused(pattern, i, "an unfinished \\u", source);
        }
        out += fmt::format("\\x{{{}}}", pattern.substr(i + 2, 4));
        i += 4;
      } else {
        out += pattern.substr(i, 2);
      }
      ++i;
      continue;
    }
    if (!in_class && c == '[') {
      class_start = i + 1 < pattern.size() && pattern[i + 1] == '^' ? i + 2 : i + 1;
      out += pattern.substr(i, class_start - i);
      i = class_start - 1;
      continue;
    }
    if (in_class) {
      if (c == '[') {
        return Refused(pattern, i, "a class inside a class", source);
      }
      if (c == '&' && i + 1 < pattern.size() && pattern[i + 1] == '&') {
        return Refused(pattern, i, "a class intersection", source);
      }
      if (c == ']' && i > class_start) {
        class_start = std::string_view::npos;
      }
    }
    out += c;
  }
  return out;
}

struct Regex::Code {
  explicit Code(pcre2_code* compiled) : code(compiled) {}

  ~Code() { pcre2_code_free(code); }

  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;

  pcre2_code* code;
};

Result<Regex> Regex::Compile(const std::string& pattern, const std::string& source) {
  PENSTOCK_TRY_ASSIGN(const std::string translated, TranslatePattern(pattern, source));
  int status = 0;
  PCRE2_SIZE offset = 0;
  pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
  pcre2_set_parens_nest_limit(context, 100);
  pcre2_set_newline(context, PCRE2_NEWLINE_LF);
  pcre2_code* code = pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | PCRE2_NO_AUTO_CAPTURE,
      &status, &offset, context);
  pcre2_compile_context_free(context);
  if (code == nullptr) {
    std::array<PCRE2_UCHAR, 256> message{};
    pcre2_get_error_message(status, message.data(), message.size());
    return MakeError(ErrorCode::kInvalidArgument,
                     "[text.regex] {}: pattern {}: {} at offset {}, wanted a regular expression",
                     source, translated, reinterpret_cast<const char*>(message.data()), offset);
  }
  auto owned = std::make_shared<const Code>(code);
  // Without JIT (an old processor, a policy against writable code) the interpreter does the same,
  // slower.
  (void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  return Regex(pattern, std::move(owned));
}

Result<> Regex::Cover(std::string_view text, size_t base, std::vector<Match>& out) const {
  struct Frees {
    void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }

    void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }

    void operator()(pcre2_jit_stack* stack) const { pcre2_jit_stack_free(stack); }
  };

  const std::unique_ptr<pcre2_match_data, Frees> data(pcre2_match_data_create(1, nullptr));
  const std::unique_ptr<pcre2_match_context, Frees> context(pcre2_match_context_create(nullptr));
  // Backtracking over one long run of spaces takes a step per space; anything far above that is a
  // runaway pattern.
  const size_t limit = std::min<size_t>(10'000'000 + 20 * text.size(), 1'000'000'000);
  pcre2_set_match_limit(context.get(), static_cast<uint32_t>(limit));
  pcre2_set_heap_limit(context.get(), 256 * 1024);
  std::unique_ptr<pcre2_jit_stack, Frees> stack;
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  size_t covered = 0;
  size_t from = 0;
  while (from <= text.size()) {
    uint32_t options = PCRE2_NO_UTF_CHECK;
    int status =
        pcre2_match(code_->code, subject, text.size(), from, options, data.get(), context.get());
    if (status == PCRE2_ERROR_JIT_STACKLIMIT) {
      if (stack == nullptr) {
        stack.reset(pcre2_jit_stack_create(64 * 1024, 64 * 1024 * 1024, nullptr));
        pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
        continue;
      }
      status = pcre2_match(code_->code, subject, text.size(), from, options | PCRE2_NO_JIT,
                           data.get(), context.get());
    }
    if (status == PCRE2_ERROR_NOMATCH) {
      break;
    }
    if (status < 0) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "[text.regex] pattern {} gives up on a text of {} bytes (PCRE2 error {}), "
                       "wanted a pattern that needs few steps per character",
                       pattern_, text.size(), status);
    }
    const PCRE2_SIZE* vector = pcre2_get_ovector_pointer(data.get());
    const size_t begin = std::max<size_t>(vector[0], covered);  // \K could move it
    const size_t end = std::max<size_t>(vector[1], begin);
    if (begin > covered) {
      out.push_back({base + covered, base + begin, false});
    }
    out.push_back({base + begin, base + end, true});
    covered = end;
    from = end > from ? end : from;
    if (begin == end) {  // an empty match: go on behind the next character
      from = end < text.size() ? end + SequenceLength(text[end]) : text.size() + 1;
    }
  }
  if (covered < text.size()) {
    out.push_back({base + covered, base + text.size(), false});
  }
  return {};
}

}  // namespace penstock::text
