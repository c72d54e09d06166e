// Keys of a config.json that a family knows, so that one that it doesn't know is refused instead of
// being ignored: it may change what the model computes.

#pragma once

#include <span>
#include <string_view>

#include "base/json_reader.h"
#include "base/result.h"

namespace penstock::model {

// `known`: keys that the family reads. Keys that never change a forward pass (names, types, tokens,
// training and caching switches) are known to all. A key with the value null, false, 0 or an empty
// list counts as absent. Errors: kUnsupported, naming the key.
Result<> RefuseUnknownKeys(const JsonReader& config, std::span<const std::string_view> known);

// A key that is one or two letters off a size that every family reads, where that one is missing,
// would leave its default in silence. Errors: kInvalidArgument, naming both.
Result<> RefuseNearKeys(const JsonReader& config);

// A value of a known key that the family does not compute.
template <class T>
Error UnsupportedValue(const JsonReader& config, std::string_view key, const T& got,
                       std::string_view wanted) {
  return MakeError(ErrorCode::kUnsupported, "[model.config] {}: {}: got {}, supported is {}",
                   config.where(), key, got, wanted);
}

}  // namespace penstock::model
