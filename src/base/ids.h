// Indices that can't be mixed up: a StageId is not a RankId.

#pragma once

#include <fmt/format.h>

#include <compare>
#include <cstdint>
#include <functional>

namespace penstock {

template <class Tag>
class StrongId {
 public:
  constexpr StrongId() = default;

  explicit constexpr StrongId(int32_t value) : value_(value) {}

  constexpr int32_t value() const { return value_; }

  constexpr bool valid() const { return value_ >= 0; }

  friend constexpr auto operator<=>(StrongId, StrongId) = default;

 private:
  int32_t value_ = -1;
};

using RankId = StrongId<struct RankTag>;    // worker with one device, 0..p-1
using StageId = StrongId<struct StageTag>;  // contiguous run of layers, 0..S-1 in forward order
using MicroBatchId = StrongId<struct MicroBatchTag>;  // index within one step, 0..m-1
using LayerId = StrongId<struct LayerTag>;            // unit of the layer graph; 0 is the embedding
using ValueId = StrongId<struct ValueTag>;            // value of the layer graph
using TensorId = StrongId<struct TensorTag>;          // weight tensor of the layer graph

}  // namespace penstock

template <class Tag>
struct std::hash<penstock::StrongId<Tag>> {
  size_t operator()(penstock::StrongId<Tag> id) const noexcept {
    return std::hash<int32_t>()(id.value());
  }
};

template <class Tag>
struct fmt::formatter<penstock::StrongId<Tag>> : fmt::formatter<int32_t> {
  template <class Context>
  auto format(penstock::StrongId<Tag> id, Context& context) const {
    return fmt::formatter<int32_t>::format(id.value(), context);
  }
};
