// Stop strings in streamed text, wherever the tokens cut them.
//
// Text passes as soon as it cannot be part of a stop string any more; what might begin one is held
// back, and given back when it turns out not to be one or when the text ends.

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace penstock::text {

// One per sequence; not thread-safe.
class StopFilter {
 public:
  // Errors: kInvalidArgument for an empty stop string or more than 64 of them.
  static Result<StopFilter> Make(std::vector<std::string> stops);

  // What may be shown now. Once a stop string has come, the text before it, and nothing afterwards.
  // Of several stop strings the one that ends first counts; of those ending together, the longest.
  // O(text x stop strings).
  std::string Add(std::string_view text);

  // The text is at its end: what was held back. Nothing once stopped.
  std::string Finish();

  bool stopped() const { return matched_ >= 0; }

  // Which stop string came. REQUIRES: stopped().
  const std::string& matched() const;

 private:
  explicit StopFilter(std::vector<std::string> stops);

  std::vector<std::string> stops_;
  std::vector<std::vector<size_t>> failures_;  // per stop string: Knuth-Morris-Pratt
  std::vector<size_t> progress_;               // bytes of each that the text ends with now
  std::string held_;
  int matched_ = -1;
};

}  // namespace penstock::text
