#include "schedule/transport.h"

namespace penstock::schedule {

std::string_view TransportKindText(TransportKind kind) {
  switch (kind) {
    case TransportKind::kPosted:
      return "posted";
    case TransportKind::kBuffered:
      return "buffered";
    case TransportKind::kCredits:
      return "credits";
    case TransportKind::kRendezvous:
      break;
  }
  return "rendezvous";
}

Result<Transport> ParseTransport(std::string_view kind, int credits) {
  if (credits < 1) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[schedule.transport] {} credits, wanted at least 1", credits);
  }
  for (const TransportKind candidate : {TransportKind::kPosted, TransportKind::kBuffered,
                                        TransportKind::kCredits, TransportKind::kRendezvous}) {
    if (kind == TransportKindText(candidate))
      return Transport{candidate, credits};
  }
  return MakeError(ErrorCode::kInvalidArgument,
                   "[schedule.transport] got '{}', wanted posted, buffered, credits or rendezvous",
                   kind.substr(0, 40));
}

}  // namespace penstock::schedule
