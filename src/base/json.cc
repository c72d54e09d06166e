#include "base/json.h"

#include <cmath>

#include "base/file.h"

namespace penstock {
namespace {

constexpr int kMaxDepth = 128;

std::string Shown(const Json& value) {
  std::string text = DumpJson(value);
  if (text.size() > 60) {
    text.resize(57);
    text += "...";
  }
  return text;
}

// Line and column (from 1) of a byte offset.
std::pair<size_t, size_t> Position(std::string_view text, size_t offset) {
  size_t line = 1;
  size_t column = 1;
  for (size_t i = 0; i < offset && i < text.size(); ++i) {
    if (text[i] == '\n') {
      ++line;
      column = 1;
    } else {
      ++column;
    }
  }
  return {line, column};
}

// Nesting depth, strings skipped. Guards the recursive parser's stack.
int Depth(std::string_view text) {
  int depth = 0;
  int deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      deepest = std::max(deepest, ++depth);
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return deepest;
}

}  // namespace

namespace {

// Collects the strings of one object one level down, skips the rest.
class StringMapHandler : public nlohmann::json_sax<Json> {
 public:
  explicit StringMapHandler(std::string_view key) : wanted_(key) {}

  bool null() override { return Other(); }

  bool boolean(bool) override { return Other(); }

  bool number_integer(number_integer_t) override { return Other(); }

  bool number_unsigned(number_unsigned_t) override { return Other(); }

  bool number_float(number_float_t, const string_t&) override { return Other(); }

  bool binary(binary_t&) override { return Other(); }

  bool string(string_t& value) override {
    if (!inside_) {
      return true;
    }
    map.emplace_back(key_, std::move(value));
    return true;
  }

  bool start_object(std::size_t) override {
    if (depth_ == 1 && key_ == wanted_ && in_object_) {
      inside_ = found = true;
      map.clear();
    } else if (inside_) {
      return Other();
    }
    in_object_ = depth_ == 0 || in_object_;
    ++depth_;
    return true;
  }

  bool key(string_t& name) override {
    if (depth_ == 1 || inside_) {
      key_ = std::move(name);
    }
    return true;
  }

  bool end_object() override { return End(); }

  bool start_array(std::size_t) override {
    if (inside_) {
      return Other();
    }
    ++depth_;
    return true;
  }

  bool end_array() override { return End(); }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    error_position = position;
    return false;
  }

  std::vector<std::pair<std::string, std::string>> map;
  bool found = false;
  std::string no_string;           // the member that is none
  std::size_t error_position = 0;  // from 1 on

 private:
  bool Other() {
    if (inside_) {
      no_string = key_;
    }
    return !inside_;
  }

  bool End() {
    --depth_;
    inside_ = false;
    return true;
  }

  std::string_view wanted_;
  std::string key_;
  int64_t depth_ = 0;
  bool in_object_ = false;  // the text is an object
  bool inside_ = false;
};

}  // namespace

Result<std::vector<std::pair<std::string, std::string>>> ParseStringMap(std::string_view text,
                                                                        const std::string& source,
                                                                        std::string_view key) {
  StringMapHandler handler(key);
  bool good = false;
  try {
    good = Json::sax_parse(text.begin(), text.end(), &handler);
  } catch (const Json::exception& e) {
    return MakeError(ErrorCode::kCorruptData, "[base.json] {}: not valid JSON ({})", source,
                     e.what());
  }
  if (!good && handler.no_string.empty() && handler.error_position > 0) {
    const auto [line, column] = Position(text, handler.error_position - 1);
    return MakeError(ErrorCode::kCorruptData, "[base.json] {}:{}:{}: not valid JSON", source, line,
                     column);
  }
  if (!good) {
    return MakeError(ErrorCode::kCorruptData, "[base.json] {}: {}: {} is no string", source, key,
                     handler.no_string);
  }
  if (!handler.found) {
    return MakeError(ErrorCode::kCorruptData, "[base.json] {}: no object {}", source, key);
  }
  return std::move(handler.map);
}

Result<Json> ParseJson(std::string_view text, const std::string& source) {
  if (Depth(text) > kMaxDepth) {
    return MakeError(ErrorCode::kCorruptData, "[base.json] {}: nested deeper than {} levels",
                     source, kMaxDepth);
  }
  try {
    return Json::parse(text);
  } catch (const Json::parse_error& e) {
    const auto [line, column] = Position(text, e.byte > 0 ? e.byte - 1 : 0);
    return MakeError(ErrorCode::kCorruptData, "[base.json] {}:{}:{}: not valid JSON", source, line,
                     column);
  } catch (const Json::exception& e) {
    return MakeError(ErrorCode::kCorruptData, "[base.json] {}: not valid JSON ({})", source,
                     e.what());
  }
}

Result<Json> ReadJsonFile(const std::string& path) {
  PENSTOCK_TRY_ASSIGN(const std::string text, ReadFile(path));
  return ParseJson(text, path);
}

JsonReader::JsonReader(const Json& object, std::string where)
    : object_(object), where_(std::move(where)) {}

const Json* JsonReader::Find(std::string_view key) const {
  if (!object_.is_object()) {
    return nullptr;
  }
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

bool JsonReader::Has(std::string_view key) const {
  return Find(key) != nullptr;
}

bool JsonReader::Contains(std::string_view key) const {
  return object_.is_object() && object_.contains(key);
}

Error JsonReader::Wrong(std::string_view key, std::string_view wanted) const {
  const Json* value = Find(key);
  return MakeError(ErrorCode::kInvalidArgument, "[base.json] {}: {}: got {}, wanted {}", where_,
                   key, value == nullptr ? "nothing" : Shown(*value), wanted);
}

Result<int64_t> JsonReader::Int(std::string_view key, int64_t low, int64_t high) const {
  const Json* value = Find(key);
  const std::string wanted = fmt::format("an integer from {} to {}", low, high);
  if (value == nullptr) {
    return Wrong(key, wanted);
  }
  int64_t number = 0;
  if (value->is_number_unsigned()) {
    const auto wide = value->get<uint64_t>();
    if (wide > static_cast<uint64_t>(INT64_MAX)) {
      return Wrong(key, wanted);
    }
    number = static_cast<int64_t>(wide);
  } else if (value->is_number_integer()) {
    number = value->get<int64_t>();
  } else if (value->is_number_float() && std::floor(value->get<double>()) == value->get<double>() &&
             std::abs(value->get<double>()) < 9e15) {
    number = static_cast<int64_t>(value->get<double>());
  } else {
    return Wrong(key, wanted);
  }
  if (number < low || number > high) {
    return Wrong(key, wanted);
  }
  return number;
}

Result<int64_t> JsonReader::IntOr(std::string_view key, int64_t fallback, int64_t low,
                                  int64_t high) const {
  if (!Has(key)) {
    return fallback;
  }
  return Int(key, low, high);
}

Result<double> JsonReader::Number(std::string_view key, double low, double high) const {
  const Json* value = Find(key);
  if (value != nullptr && value->is_number()) {
    const auto number = value->get<double>();
    if (number >= low && number <= high) {
      return number;
    }
  }
  return Wrong(key, fmt::format("a number from {} to {}", low, high));
}

Result<double> JsonReader::NumberOr(std::string_view key, double fallback, double low,
                                    double high) const {
  if (!Has(key)) {
    return fallback;
  }
  return Number(key, low, high);
}

Result<bool> JsonReader::Bool(std::string_view key) const {
  const Json* value = Find(key);
  if (value != nullptr && value->is_boolean()) {
    return value->get<bool>();
  }
  return Wrong(key, "true or false");
}

Result<bool> JsonReader::BoolOr(std::string_view key, bool fallback) const {
  if (!Has(key)) {
    return fallback;
  }
  return Bool(key);
}

Result<std::string> JsonReader::String(std::string_view key) const {
  const Json* value = Find(key);
  if (value != nullptr && value->is_string()) {
    return value->get<std::string>();
  }
  return Wrong(key, "a string");
}

Result<std::string> JsonReader::StringOr(std::string_view key, std::string fallback) const {
  if (!Has(key)) {
    return fallback;
  }
  return String(key);
}

Result<std::vector<int64_t>> JsonReader::IntsOr(std::string_view key, int64_t low,
                                                int64_t high) const {
  const Json* value = Find(key);
  std::vector<int64_t> numbers;
  if (value == nullptr) {
    return numbers;
  }
  if (!value->is_array()) {
    PENSTOCK_TRY_ASSIGN(const int64_t one, Int(key, low, high));
    numbers.push_back(one);
    return numbers;
  }
  for (const Json& item : *value) {
    if (!item.is_number_integer() || item.get<int64_t>() < low || item.get<int64_t>() > high) {
      return Wrong(key, fmt::format("integers from {} to {}", low, high));
    }
    numbers.push_back(item.get<int64_t>());
  }
  return numbers;
}

Result<std::vector<double>> JsonReader::NumbersOr(std::string_view key, size_t max_count) const {
  const Json* value = Find(key);
  std::vector<double> numbers;
  if (value == nullptr) {
    return numbers;
  }
  if (!value->is_array() || value->size() > max_count) {
    return Wrong(key, fmt::format("a list of at most {} numbers", max_count));
  }
  for (const Json& item : *value) {
    if (!item.is_number()) {
      return Wrong(key, "a list of numbers");
    }
    numbers.push_back(item.get<double>());
  }
  return numbers;
}

std::string DumpJson(const Json& value, int indent) {
  return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace penstock
