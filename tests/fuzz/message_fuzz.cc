// What travels between ranks: message headers, step plans, notes to the head, and its results. The
// first byte chooses (h, p, n, r). Whatever is accepted must be written back as it was read.

#include <algorithm>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "comm/message.h"
#include "runtime/step_plan.h"
#include "serve/head_note.h"

namespace penstock {
namespace {

using Bytes = std::span<const std::byte>;

bool Same(Bytes a, Bytes b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

void Header(Bytes bytes) {
  const auto header = comm::DecodeHeader(bytes);
  if (!header.ok()) {
    return;
  }
  PENSTOCK_CHECK(Same(comm::EncodeHeader(header.value()), bytes.first(comm::kHeaderBytes)),
                 "same header");
  PENSTOCK_CHECK(header->payload_bytes() >= 0, "the payload's size does not overflow");
  PENSTOCK_CHECK(!comm::LaneText(header->lane).empty(), "every lane has a name");
}

void Plan(Bytes bytes) {
  const runtime::PlanLimits limits{.max_rows = 64,
                                   .max_sequences = 8,
                                   .pools = 2,
                                   .max_blocks_per_table = 16,
                                   .max_note_bytes = 256};
  const auto plan = runtime::DecodePlan(bytes, limits);
  if (!plan.ok()) {
    return;
  }
  PENSTOCK_CHECK(plan->rows() <= limits.max_rows && plan->selected() <= plan->rows(), "limits");
  const auto once = runtime::EncodePlan(plan.value());
  PENSTOCK_CHECK(static_cast<int64_t>(once.size()) <= runtime::MaxPlanBytes(limits), "fits a lane");
  const auto again = runtime::DecodePlan(once, limits);
  PENSTOCK_CHECK(again.ok() && Same(runtime::EncodePlan(again.value()), once), "same plan");
}

void Note(Bytes bytes) {
  const auto note = serve::DecodeNote(bytes);
  if (note.ok()) {
    PENSTOCK_CHECK(serve::EncodeNote(note.value()).size() == bytes.size(), "same note");
  }
}

void Results(Bytes bytes) {
  const auto rows = serve::DecodeResults(bytes);
  if (rows.ok()) {
    PENSTOCK_CHECK(Same(serve::EncodeResults(rows.value()), bytes), "same results");
  }
}

void OneInput(Bytes bytes) {
  if (bytes.empty()) {
    return;
  }
  const Bytes rest = bytes.subspan(1);
  switch (static_cast<char>(bytes[0])) {
    case 'h':
      return Header(rest);
    case 'p':
      return Plan(rest);
    case 'n':
      return Note(rest);
    case 'r':
      return Results(rest);
    default:
      return;
  }
}

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  penstock::OneInput(std::as_bytes(std::span(data, size)));
  return 0;
}
