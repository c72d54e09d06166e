// Reading and writing JSON, with errors that name the file and the key.
//
// Numbers keep their exact text where it matters to nobody; NaN and infinity are refused on reading
// and never written. The whole library: in headers, include base/json_reader.h.

#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json_reader.h"
#include "base/result.h"

namespace penstock {

// Parses `text`; `source` names it in errors (a path). Nesting deeper than 128 is refused.
// Errors: kCorruptData with line and column.
Result<Json> ParseJson(std::string_view text, const std::string& source);

// ReadFile and ParseJson.
Result<Json> ReadJsonFile(const std::string& path);

// The members of the object `key` of the text's object, all of them strings, in the order of the
// text; everything else is skipped. Linear, whatever the number of members (a Json object searches
// through all of them). Errors: kCorruptData: not JSON, no such object, a member that is no string.
Result<std::vector<std::pair<std::string, std::string>>> ParseStringMap(std::string_view text,
                                                                        const std::string& source,
                                                                        std::string_view key);

// Writes without NaN or infinity (null instead), `indent` < 0 for one line. Invalid UTF-8 becomes
// U+FFFD.
std::string DumpJson(const Json& value, int indent = -1);

}  // namespace penstock
