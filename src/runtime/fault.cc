#include "runtime/fault.h"

#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <thread>

namespace penstock::runtime {
namespace {

template <class T>
bool ReadNumber(std::string_view text, T& number) {
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  return code == std::errc() && end == text.data() + text.size() && number >= 0;
}

}  // namespace

Result<Fault> ParseFault(std::string_view text) {
  const Error wrong =
      MakeError(ErrorCode::kInvalidArgument,
                "[runtime.fault] PENSTOCK_FAULT: got '{}', wanted "
                "STAGE:ACTION:KIND, for instance 1:F12:stall (an action, as F, B, W "
                "or SEND_F, and a step number, or LOAD or END; kinds fail, stall, die)",
                text);
  const size_t first = text.find(':');
  const size_t second = first == std::string_view::npos ? first : text.find(':', first + 1);
  if (second == std::string_view::npos) {
    return wrong;
  }
  Fault fault;
  const std::string_view action = text.substr(first + 1, second - first - 1);
  const std::string_view kind = text.substr(second + 1);
  const size_t digits = action.find_first_of("0123456789");
  fault.loading = action == "LOAD";
  fault.ending = action == "END";
  const bool around = fault.loading || fault.ending;
  if (!ReadNumber(text.substr(0, first), fault.stage)) {
    return wrong;
  }
  if (around) {
    fault.step = -1;
  } else if (digits == std::string_view::npos || !ReadNumber(action.substr(digits), fault.step)) {
    return wrong;
  }
  bool known = around;
  for (int k = 1; k < schedule::kOpKindCount; ++k) {
    const auto op = static_cast<schedule::OpKind>(k);
    if (schedule::OpKindText(op) == action.substr(0, digits)) {
      fault.action = op;
      known = true;
    }
  }
  if (kind == "fail") {
    fault.kind = Fault::Kind::kFail;
  } else if (kind == "stall") {
    fault.kind = Fault::Kind::kStall;
  } else if (kind == "die") {
    fault.kind = Fault::Kind::kDie;
  } else {
    known = false;
  }
  if (!known) {
    return wrong;
  }
  return fault;
}

Result<std::optional<Fault>> FaultFromEnvironment() {
  const char* text = std::getenv("PENSTOCK_FAULT");
  if (text == nullptr || *text == '\0') {
    return std::optional<Fault>();
  }
  PENSTOCK_TRY_ASSIGN(const Fault fault, ParseFault(text));
  return std::optional<Fault>(fault);
}

Result<> InjectFaultAround(const std::optional<Fault>& fault, bool ending, comm::Channel& channel) {
  if (!fault || !(ending ? fault->ending : fault->loading) || fault->stage != channel.rank()) {
    return {};
  }
  if (fault->kind == Fault::Kind::kFail) {
    return MakeError(ErrorCode::kInternal,
                     "[runtime.fault] rank {} (stage {} of PENSTOCK_FAULT), {}: a declared fault",
                     channel.rank(), fault->stage, ending ? "ending" : "loading");
  }
  if (fault->kind == Fault::Kind::kDie && channel.across_processes()) {
    std::raise(SIGKILL);
  }
  while (!channel.failed()) {  // silent until the others have noticed
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return MakeError(ErrorCode::kPeerLost, "[runtime.fault] stopped by a declared fault");
}

}  // namespace penstock::runtime
