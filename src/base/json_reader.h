// Typed reads of JSON objects, and the name Json. For headers and for whoever only hands values on:
// to look into a Json or to make one, include base/json.h, which takes a compiler a second.

#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace penstock {

using Json = nlohmann::ordered_json;

// Typed reads of the members of one object. Each error names source, key, what was found and what
// is legal. A member that is absent or null counts as missing: `Get...` refuses it, `...Or` takes
// the default. The object must outlive the reader.
class JsonReader {
 public:
  // `where` names the object inside its file, for instance "config.json: rope_scaling".
  JsonReader(const Json& object, std::string where);

  bool Has(std::string_view key) const;
  bool Contains(std::string_view key) const;     // true for null too
  const Json* Find(std::string_view key) const;  // null when missing

  Result<int64_t> Int(std::string_view key, int64_t low, int64_t high) const;
  Result<int64_t> IntOr(std::string_view key, int64_t fallback, int64_t low, int64_t high) const;
  Result<double> Number(std::string_view key, double low, double high) const;
  Result<double> NumberOr(std::string_view key, double fallback, double low, double high) const;
  Result<bool> Bool(std::string_view key) const;
  Result<bool> BoolOr(std::string_view key, bool fallback) const;
  Result<std::string> String(std::string_view key) const;
  Result<std::string> StringOr(std::string_view key, std::string fallback) const;
  // A number or a list of numbers, as one list. Missing: empty.
  Result<std::vector<int64_t>> IntsOr(std::string_view key, int64_t low, int64_t high) const;
  Result<std::vector<double>> NumbersOr(std::string_view key, size_t max_count) const;

  const std::string& where() const { return where_; }

  const Json& object() const { return object_; }

 private:
  Error Wrong(std::string_view key, std::string_view wanted) const;

  const Json& object_;
  std::string where_;
};

}  // namespace penstock
