#include "comm/message.h"

#include <cstring>

namespace penstock::comm {
namespace {

constexpr uint32_t kMagic = 0x4B545350;  // "PSTK"
constexpr uint16_t kVersion = 1;
constexpr int64_t kMaxElements = int64_t{1} << 40;

template <class T>
void Put(std::array<std::byte, kHeaderBytes>& bytes, size_t offset, T value) {
  std::memcpy(bytes.data() + offset, &value, sizeof value);
}

template <class T>
T Get(std::span<const std::byte> bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

bool PlainType(DType type) {
  return type <= DType::kI64;
}

}  // namespace

std::string LaneText(const Lane& lane) {
  switch (lane.kind) {
    case LaneKind::kForward:
      return fmt::format("values of boundary {} from rank {} to rank {}", lane.edge, lane.source,
                         lane.target);
    case LaneKind::kBackward:
      return fmt::format("gradients of boundary {} from rank {} to rank {}", lane.edge, lane.source,
                         lane.target);
    case LaneKind::kPlan:
      return fmt::format("step plans from rank {} to rank {}", lane.source, lane.target);
    case LaneKind::kResult:
      return fmt::format("sampled tokens from rank {} to rank {}", lane.source, lane.target);
    case LaneKind::kControl:
      return fmt::format("control messages from rank {} to rank {}", lane.source, lane.target);
    case LaneKind::kReduce:
      return fmt::format("gradients of shared weights from rank {} to rank {}", lane.source,
                         lane.target);
  }
  return "unknown lane";
}

std::array<std::byte, kHeaderBytes> EncodeHeader(const MessageHeader& header) {
  std::array<std::byte, kHeaderBytes> bytes{};
  Put(bytes, 0, kMagic);
  Put(bytes, 4, kVersion);
  Put(bytes, 6, static_cast<uint8_t>(header.lane.kind));
  Put(bytes, 7, static_cast<uint8_t>(header.type));
  Put(bytes, 8, header.lane.source);
  Put(bytes, 12, header.lane.target);
  Put(bytes, 16, header.lane.edge);
  Put(bytes, 20, header.tag.micro_batch);
  Put(bytes, 24, header.tag.step);
  Put(bytes, 32, header.rows);
  Put(bytes, 40, header.columns);
  Put(bytes, 48, header.sent_ns);
  return bytes;
}

Result<MessageHeader> DecodeHeader(std::span<const std::byte> bytes) {
  const auto wrong = [](std::string_view what) {
    return MakeError(ErrorCode::kCorruptData, "[comm.message] header of a message: {}", what);
  };
  if (bytes.size() < kHeaderBytes) {
    return wrong(fmt::format("got {} bytes, wanted {}", bytes.size(), kHeaderBytes));
  }
  if (Get<uint32_t>(bytes, 0) != kMagic) {
    return wrong("it does not begin with PSTK");
  }
  if (const auto version = Get<uint16_t>(bytes, 4); version != kVersion) {
    return wrong(fmt::format("version {}, wanted {}", version, kVersion));
  }
  MessageHeader header;
  const auto kind = Get<uint8_t>(bytes, 6);
  if (kind > static_cast<uint8_t>(LaneKind::kReduce)) {
    return wrong(fmt::format("unknown kind {}", kind));
  }
  header.lane.kind = static_cast<LaneKind>(kind);
  header.type = static_cast<DType>(Get<uint8_t>(bytes, 7));
  if (!PlainType(header.type)) {
    return wrong(fmt::format("unknown type {}", Get<uint8_t>(bytes, 7)));
  }
  header.lane.source = Get<int32_t>(bytes, 8);
  header.lane.target = Get<int32_t>(bytes, 12);
  header.lane.edge = Get<int32_t>(bytes, 16);
  header.tag.micro_batch = Get<int32_t>(bytes, 20);
  header.tag.step = Get<int64_t>(bytes, 24);
  header.rows = Get<int64_t>(bytes, 32);
  header.columns = Get<int64_t>(bytes, 40);
  header.sent_ns = Get<int64_t>(bytes, 48);
  if (header.lane.source < 0 || header.lane.target < 0 || header.lane.edge < 0 ||
      header.tag.micro_batch < 0 || header.tag.step < 0) {
    return wrong("a negative rank, edge, micro-batch or step");
  }
  if (header.rows < 0 || header.columns < 0 || header.rows > kMaxElements ||
      header.columns > kMaxElements ||
      (header.columns > 0 && header.rows > kMaxElements / header.columns)) {
    return wrong(fmt::format("impossible shape {} x {}", header.rows, header.columns));
  }
  for (size_t i = 56; i < kHeaderBytes; ++i) {
    if (bytes[i] != std::byte{0}) {
      return wrong("reserved bytes are not zero");
    }
  }
  return header;
}

}  // namespace penstock::comm
