// Patterns of tokenizer files, run by PCRE2 (UTF, Unicode classes, JIT).
//
// Tokenizer files are written for Oniguruma. What the two read differently is rewritten (\s, \S,
// \w, \d to Unicode properties) or refused by name (\b, \h, class intersections, nested classes),
// never guessed.

#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace penstock::text {

// Part of a text: [begin, end), and whether the pattern matched it.
struct Match {
  size_t begin = 0;
  size_t end = 0;
  bool matched = false;
};

// Immutable; thread-safe.
class Regex {
 public:
  // Errors: kInvalidArgument (does not compile; names `source`, pattern and offset), kUnsupported.
  static Result<Regex> Compile(const std::string& pattern, const std::string& source);

  // Appends a complete cover of well-formed `text`: matches and the gaps between them, in order.
  // Empty matches appear as empty parts. Offsets are relative to `base`, which is added to them.
  // Errors: kInvalidArgument when a match takes more steps than a limit that grows with the text.
  Result<> Cover(std::string_view text, size_t base, std::vector<Match>& out) const;

  const std::string& pattern() const { return pattern_; }

 private:
  struct Code;

  Regex(std::string pattern, std::shared_ptr<const Code> code)
      : pattern_(std::move(pattern)), code_(std::move(code)) {}

  std::string pattern_;
  std::shared_ptr<const Code> code_;
};

// The pattern in PCRE2's dialect. Errors as Compile. For tests.
Result<std::string> TranslatePattern(std::string_view pattern, const std::string& source);

}  // namespace penstock::text
