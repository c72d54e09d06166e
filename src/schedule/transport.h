// The rules by which sends and receives of a lowered schedule block. A proof and a simulation state
// which one they assume; compute-only schedules have free data flow and no such rule.

#pragma once

#include <cstdint>
#include <string_view>

#include "base/result.h"

namespace penstock::schedule {

enum class TransportKind : uint8_t {
  kPosted,      // send and receive never block; the computation waits for its value
  kBuffered,    // a send never blocks; a RECV waits in program order
  kCredits,     // as buffered, and a send waits for room: at most K messages of one edge and
                // direction that no RECV has taken
  kRendezvous,  // a send and its RECV end together
};

struct Transport {
  TransportKind kind = TransportKind::kCredits;
  int credits = 1;  // K; for kCredits only

  friend bool operator==(const Transport&, const Transport&) = default;
};

// "posted", "buffered", "credits", "rendezvous".
std::string_view TransportKindText(TransportKind kind);

// Errors: kInvalidArgument (another word, credits below 1).
Result<Transport> ParseTransport(std::string_view kind, int credits);

}  // namespace penstock::schedule
