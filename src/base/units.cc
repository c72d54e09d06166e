#include "base/units.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <vector>

namespace penstock {
namespace {

std::string Scaled(double value, std::string_view unit) {
  const double size = std::abs(value);
  const int digits = size >= 100 ? 1 : 2;
  return fmt::format("{:.{}f} {}", value, digits, unit);
}

}  // namespace

std::string FormatBytes(double bytes) {
  constexpr std::array<std::string_view, 6> kUnits = {"B", "kB", "MB", "GB", "TB", "PB"};
  double value = bytes;
  size_t unit = 0;
  while (std::abs(value) >= 999.95 && unit + 1 < kUnits.size()) {
    value /= 1000.0;
    ++unit;
  }
  if (unit == 0) {
    return fmt::format("{:.0f} B", value);
  }
  return Scaled(value, kUnits[unit]);
}

std::string FormatSeconds(double seconds) {
  // From 999.95 on, the smaller unit would read "1000.0".
  constexpr double kWhole = 0.99995;
  const double size = std::abs(seconds);
  if (size >= kWhole || size == 0.0) {
    return Scaled(seconds, "s");
  }
  if (size >= kWhole * 1e-3) {
    return Scaled(seconds * 1e3, "ms");
  }
  if (size >= kWhole * 1e-6) {
    return Scaled(seconds * 1e6, "us");
  }
  return Scaled(seconds * 1e9, "ns");
}

std::string FormatCount(int64_t count) {
  std::string digits = std::to_string(count);
  const size_t first = digits[0] == '-' ? 1 : 0;
  for (size_t i = digits.size(); i > first + 3;) {
    i -= 3;
    digits.insert(i, ",");
  }
  return digits;
}

Result<int64_t> ParseBytes(std::string_view text, std::string_view what) {
  const Error wrong =
      MakeError(ErrorCode::kInvalidArgument,
                "[base.units] {}: got '{}', wanted bytes, for instance 1500000000, 1.5GB or 1.5GiB",
                what, text);
  double number = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (code != std::errc() || !(number >= 0)) {
    return wrong;
  }
  std::string suffix;
  for (const char c : std::string_view(end, static_cast<size_t>(text.data() + text.size() - end))) {
    if (c != ' ') {
      suffix += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
  }
  if (!suffix.empty() && suffix.back() == 'b') {
    suffix.pop_back();
  }
  const bool binary = !suffix.empty() && suffix.back() == 'i';
  if (binary) {
    suffix.pop_back();
  }
  const size_t place = suffix.empty() ? 0 : std::string_view("kmgtp").find(suffix);
  const size_t power = suffix.empty() ? 0 : place + 1;
  if (suffix.size() > 1 || place == std::string_view::npos || (binary && power == 0)) {
    return wrong;
  }
  const double bytes = number * std::pow(binary ? 1024.0 : 1000.0, static_cast<double>(power));
  if (bytes > 9e18) {
    return wrong;
  }
  return static_cast<int64_t>(bytes);
}

size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) {
    row[j] = j;
  }
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

}  // namespace penstock
