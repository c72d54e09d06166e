#include "model/variations.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string>

#include "base/json.h"
#include "base/units.h"

namespace penstock::model {
namespace {

bool Given(const JsonReader& config, std::string_view key) {
  const Json* value = config.Find(key);
  const bool off = value == nullptr || (value->is_boolean() && !value->get<bool>()) ||
                   (value->is_number_integer() && value->get<int64_t>() == 0) ||
                   (value->is_array() && value->empty());
  return !off;
}

// Letters and digits alone, in lower case: what is left of a name when its spelling is.
std::string Bare(std::string_view name) {
  std::string bare;
  for (const char c : name) {
    if (c >= 'A' && c <= 'Z') {
      bare += static_cast<char>(c - 'A' + 'a');
    } else if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')) {
      bare += c;
    }
  }
  return bare;
}

struct BareKey {
  std::string_view key;
  std::string bare;
};

const std::vector<BareKey>& BareKeys() {
  static const auto& bare = *[] {
    auto* keys = new std::vector<BareKey>;
    for (const std::string_view key : VariationKeys()) {
      keys->push_back({key, Bare(key)});
    }
    for (const std::string_view key : {"num_nextn_predict_layers", "mtp_loss_weight"}) {
      keys->push_back({key, Bare(key)});
    }
    return keys;
  }();
  return bare;
}

// The key of a variation that `name` is nearly, without being it; else "".
std::string_view NearlyVariation(std::string_view name) {
  constexpr size_t kShortest = 8;  // below, two letters make another word
  constexpr size_t kMostWrong = 2;
  const std::string bare = Bare(name);
  std::string_view nearest;
  size_t least = kMostWrong + 1;
  for (const auto& [key, own] : BareKeys()) {
    if (name == key) {
      return "";
    }
    if (std::max(bare.size(), own.size()) - std::min(bare.size(), own.size()) > kMostWrong) {
      continue;
    }
    const size_t wrong = EditDistance(bare, own);
    if (wrong < least && (wrong == 0 || bare.size() >= kShortest)) {
      least = wrong;
      nearest = key;
    }
  }
  return nearest;
}

}  // namespace

const std::vector<std::string_view>& VariationKeys() {
  static const auto& keys = *new std::vector<std::string_view>{
      "attention_residuals",   "hyper_connections",    "skip_connections", "shared_layers",
      "use_parallel_residual", "per_layer_embeddings", "early_exits"};
  return keys;
}

Result<JsonReader> ReadVariation(const JsonReader& config, std::string_view key,
                                 std::initializer_list<std::string_view> known) {
  const Json* object = config.Find(key);
  const std::string where = fmt::format("{}: {}", config.where(), key);
  if (object == nullptr || !object->is_object()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[model.config] {}: wanted an object with the keys {}", where,
                     fmt::join(known, ", "));
  }
  const std::vector<std::string_view> names(known);
  for (const auto& [name, value] : object->items()) {
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      const std::string near = NearestName(name, names);
      return MakeError(ErrorCode::kInvalidArgument,
                       "[model.config] {}: {}: unknown key, known are {}{}", where,
                       name.substr(0, 60), fmt::join(names, ", "),
                       near.empty() ? "" : fmt::format("\nDid you mean '{}'?", near));
    }
  }
  return JsonReader(*object, where);
}

Result<bool> ReadChoice(const JsonReader& object, std::string_view key, std::string_view yes,
                        std::string_view no, std::string_view fallback) {
  if (!object.Has(key)) {
    if (fallback.empty()) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "[model.config] {}: {}: missing, wanted '{}' or '{}'", object.where(), key,
                       yes, no);
    }
    return fallback == yes;
  }
  PENSTOCK_TRY_ASSIGN(const std::string text, object.String(key));
  if (text != yes && text != no) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[model.config] {}: {}: got '{}', wanted '{}' or '{}'", object.where(), key,
                     text.substr(0, 60), yes, no);
  }
  return text == yes;
}

Result<> RefuseNearVariations(const JsonReader& config) {
  for (const auto& [name, value] : config.object().items()) {
    const std::string_view near = NearlyVariation(name);
    if (!near.empty() && Given(config, name)) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "[model.config] {}: {}: unknown key, which would be passed over in "
                       "silence\nDid you mean '{}'?",
                       config.where(), name.substr(0, 60), near);
    }
  }
  return {};
}

Result<> RefuseVariationsOutside(const JsonReader& outer) {
  PENSTOCK_TRY(RefuseNearVariations(outer));
  for (const std::string_view key : VariationKeys()) {
    if (Given(outer, key)) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "[model.config] {}: {}: stands beside text_config, where nothing reads it; "
                       "wanted it inside",
                       outer.where(), key);
    }
  }
  return {};
}

Result<> CheckVariations(const JsonReader& config) {
  // Each of these says what runs through the depth of the model, or counts on one value doing so.
  constexpr std::array<std::array<std::string_view, 2>, 7> kExclusive = {{
      {"attention_residuals", "hyper_connections"},
      {"attention_residuals", "skip_connections"},
      {"hyper_connections", "skip_connections"},
      {"attention_residuals", "use_parallel_residual"},
      {"hyper_connections", "use_parallel_residual"},
      {"attention_residuals", "per_layer_embeddings"},
      {"hyper_connections", "per_layer_embeddings"},
  }};
  for (const auto& [a, b] : kExclusive) {
    if (Given(config, a) && Given(config, b)) {
      return MakeError(ErrorCode::kUnsupported,
                       "[model.config] {}: {} and {} contradict each other; wanted one of them",
                       config.where(), a, b);
    }
  }
  return {};
}

}  // namespace penstock::model
