// Text inside SVG and HTML.

#pragma once

#include <string>
#include <string_view>

namespace penstock {

// With & < > " as entities and without control characters other than tab and newline, which XML
// does not allow. O(length).
std::string EscapeMarkup(std::string_view text);

}  // namespace penstock
