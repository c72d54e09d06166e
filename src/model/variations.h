// Variations of a decoder that any Llama-like family takes: keys of config.json that change how
// layers are joined, each described in docs/formats.md. One file per variation; here is what their
// readers share, and the check that they do not contradict each other.

#pragma once

#include <initializer_list>
#include <optional>
#include <string_view>
#include <vector>

#include "base/json_reader.h"
#include "base/result.h"

namespace penstock::model {

// The keys of all variations, for families that take none of them.
const std::vector<std::string_view>& VariationKeys();

// The member `key`, which is an object with no keys but `known`. Errors: kInvalidArgument (not an
// object; an unknown key: named, with those that exist and the nearest). REQUIRES: it is there.
Result<JsonReader> ReadVariation(const JsonReader& config, std::string_view key,
                                 std::initializer_list<std::string_view> known);

// Whether `key` is `yes`; it must be `yes` or `no`. Absent: `fallback`, or required when that is
// empty.
Result<bool> ReadChoice(const JsonReader& object, std::string_view key, std::string_view yes,
                        std::string_view no, std::string_view fallback);

// A key that is one of a variation's but for its case, its underscores or two of its letters would
// be passed over in silence, and the model would be another one. For every family. Errors:
// kInvalidArgument naming the key and the one that was meant.
Result<> RefuseNearVariations(const JsonReader& config);

// The same for the object around a `text_config`, where no key of a variation is read. Errors:
// kInvalidArgument naming the key.
Result<> RefuseVariationsOutside(const JsonReader& outer);

// Keys that exclude each other. Errors: kInvalidArgument naming both.
Result<> CheckVariations(const JsonReader& config);

}  // namespace penstock::model
