#include "base/error.h"

namespace penstock {

std::string_view ErrorCodeName(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "invalid argument";
    case ErrorCode::kInvalidSchedule:
      return "invalid schedule";
    case ErrorCode::kNotFound:
      return "not found";
    case ErrorCode::kCorruptData:
      return "corrupt data";
    case ErrorCode::kUnsupported:
      return "unsupported";
    case ErrorCode::kOutOfMemory:
      return "out of memory";
    case ErrorCode::kDeadlineExceeded:
      return "deadline exceeded";
    case ErrorCode::kPeerLost:
      return "peer lost";
    case ErrorCode::kInterrupted:
      return "interrupted";
    case ErrorCode::kNotFinite:
      return "not finite";
    case ErrorCode::kInternal:
      return "internal error";
  }
  return "unknown";
}

int ExitStatus(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kNotFound:
    case ErrorCode::kCorruptData:
    case ErrorCode::kUnsupported:
    case ErrorCode::kOutOfMemory:
      return 2;
    case ErrorCode::kInvalidSchedule:
      return 1;
    default:
      return 3;
  }
}

}  // namespace penstock
