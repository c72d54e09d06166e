#include "model/config_place.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/units.h"

namespace penstock::model {
namespace {

struct Key {
  std::string name;
  int64_t line = 0;
};

// Every string that a colon follows. The text has been parsed, so it is JSON.
std::vector<Key> KeysOf(std::string_view text) {
  std::vector<Key> keys;
  int64_t line = 1;
  for (size_t i = 0; i < text.size(); ++i) {
    line += text[i] == '\n' ? 1 : 0;
    if (text[i] != '"') {
      continue;
    }
    const size_t begin = ++i;
    for (; i < text.size() && text[i] != '"'; ++i) {
      i += text[i] == '\\' ? 1 : 0;
    }
    const size_t after = text.find_first_not_of(" \t\r\n", i + 1);
    if (after != std::string_view::npos && text[after] == ':') {
      keys.push_back({std::string(text.substr(begin, i - begin)), line});
    }
  }
  return keys;
}

// "rope_scaling: factor: got 0, ..." -> factor: the last name before what was found.
std::string KeyIn(std::string_view message) {
  const auto in_name = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  };
  std::string key;
  while (true) {
    const size_t end = message.find(": ");
    const std::string_view part = message.substr(0, end);
    if (end == std::string_view::npos || !std::all_of(part.begin(), part.end(), in_name)) {
      return key;
    }
    key = part;
    message.remove_prefix(end + 2);
  }
}

std::optional<Key> Find(const std::vector<Key>& keys, const std::string& name) {
  const auto it =
      std::find_if(keys.begin(), keys.end(), [&](const Key& key) { return key.name == name; });
  return it == keys.end() ? std::nullopt : std::optional<Key>(*it);
}

}  // namespace

Error PlaceInFile(Error error, const std::string& path) {
  const size_t at = error.message.find(path + ": ");
  if (!path.ends_with(".json") || at == std::string::npos) {
    return error;
  }
  const auto text = ReadFile(path);
  const std::string name = KeyIn(std::string_view(error.message).substr(at + path.size() + 2));
  if (!text.ok() || name.empty()) {
    return error;
  }
  const std::vector<Key> keys = KeysOf(text.value());
  if (const std::optional<Key> key = Find(keys, name)) {
    error.message.insert(at + path.size(), fmt::format(":{}", key->line));
    return error;
  }
  std::vector<std::string> names;
  for (const Key& key : keys) {
    names.push_back(key.name);
  }
  if (const std::optional<Key> near = Find(keys, NearestName(name, names))) {
    const size_t end = std::min(error.message.find('\n', at), error.message.size());
    error.message.insert(end, fmt::format("; is '{}' on line {} meant?", near->name, near->line));
  }
  return error;
}

}  // namespace penstock::model
