// What went wrong, as a value.
//
// A message reads `[module.function] what, got X, wanted Y`; a hint may follow on a second line. It
// is written for the person at the terminal: it names the file, tensor, key, rank or action, and
// says what would be legal.

#pragma once

#include <string>
#include <string_view>
#include <utility>

namespace penstock {

enum class ErrorCode {
  kInvalidArgument,   // a flag, a value or a request that can't be right
  kInvalidSchedule,   // a schedule that fails its proof
  kNotFound,          // a file, tensor or name that does not exist
  kCorruptData,       // a file whose bytes contradict themselves
  kUnsupported,       // legal, but not something this build can do
  kOutOfMemory,       // does not fit the stated budget
  kDeadlineExceeded,  // waited too long for a peer
  kPeerLost,          // a peer ended or failed
  kInterrupted,       // the user asked to stop
  kNotFinite,         // a loss, gradient or value that is not a number any more
  kInternal,          // a defect of Penstock
};

// Lower-case name of a code: "invalid argument".
std::string_view ErrorCodeName(ErrorCode code);

struct Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;
};

// Exit status of the command: 2 for what the user handed in, 3 for what failed while running.
int ExitStatus(ErrorCode code);

}  // namespace penstock
