// Reading TOML with errors that name the file, the line and the key, and the nearest known key for
// one that nobody knows.
//
// A table remembers which keys were asked for. After reading all that it knows, the caller ends
// with NoUnknownKeys():
//
//   PENSTOCK_TRY_ASSIGN(const TomlTable file, ReadTomlFile("system.toml"));
//   PENSTOCK_TRY_ASSIGN(const double watts, file.Number("power_w", 0, 1e6));
//   PENSTOCK_TRY(file.NoUnknownKeys());
//
// toml++ stays inside toml.cc.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace penstock {

namespace toml_internal {
struct Node;
}

// One table of a TOML file. Copies share the content and the memory of asked keys. Not thread-safe.
// `Get`-like reads (Int, Number, ...) refuse a missing key, `...Or` take the default.
class TomlTable {
 public:
  // An empty table; `source` names it in errors.
  explicit TomlTable(std::string source);

  bool Has(std::string_view key) const;
  // Keys in the order of the file.
  std::vector<std::string> keys() const;

  bool empty() const { return keys().empty(); }

  Result<int64_t> Int(std::string_view key, int64_t low, int64_t high) const;
  Result<int64_t> IntOr(std::string_view key, int64_t fallback, int64_t low, int64_t high) const;
  // Integers count as numbers; NaN and infinity are refused.
  Result<double> Number(std::string_view key, double low, double high) const;
  Result<double> NumberOr(std::string_view key, double fallback, double low, double high) const;
  Result<bool> Bool(std::string_view key) const;
  Result<bool> BoolOr(std::string_view key, bool fallback) const;
  Result<std::string> String(std::string_view key) const;
  Result<std::string> StringOr(std::string_view key, std::string fallback) const;
  // One of `choices`, else an error that lists them and the nearest.
  Result<std::string> ChoiceOr(std::string_view key, std::string fallback,
                               const std::vector<std::string>& choices) const;
  // A number or a list of numbers, as one list. Missing: empty.
  Result<std::vector<double>> NumbersOr(std::string_view key, double low, double high) const;
  Result<std::vector<int64_t>> IntsOr(std::string_view key, int64_t low, int64_t high) const;
  // A string or a list of strings, as one list. Missing: empty.
  Result<std::vector<std::string>> StringsOr(std::string_view key) const;
  // A list of rows of `columns` numbers each. Missing: empty.
  Result<std::vector<std::vector<double>>> RowsOr(std::string_view key, size_t columns) const;

  bool IsTable(std::string_view key) const;
  bool IsNumber(std::string_view key) const;
  bool IsString(std::string_view key) const;

  // The table under `key`, an empty one where it is missing. Errors: kInvalidArgument (not a
  // table).
  Result<TomlTable> Table(std::string_view key) const;
  // The tables of an array `[[key]]`. Missing: empty.
  Result<std::vector<TomlTable>> Tables(std::string_view key) const;

  // kInvalidArgument for the first key, here or in a table that was opened, that no read asked for:
  // file, line, key and the nearest key that was.
  Result<> NoUnknownKeys() const;

  // Sets `section.key` from text: a TOML value, or a plain string where it is none (quotes
  // optional). Missing tables are made. `flag` names it in errors, for instance "--set". Errors:
  // kInvalidArgument (no '=', no key, a value where a table is wanted).
  Result<> Set(std::string_view assignment, const std::string& flag);

  // "system.toml:12: device.power_w" for errors of the caller's own checks.
  std::string Place(std::string_view key) const;

  const std::string& source() const { return source_; }

  // The value of a key as TOML-like text, "nothing" where missing.
  std::string Shown(std::string_view key) const;

 private:
  friend Result<TomlTable> ParseToml(std::string_view text, const std::string& source);
  TomlTable(std::shared_ptr<toml_internal::Node> node, std::string source, std::string path);

  const toml_internal::Node* Find(std::string_view key) const;
  Error Wrong(std::string_view key, std::string_view wanted) const;

  std::shared_ptr<toml_internal::Node> node_;
  std::string source_;
  std::string path_;  // dotted name of this table, "" at the top
};

// Errors: kCorruptData with line and column; kInvalidArgument (nested too deeply).
Result<TomlTable> ParseToml(std::string_view text, const std::string& source);

// ReadFile (at most 16 MB) and ParseToml.
Result<TomlTable> ReadTomlFile(const std::string& path);

}  // namespace penstock
