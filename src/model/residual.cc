#include "model/residual.h"

#include <fmt/format.h>

namespace penstock::model {

void PlainResidual::Write(GraphBuilder& b, const Sublayer& place, ValueId y) {
  constexpr std::string_view kNames[] = {"middle", "hidden", "extended"};
  x_ = b.Add(x_, y, fmt::format("{}.{}", kNames[static_cast<size_t>(place.kind)], place.layer));
}

std::string_view SublayerName(SublayerKind kind) {
  constexpr std::string_view kNames[] = {"attention", "mlp", "extra"};
  return kNames[static_cast<size_t>(kind)];
}

std::string SublayerTag(const Sublayer& place) {
  return fmt::format("{}.{}", SublayerName(place.kind), place.layer);
}

}  // namespace penstock::model
