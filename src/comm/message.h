// What a message says of itself. Messages are matched by tag, never by order, and the receiver
// checks the tag and the shape instead of inferring them.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"
#include "tensor/dtype.h"

namespace penstock::comm {

// What an edge carries.
enum class LaneKind : uint8_t {
  kForward,   // values of one stage boundary
  kBackward,  // gradients of the same
  kPlan,      // step plans, from the decider to a stage
  kResult,    // sampled ids, from the head's stage to the decider
  kControl,   // set-up, readiness and reports, between a stage and the decider
  kReduce,    // gradients of weights, between the holders of the same weights
};

// Names one stream of messages between two ranks. `edge` is the boundary's index (the sending
// stage) or 0.
struct Lane {
  LaneKind kind = LaneKind::kForward;
  int32_t source = 0;
  int32_t target = 0;
  int32_t edge = 0;

  friend bool operator==(const Lane&, const Lane&) = default;
};

// "values of boundary 1 from rank 0 to rank 1".
std::string LaneText(const Lane& lane);

// Which message of a lane.
struct Tag {
  int64_t step = 0;
  int32_t micro_batch = 0;

  friend bool operator==(const Tag&, const Tag&) = default;
};

struct MessageHeader {
  Lane lane;
  Tag tag;
  DType type = DType::kU8;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t sent_ns = 0;  // when it was handed over, on the sender's monotonic clock; for traces only

  int64_t payload_bytes() const { return rows * RowBytes(type, columns); }
};

inline constexpr size_t kHeaderBytes = 64;

// Fixed little-endian layout, documented in docs/formats.md.
std::array<std::byte, kHeaderBytes> EncodeHeader(const MessageHeader& header);

// Errors: kCorruptData (magic, version, kind, type, negative or overflowing shape, reserved bytes
// that are not zero, too few bytes).
Result<MessageHeader> DecodeHeader(std::span<const std::byte> bytes);

}  // namespace penstock::comm
