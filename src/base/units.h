// Numbers for people: bytes, seconds and rates with their unit, and the reverse for flags.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace penstock {

// "16.06 GB", "512 B": decimal units (1 GB = 10^9 bytes), three or four significant digits.
std::string FormatBytes(double bytes);

// "1.24 s", "83.1 ms", "4.2 us".
std::string FormatSeconds(double seconds);

// "12,345,678".
std::string FormatCount(int64_t count);

// "1 stage", "2 stages": the number and what it counts. `plural` where an s does not make it.
template <class Number>
std::string Counted(Number count, std::string_view noun, std::string_view plural = {}) {
  if (count == 1 || plural.empty()) {
    return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
  }
  return fmt::format("{} {}", count, plural);
}

// "1500000", "1.5GB" (10^9), "1.5GiB" (2^30), "1500M"; case-insensitive, an optional trailing B.
// Errors: kInvalidArgument naming `what`.
Result<int64_t> ParseBytes(std::string_view text, std::string_view what);

// The candidate nearest to `word` by edit distance, or "" when none is near. For "did you mean".
template <class Range>
std::string NearestName(std::string_view word, const Range& candidates);

// Edit distance with transpositions counted as two. O(|a| |b|).
size_t EditDistance(std::string_view a, std::string_view b);

template <class Range>
std::string NearestName(std::string_view word, const Range& candidates) {
  std::string best;
  size_t best_distance = std::max<size_t>(2, word.size() / 3) + 1;
  for (const auto& candidate : candidates) {
    const size_t distance = EditDistance(word, std::string_view(candidate));
    if (distance < best_distance) {
      best_distance = distance;
      best = std::string(candidate);
    }
  }
  return best;
}

}  // namespace penstock
