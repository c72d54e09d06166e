#include "serve/control.h"

#include <algorithm>
#include <cstring>

#include "base/progress.h"

namespace penstock::serve {
namespace {

using comm::Lane;
using comm::LaneKind;

Lane ControlLane(int32_t source, int32_t target) {
  return {LaneKind::kControl, source, target, 0};
}

comm::LaneOptions Options() {
  return {kControlPieceBytes, 1};
}

}  // namespace

Result<> ControlLink::Open(MemoryAccount& account) {
  for (int32_t other = 1; other < channel_.size(); ++other) {
    if (channel_.rank() == 0 || channel_.rank() == other) {
      PENSTOCK_TRY(channel_.Open(ControlLane(0, other), Options(), account));
      PENSTOCK_TRY(channel_.Open(ControlLane(other, 0), Options(), account));
    }
  }
  return {};
}

Result<> ControlLink::Send(int32_t target, std::span<const std::byte> bytes, double deadline_s) {
  const Lane lane = ControlLane(channel_.rank(), target);
  // The first piece is the length; then whole pieces and a rest.
  const auto size = static_cast<int64_t>(bytes.size());
  const std::span<const std::byte> length = std::as_bytes(std::span(&size, 1));
  PENSTOCK_TRY(
      channel_.Send({lane, {0, 0}, DType::kU8, 8, 1, 0}, std::span(&length, 1), deadline_s));
  for (int64_t done = 0; done < size; done += kControlPieceBytes) {
    const int64_t piece = std::min(kControlPieceBytes, size - done);
    const auto part = bytes.subspan(static_cast<size_t>(done), static_cast<size_t>(piece));
    PENSTOCK_TRY(channel_.Send({lane, {1 + done / kControlPieceBytes, 0}, DType::kU8, piece, 1, 0},
                               std::span(&part, 1), deadline_s));
  }
  return {};
}

bool ControlLink::Ready(int32_t source) {
  return channel_.Ready(ControlLane(source, channel_.rank()));
}

Result<std::vector<std::byte>> ControlLink::Receive(int32_t source, double deadline_s,
                                                    int64_t limit_bytes) {
  const Lane lane = ControlLane(source, channel_.rank());
  int64_t size = -1;
  {
    PENSTOCK_TRY_ASSIGN(const comm::Message message, channel_.Receive(lane, {0, 0}, deadline_s));
    if (message.payload().size() == sizeof size) {
      std::memcpy(&size, message.payload().data(), sizeof size);
    }
  }
  if (size < 0 || size > limit_bytes) {
    return MakeError(ErrorCode::kCorruptData,
                     "[serve.control] rank {} announces {} bytes, wanted at most {}", source, size,
                     limit_bytes);
  }
  std::vector<std::byte> bytes;
  while (static_cast<int64_t>(bytes.size()) < size) {
    const int64_t piece = static_cast<int64_t>(bytes.size()) / kControlPieceBytes;
    PENSTOCK_TRY_ASSIGN(const comm::Message message,
                        channel_.Receive(lane, {1 + piece, 0}, deadline_s));
    bytes.insert(bytes.end(), message.payload().begin(), message.payload().end());
    Progress();
  }
  return bytes;
}

int64_t PlannedControlBytes(int32_t rank, int32_t ranks, bool across) {
  const int64_t one = comm::LaneBufferBytes(Options(), true, across) +
                      comm::LaneBufferBytes(Options(), false, across);
  return rank == 0 ? (ranks - 1) * one : one;
}

}  // namespace penstock::serve
