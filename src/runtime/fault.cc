#include "runtime/fault.h"

#include <charconv>
#include <cstdlib>

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
                "or SEND_F, and a step number, or LOAD; kinds fail, stall, die)",
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
  if (!ReadNumber(text.substr(0, first), fault.stage)) {
    return wrong;
  }
  if (fault.loading) {
    fault.step = -1;
  } else if (digits == std::string_view::npos || !ReadNumber(action.substr(digits), fault.step)) {
    return wrong;
  }
  bool known = fault.loading;
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

}  // namespace penstock::runtime
