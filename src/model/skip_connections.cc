#include "model/skip_connections.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/json.h"

namespace penstock::model {
namespace {

constexpr std::string_view kKey = "skip_connections";

bool IsPair(const Json& entry) {
  return entry.is_array() && entry.size() == 2 && entry[0].is_number_integer() &&
         entry[1].is_number_integer();
}

}  // namespace

Result<std::vector<Skip>> ReadSkips(const JsonReader& config, const DecoderConfig& decoder) {
  std::vector<Skip> skips;
  const Json* list = config.Find(kKey);
  if (list == nullptr) {
    return skips;
  }
  constexpr size_t kMaxSkips = 65536;
  if (!list->is_array() || list->size() > kMaxSkips) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[model.config] {}: {}: wanted a list of at most {} pairs [from, to]",
                     config.where(), kKey, kMaxSkips);
  }
  for (size_t i = 0; i < list->size(); ++i) {
    const Json& entry = (*list)[i];
    if (!IsPair(entry)) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "[model.config] {}: {}: entry {} is not a pair of layers [from, to]",
                       config.where(), kKey, i);
    }
    const Skip skip = {entry[0].get<int64_t>(), entry[1].get<int64_t>()};
    if (skip.from < 0 || skip.to >= decoder.layers || skip.from >= skip.to) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "[model.config] {}: {}: layer {} would read the output of layer {}; wanted "
                       "an earlier one (pairs [from, to] with 0 <= from < to < {})",
                       config.where(), kKey, skip.to, skip.from, decoder.layers);
    }
    skips.push_back(skip);
  }
  const auto key = [](const Skip& s) { return std::pair(s.to, s.from); };
  std::ranges::sort(skips, {}, key);
  const auto twice = std::ranges::adjacent_find(skips, {}, key);
  if (twice != skips.end()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[model.config] {}: {}: the pair [{}, {}] stands twice", config.where(), kKey,
                     twice->from, twice->to);
  }
  return skips;
}

ValueId SkipResidual::Read(GraphBuilder& b, const Sublayer& place) {
  ValueId x = plain_.Read(b, place);
  if (place.kind == SublayerKind::kAttention) {
    for (const Skip& skip : skips_) {
      if (skip.to == place.layer) {
        x = b.Add(x, outputs_[static_cast<size_t>(skip.from)],
                  fmt::format("skip.{}.{}", skip.from, skip.to));
        plain_ = PlainResidual(x);
      }
    }
  }
  return x;
}

void SkipResidual::Write(GraphBuilder& b, const Sublayer& place, ValueId y) {
  plain_.Write(b, place, y);
  // The layer's last sublayer has the last word.
  outputs_.resize(static_cast<size_t>(place.layer) + 1);
  outputs_.back() = plain_.Output(b, "");
}

}  // namespace penstock::model
