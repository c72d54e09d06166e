#include "base/toml.h"

#include <toml++/toml.h>

#include <cmath>
#include <map>
#include <set>
#include <variant>

#include "base/file.h"
#include "base/units.h"

namespace penstock {
namespace toml_internal {

struct Node {
  enum class Kind { kInt, kNumber, kBool, kString, kArray, kTable };
  Kind kind = Kind::kTable;
  size_t line = 0;   // 0: not from a file
  std::string flag;  // what set it, where no file did
  int64_t integer = 0;
  double number = 0;
  bool boolean = false;
  std::string text;
  std::vector<std::shared_ptr<Node>> items;
  std::vector<std::pair<std::string, std::shared_ptr<Node>>> members;  // in the order of the file
  mutable std::set<std::string, std::less<>> asked;
};

}  // namespace toml_internal

namespace {

using toml_internal::Node;

constexpr size_t kMaxBytes = 16u << 20;
constexpr size_t kMaxDotsPerLine = 512;

std::shared_ptr<Node> Convert(const toml::node& from);

std::shared_ptr<Node> ConvertTable(const toml::table& from) {
  auto node = std::make_shared<Node>();
  node->kind = Node::Kind::kTable;
  for (const auto& [key, value] : from) {
    node->members.emplace_back(std::string(key.str()), Convert(value));
  }
  // toml++ sorts by key; the file's order is what a reader of errors expects.
  std::stable_sort(node->members.begin(), node->members.end(),
                   [](const auto& a, const auto& b) { return a.second->line < b.second->line; });
  return node;
}

// Depth is bounded by the parser's own limit and by the check on dotted keys.
std::shared_ptr<Node> Convert(const toml::node& from) {
  std::shared_ptr<Node> node;
  if (const auto* table = from.as_table()) {
    node = ConvertTable(*table);
  } else {
    node = std::make_shared<Node>();
    if (const auto* array = from.as_array()) {
      node->kind = Node::Kind::kArray;
      for (const toml::node& item : *array) {
        node->items.push_back(Convert(item));
      }
    } else if (const auto* integer = from.as_integer()) {
      node->kind = Node::Kind::kInt;
      node->integer = integer->get();
      node->number = static_cast<double>(integer->get());
    } else if (const auto* number = from.as_floating_point()) {
      node->kind = Node::Kind::kNumber;
      node->number = number->get();
    } else if (const auto* boolean = from.as_boolean()) {
      node->kind = Node::Kind::kBool;
      node->boolean = boolean->get();
    } else {
      node->kind = Node::Kind::kString;
      node->text = from.as_string() != nullptr ? from.as_string()->get() : std::string("(a date)");
    }
  }
  node->line = from.source().begin.line;
  return node;
}

Result<> CheckDots(std::string_view text, const std::string& source) {
  size_t line = 1;
  size_t dots = 0;
  for (const char c : text) {
    if (c == '\n') {
      ++line;
      dots = 0;
    } else if (c == '.' && ++dots > kMaxDotsPerLine) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "[base.toml] {}:{}: more than {} dots on a line, wanted fewer", source, line,
                       kMaxDotsPerLine);
    }
  }
  return {};
}

std::string ShownNode(const Node& node) {
  switch (node.kind) {
    case Node::Kind::kInt:
      return fmt::format("{}", node.integer);
    case Node::Kind::kNumber:
      return fmt::format("{}", node.number);
    case Node::Kind::kBool:
      return node.boolean ? "true" : "false";
    case Node::Kind::kString:
      return node.text.size() > 60 ? fmt::format("\"{}...\"", node.text.substr(0, 57))
                                   : fmt::format("\"{}\"", node.text);
    case Node::Kind::kArray:
      return fmt::format("a list of {}", node.items.size());
    case Node::Kind::kTable:
      return "a table";
  }
  return "";
}

bool IsFiniteNumber(const Node& node) {
  return (node.kind == Node::Kind::kInt || node.kind == Node::Kind::kNumber) &&
         std::isfinite(node.number);
}

Result<> UnknownIn(const Node& node, const std::string& source, const std::string& path) {
  for (const auto& [key, value] : node.members) {
    if (!node.asked.contains(key)) {
      const std::string near = NearestName(key, node.asked);
      std::string known;
      for (const std::string& name : node.asked) {
        known += (known.empty() ? "" : ", ") + name;
      }
      const std::string place =
          value->line == 0 ? source : fmt::format("{}:{}", source, value->line);
      return MakeError(ErrorCode::kInvalidArgument,
                       "[base.toml] {}: {}{}: unknown key, wanted {}\n  known here: {}", place,
                       path, key, near.empty() ? "one of those below" : fmt::format("'{}'?", near),
                       known);
    }
    // A table that nobody opened (asked stays empty) was taken as a whole by its reader.
    if (value->kind == Node::Kind::kTable && !value->asked.empty()) {
      PENSTOCK_TRY(UnknownIn(*value, source, path + key + "."));
    }
    for (const auto& item : value->items) {
      if (item->kind == Node::Kind::kTable && !item->asked.empty()) {
        PENSTOCK_TRY(UnknownIn(*item, source, path + key + "."));
      }
    }
  }
  return {};
}

}  // namespace

TomlTable::TomlTable(std::string source)
    : node_(std::make_shared<Node>()), source_(std::move(source)) {}

TomlTable::TomlTable(std::shared_ptr<Node> node, std::string source, std::string path)
    : node_(std::move(node)), source_(std::move(source)), path_(std::move(path)) {}

const Node* TomlTable::Find(std::string_view key) const {
  node_->asked.emplace(key);
  for (const auto& [name, value] : node_->members) {
    if (name == key) {
      return value.get();
    }
  }
  return nullptr;
}

bool TomlTable::Has(std::string_view key) const {
  return Find(key) != nullptr;
}

std::vector<std::string> TomlTable::keys() const {
  std::vector<std::string> names;
  for (const auto& [name, value] : node_->members) {
    names.push_back(name);
  }
  return names;
}

std::string TomlTable::Place(std::string_view key) const {
  const Node* node = Find(key);
  const std::string name = path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
  if (node != nullptr && !node->flag.empty()) {
    return fmt::format("{}: {}", node->flag, name);
  }
  const size_t line = node != nullptr ? node->line : node_->line;
  return line == 0 ? fmt::format("{}: {}", source_, name)
                   : fmt::format("{}:{}: {}", source_, line, name);
}

std::string TomlTable::Shown(std::string_view key) const {
  const Node* node = Find(key);
  return node == nullptr ? "nothing" : ShownNode(*node);
}

namespace {

// "memory_bandwidth" or "memory_bandwidth_gb_per_s" for "memory_bandwidth_bytes_per_s": the same
// words before the unit.
bool SameQuantity(std::string_view name, std::string_view key) {
  const size_t same = static_cast<size_t>(
      std::mismatch(name.begin(), name.end(), key.begin(), key.end()).first - name.begin());
  if (same == name.size()) {
    return same >= 4 && same < key.size() && key[same] == '_';
  }
  const size_t word = key.substr(0, same).rfind('_');
  return word != std::string_view::npos && word >= 8 && 2 * word >= key.size();
}

}  // namespace

Error TomlTable::Wrong(std::string_view key, std::string_view wanted) const {
  std::string meant;  // a missing key may be there under a mistyped name
  if (Find(key) == nullptr) {
    for (const auto& [name, value] : node_->members) {
      if (!node_->asked.contains(name) &&
          (EditDistance(name, key) <= std::min<size_t>(2, key.size() / 4) ||
           SameQuantity(name, key))) {
        meant = fmt::format("; is '{}'{} meant?", name,
                            value->line == 0 ? "" : fmt::format(" on line {}", value->line));
        break;
      }
    }
  }
  return MakeError(ErrorCode::kInvalidArgument, "[base.toml] {}: got {}, wanted {}{}", Place(key),
                   Shown(key), wanted, meant);
}

Result<int64_t> TomlTable::Int(std::string_view key, int64_t low, int64_t high) const {
  const Node* node = Find(key);
  if (node != nullptr && IsFiniteNumber(*node)) {
    int64_t value = node->integer;
    const bool whole = node->kind == Node::Kind::kInt ||
                       (std::floor(node->number) == node->number && std::abs(node->number) < 9e18);
    if (node->kind == Node::Kind::kNumber && whole) {
      value = static_cast<int64_t>(node->number);
    }
    if (whole && value >= low && value <= high) {
      return value;
    }
  }
  return Wrong(key, fmt::format("an integer from {} to {}", low, high));
}

Result<int64_t> TomlTable::IntOr(std::string_view key, int64_t fallback, int64_t low,
                                 int64_t high) const {
  return Has(key) ? Int(key, low, high) : Result<int64_t>(fallback);
}

Result<double> TomlTable::Number(std::string_view key, double low, double high) const {
  const Node* node = Find(key);
  if (node != nullptr && IsFiniteNumber(*node) && node->number >= low && node->number <= high) {
    return node->number;
  }
  return Wrong(key, fmt::format("a number from {} to {}", low, high));
}

Result<double> TomlTable::NumberOr(std::string_view key, double fallback, double low,
                                   double high) const {
  return Has(key) ? Number(key, low, high) : Result<double>(fallback);
}

Result<bool> TomlTable::Bool(std::string_view key) const {
  const Node* node = Find(key);
  if (node != nullptr && node->kind == Node::Kind::kBool) {
    return bool{node->boolean};
  }
  return Wrong(key, "true or false");
}

Result<bool> TomlTable::BoolOr(std::string_view key, bool fallback) const {
  return Has(key) ? Bool(key) : Result<bool>(fallback);
}

Result<std::string> TomlTable::String(std::string_view key) const {
  const Node* node = Find(key);
  if (node != nullptr && node->kind == Node::Kind::kString) {
    return std::string(node->text);
  }
  return Wrong(key, "a string");
}

Result<std::string> TomlTable::StringOr(std::string_view key, std::string fallback) const {
  return Has(key) ? String(key) : Result<std::string>(std::move(fallback));
}

Result<std::string> TomlTable::ChoiceOr(std::string_view key, std::string fallback,
                                        const std::vector<std::string>& choices) const {
  PENSTOCK_TRY_ASSIGN(std::string value, StringOr(key, std::move(fallback)));
  for (const std::string& choice : choices) {
    if (choice == value) {
      return value;
    }
  }
  const std::string near = NearestName(value, choices);
  return Wrong(key, fmt::format("one of {}{}", fmt::join(choices, ", "),
                                near.empty() ? "" : fmt::format(" ('{}'?)", near)));
}

Result<std::vector<double>> TomlTable::NumbersOr(std::string_view key, double low,
                                                 double high) const {
  const Node* node = Find(key);
  std::vector<double> numbers;
  if (node == nullptr) {
    return numbers;
  }
  if (node->kind != Node::Kind::kArray) {
    PENSTOCK_TRY_ASSIGN(const double one, Number(key, low, high));
    numbers.push_back(one);
    return numbers;
  }
  for (const auto& item : node->items) {
    if (!IsFiniteNumber(*item) || item->number < low || item->number > high) {
      return Wrong(key, fmt::format("numbers from {} to {}", low, high));
    }
    numbers.push_back(item->number);
  }
  return numbers;
}

Result<std::vector<int64_t>> TomlTable::IntsOr(std::string_view key, int64_t low,
                                               int64_t high) const {
  const Node* node = Find(key);
  std::vector<int64_t> numbers;
  if (node == nullptr) {
    return numbers;
  }
  if (node->kind != Node::Kind::kArray) {
    PENSTOCK_TRY_ASSIGN(const int64_t one, Int(key, low, high));
    numbers.push_back(one);
    return numbers;
  }
  for (const auto& item : node->items) {
    if (item->kind != Node::Kind::kInt || item->integer < low || item->integer > high) {
      return Wrong(key, fmt::format("integers from {} to {}", low, high));
    }
    numbers.push_back(item->integer);
  }
  return numbers;
}

Result<std::vector<std::string>> TomlTable::StringsOr(std::string_view key) const {
  const Node* node = Find(key);
  std::vector<std::string> texts;
  if (node == nullptr) {
    return texts;
  }
  if (node->kind == Node::Kind::kString) {
    texts.push_back(node->text);
    return texts;
  }
  if (node->kind != Node::Kind::kArray) {
    return Wrong(key, "a string or a list of strings");
  }
  for (const auto& item : node->items) {
    if (item->kind != Node::Kind::kString) {
      return Wrong(key, "a string or a list of strings");
    }
    texts.push_back(item->text);
  }
  return texts;
}

Result<std::vector<std::vector<double>>> TomlTable::RowsOr(std::string_view key,
                                                           size_t columns) const {
  const Node* node = Find(key);
  std::vector<std::vector<double>> rows;
  if (node == nullptr) {
    return rows;
  }
  const std::string wanted = fmt::format("a list of rows of {} numbers", columns);
  if (node->kind != Node::Kind::kArray) {
    return Wrong(key, wanted);
  }
  for (const auto& item : node->items) {
    if (item->kind != Node::Kind::kArray || item->items.size() != columns) {
      return Wrong(key, wanted);
    }
    std::vector<double>& row = rows.emplace_back();
    for (const auto& cell : item->items) {
      if (!IsFiniteNumber(*cell)) {
        return Wrong(key, wanted);
      }
      row.push_back(cell->number);
    }
  }
  return rows;
}

bool TomlTable::IsTable(std::string_view key) const {
  const Node* node = Find(key);
  return node != nullptr && node->kind == Node::Kind::kTable;
}

bool TomlTable::IsNumber(std::string_view key) const {
  const Node* node = Find(key);
  return node != nullptr && IsFiniteNumber(*node);
}

bool TomlTable::IsString(std::string_view key) const {
  const Node* node = Find(key);
  return node != nullptr && node->kind == Node::Kind::kString;
}

Result<TomlTable> TomlTable::Table(std::string_view key) const {
  const std::string path = path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
  const Node* node = Find(key);
  if (node == nullptr) {
    return TomlTable(std::make_shared<Node>(), source_, path);
  }
  if (node->kind != Node::Kind::kTable) {
    return Wrong(key, "a table");
  }
  for (const auto& [name, value] : node_->members) {
    if (name == key) {
      value->asked.emplace("");  // opened: its own keys are checked too
      return TomlTable(value, source_, path);
    }
  }
  return Wrong(key, "a table");
}

Result<std::vector<TomlTable>> TomlTable::Tables(std::string_view key) const {
  const std::string path = path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
  const Node* node = Find(key);
  std::vector<TomlTable> tables;
  if (node == nullptr) {
    return tables;
  }
  if (node->kind != Node::Kind::kArray) {
    return Wrong(key, fmt::format("tables, each opened by [[{}]]", path));
  }
  for (const auto& item : node->items) {
    if (item->kind != Node::Kind::kTable) {
      return Wrong(key, fmt::format("tables, each opened by [[{}]]", path));
    }
    item->asked.emplace("");
    tables.push_back(TomlTable(item, source_, path));
  }
  return tables;
}

Result<> TomlTable::NoUnknownKeys() const {
  node_->asked.emplace("");
  return UnknownIn(*node_, source_, path_.empty() ? "" : path_ + ".");
}

Result<> TomlTable::Set(std::string_view assignment, const std::string& flag) {
  const size_t equals = assignment.find('=');
  std::string key(assignment.substr(0, equals == std::string_view::npos ? 0 : equals));
  while (!key.empty() && key.back() == ' ') {
    key.pop_back();
  }
  if (key.empty()) {
    return MakeError(ErrorCode::kInvalidArgument, "[base.toml] {}: got '{}', wanted key=value",
                     flag, assignment);
  }
  const std::string value(assignment.substr(equals + 1));
  std::shared_ptr<Node> parsed;
  const Result<TomlTable> as_toml = ParseToml("value = " + value, flag);
  if (as_toml.ok() && as_toml->node_->members.size() == 1) {
    parsed = as_toml->node_->members[0].second;
  } else {
    parsed = std::make_shared<Node>();
    parsed->kind = Node::Kind::kString;
    parsed->text = value;
  }
  parsed->line = 0;
  parsed->flag = flag;
  Node* table = node_.get();
  for (size_t start = 0;;) {
    const size_t dot = key.find('.', start);
    const std::string part = key.substr(start, dot == std::string::npos ? dot : dot - start);
    auto member = std::find_if(table->members.begin(), table->members.end(),
                               [&](const auto& m) { return m.first == part; });
    if (part.empty()) {
      return MakeError(ErrorCode::kInvalidArgument, "[base.toml] {}: got '{}', wanted key=value",
                       flag, assignment);
    }
    if (dot == std::string::npos) {
      if (member != table->members.end()) {
        member->second = parsed;
      } else {
        table->members.emplace_back(part, parsed);
      }
      return {};
    }
    if (member == table->members.end()) {
      table->members.emplace_back(part, std::make_shared<Node>());
      member = std::prev(table->members.end());
    }
    if (member->second->kind != Node::Kind::kTable) {
      return MakeError(ErrorCode::kInvalidArgument, "[base.toml] {} {}: '{}' is {}, wanted a table",
                       flag, assignment, part, ShownNode(*member->second));
    }
    table = member->second.get();
    start = dot + 1;
  }
}

Result<TomlTable> ParseToml(std::string_view text, const std::string& source) {
  if (text.size() > kMaxBytes) {
    return MakeError(ErrorCode::kInvalidArgument, "[base.toml] {}: {} bytes, wanted at most {}",
                     source, text.size(), kMaxBytes);
  }
  PENSTOCK_TRY(CheckDots(text, source));
  try {
    const toml::table table = toml::parse(text, source);
    return TomlTable(ConvertTable(table), source, "");
  } catch (const toml::parse_error& e) {
    return MakeError(ErrorCode::kCorruptData, "[base.toml] {}:{}:{}: {}", source,
                     e.source().begin.line, e.source().begin.column, e.description());
  } catch (const std::exception& e) {
    return MakeError(ErrorCode::kCorruptData, "[base.toml] {}: {}", source, e.what());
  }
}

Result<TomlTable> ReadTomlFile(const std::string& path) {
  PENSTOCK_TRY_ASSIGN(const std::string text, ReadFile(path, kMaxBytes));
  return ParseToml(text, path);
}

}  // namespace penstock
