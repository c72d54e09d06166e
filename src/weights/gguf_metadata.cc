// Typed reads of GGUF metadata; the values were bounds-checked by the parser.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "weights/byte_reader.h"
#include "weights/gguf.h"

namespace penstock::weights {
namespace {

template <class T>
T Load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

// Nothing when the type is no integer, or the number exceeds int64.
std::optional<int64_t> IntegerAt(GgufType type, const std::byte* from) {
  switch (type) {
    case GgufType::kUint8:
    case GgufType::kBool:
      return Load<uint8_t>(from);
    case GgufType::kInt8:
      return Load<int8_t>(from);
    case GgufType::kUint16:
      return Load<uint16_t>(from);
    case GgufType::kInt16:
      return Load<int16_t>(from);
    case GgufType::kUint32:
      return Load<uint32_t>(from);
    case GgufType::kInt32:
      return Load<int32_t>(from);
    case GgufType::kInt64:
      return Load<int64_t>(from);
    case GgufType::kUint64: {
      const auto wide = Load<uint64_t>(from);
      if (wide > static_cast<uint64_t>(INT64_MAX)) {
        return std::nullopt;
      }
      return static_cast<int64_t>(wide);
    }
    case GgufType::kFloat32:
    case GgufType::kFloat64:
    case GgufType::kString:
    case GgufType::kArray:
      break;
  }
  return std::nullopt;
}

std::string_view StringAt(const std::byte* from) {
  return {reinterpret_cast<const char*>(from) + 8, static_cast<size_t>(Load<uint64_t>(from))};
}

std::string Described(const GgufValue& value) {
  if (value.type == GgufType::kArray) {
    return fmt::format("an array of {} x {}", value.count, GgufTypeName(value.element));
  }
  if (value.type == GgufType::kString) {
    return fmt::format("the string \"{}\"", StringAt(value.data.data()).substr(0, 40));
  }
  if (value.type == GgufType::kFloat32) {
    return fmt::format("{} (float32)", Load<float>(value.data.data()));
  }
  if (value.type == GgufType::kFloat64) {
    return fmt::format("{} (float64)", Load<double>(value.data.data()));
  }
  const auto number = IntegerAt(value.type, value.data.data());
  return fmt::format("{} ({})",
                     number.has_value() ? fmt::to_string(*number) : "a number above 2^63",
                     GgufTypeName(value.type));
}

}  // namespace

std::string_view GgufTypeName(GgufType type) {
  static constexpr std::string_view kNames[] = {"uint8",  "int8",    "uint16", "int16",  "uint32",
                                                "int32",  "float32", "bool",   "string", "array",
                                                "uint64", "int64",   "float64"};
  return kNames[static_cast<size_t>(type)];
}

size_t GgufTypeBytes(GgufType type) {
  switch (type) {
    case GgufType::kUint8:
    case GgufType::kInt8:
    case GgufType::kBool:
      return 1;
    case GgufType::kUint16:
    case GgufType::kInt16:
      return 2;
    case GgufType::kUint32:
    case GgufType::kInt32:
    case GgufType::kFloat32:
      return 4;
    case GgufType::kUint64:
    case GgufType::kInt64:
    case GgufType::kFloat64:
      return 8;
    case GgufType::kString:
    case GgufType::kArray:
      break;
  }
  return 0;
}

const GgufValue* GgufMetadata::Find(std::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

std::vector<std::string_view> GgufMetadata::KeysThatBeginWith(std::string_view prefix) const {
  std::vector<std::string_view> keys;
  for (const auto& [key, value] : values_) {
    if (key.starts_with(prefix)) {
      keys.push_back(key);
    }
  }
  std::sort(keys.begin(), keys.end());
  return keys;
}

Error GgufMetadata::Wrong(std::string_view key, std::string_view wanted) const {
  return MakeError(ErrorCode::kCorruptData, "[weights.gguf] {}: metadata {}: got {}, wanted {}",
                   path_, key, Described(*Find(key)), wanted);
}

Error GgufMetadata::Missing(std::string_view key, std::string_view wanted) const {
  return MakeError(ErrorCode::kCorruptData, "[weights.gguf] {}: metadata {} is missing, wanted {}",
                   path_, key, wanted);
}

Result<std::optional<int64_t>> GgufMetadata::MaybeInt(std::string_view key, int64_t low,
                                                      int64_t high) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) {
    return std::optional<int64_t>();
  }
  const auto number =
      value->type == GgufType::kBool ? std::nullopt : IntegerAt(value->type, value->data.data());
  if (!number.has_value() || *number < low || *number > high) {
    return Wrong(key, fmt::format("an integer from {} to {}", low, high));
  }
  return number;
}

Result<int64_t> GgufMetadata::Int(std::string_view key, int64_t low, int64_t high) const {
  PENSTOCK_TRY_ASSIGN(const auto number, MaybeInt(key, low, high));
  if (!number.has_value()) {
    return Missing(key, fmt::format("an integer from {} to {}", low, high));
  }
  return *number;
}

Result<std::optional<double>> GgufMetadata::MaybeNumber(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) {
    return std::optional<double>();
  }
  std::optional<double> number;
  if (value->type == GgufType::kFloat32) {
    number = Load<float>(value->data.data());
  } else if (value->type == GgufType::kFloat64) {
    number = Load<double>(value->data.data());
  } else if (value->type != GgufType::kBool) {
    const auto integer = IntegerAt(value->type, value->data.data());
    number =
        integer.has_value() ? std::optional<double>(static_cast<double>(*integer)) : std::nullopt;
  }
  if (!number.has_value() || !std::isfinite(*number)) {
    return Wrong(key, "a finite number");
  }
  return number;
}

Result<double> GgufMetadata::Number(std::string_view key) const {
  PENSTOCK_TRY_ASSIGN(const auto number, MaybeNumber(key));
  if (!number.has_value()) {
    return Missing(key, "a number");
  }
  return *number;
}

Result<std::optional<bool>> GgufMetadata::MaybeBool(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) {
    return std::optional<bool>();
  }
  if (value->type != GgufType::kBool) {
    return Wrong(key, "a bool");
  }
  return std::optional<bool>(Load<uint8_t>(value->data.data()) != 0);
}

Result<bool> GgufMetadata::Bool(std::string_view key) const {
  PENSTOCK_TRY_ASSIGN(const auto value, MaybeBool(key));
  if (!value.has_value()) {
    return Missing(key, "a bool");
  }
  return *value;
}

Result<std::optional<std::string_view>> GgufMetadata::MaybeString(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) {
    return std::optional<std::string_view>();
  }
  if (value->type != GgufType::kString) {
    return Wrong(key, "a string");
  }
  return std::optional<std::string_view>(StringAt(value->data.data()));
}

Result<std::string_view> GgufMetadata::String(std::string_view key) const {
  PENSTOCK_TRY_ASSIGN(const auto value, MaybeString(key));
  if (!value.has_value()) {
    return Missing(key, "a string");
  }
  return *value;
}

Result<const GgufValue*> GgufMetadata::Array(std::string_view key, std::string_view wanted,
                                             size_t max_count) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) {
    return value;
  }
  if (value->type != GgufType::kArray || value->count > max_count) {
    return Wrong(key, fmt::format("an array of at most {} {}", max_count, wanted));
  }
  return value;
}

Result<std::vector<int64_t>> GgufMetadata::IntsOr(std::string_view key, int64_t low, int64_t high,
                                                  size_t max_count) const {
  PENSTOCK_TRY_ASSIGN(const GgufValue* value, Array(key, "integers", max_count));
  std::vector<int64_t> numbers;
  if (value == nullptr) {
    return numbers;
  }
  if (value->element == GgufType::kString || value->element == GgufType::kArray) {
    return Wrong(key, "an array of integers");
  }
  numbers.reserve(static_cast<size_t>(value->count));
  const size_t step = GgufTypeBytes(value->element);
  for (size_t i = 0; i < value->count; ++i) {
    const auto number = IntegerAt(value->element, value->data.data() + i * step);
    if (!number.has_value() || *number < low || *number > high) {
      return Wrong(key, fmt::format("integers from {} to {} (element {} is none)", low, high, i));
    }
    numbers.push_back(*number);
  }
  return numbers;
}

Result<std::vector<float>> GgufMetadata::FloatsOr(std::string_view key, size_t max_count) const {
  PENSTOCK_TRY_ASSIGN(const GgufValue* value, Array(key, "float32 numbers", max_count));
  std::vector<float> numbers;
  if (value == nullptr) {
    return numbers;
  }
  if (value->element != GgufType::kFloat32) {
    return Wrong(key, "an array of float32");
  }
  numbers.resize(static_cast<size_t>(value->count));
  if (!numbers.empty()) {
    std::memcpy(numbers.data(), value->data.data(), value->data.size());
  }
  return numbers;
}

Result<std::vector<std::string_view>> GgufMetadata::StringsOr(std::string_view key,
                                                              size_t max_count) const {
  PENSTOCK_TRY_ASSIGN(const GgufValue* value, Array(key, "strings", max_count));
  std::vector<std::string_view> strings;
  if (value == nullptr) {
    return strings;
  }
  if (value->element != GgufType::kString) {
    return Wrong(key, "an array of strings");
  }
  strings.reserve(static_cast<size_t>(value->count));
  ByteReader reader(value->data);
  for (uint64_t i = 0; i < value->count; ++i) {
    std::string_view text;
    PENSTOCK_CHECK(reader.ReadString(&text), "the parser checked these strings");
    strings.push_back(text);
  }
  return strings;
}

}  // namespace penstock::weights
