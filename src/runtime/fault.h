// A declared fault, for tests: PENSTOCK_FAULT=stage:action:kind, for instance 1:F12:stall. The
// action is a kind and the number of the step plan; in training of the optimizer step, and then the
// stage's first action of that kind in it (`OPT`, `B`, `SEND_B`, ...). LOAD (1:LOAD:stall) is the
// loading of a rank, END the end of a training run, after its last step; both name a rank instead
// of a stage. Kinds of fault are `fail` (an error), `stall` (the rank does nothing any more) and
// `die` (the process is killed; a thread ends without a word).

#pragma once

#include <optional>
#include <string_view>

#include "base/result.h"
#include "comm/channel.h"
#include "schedule/action.h"

namespace penstock::runtime {

struct Fault {
  enum class Kind : uint8_t { kFail, kStall, kDie };
  int32_t stage = 0;
  schedule::OpKind action = schedule::OpKind::kForward;
  int64_t step = 0;      // -1 while loading
  bool loading = false;  // instead of an action
  bool ending = false;
  Kind kind = Kind::kFail;
};

// Errors: kInvalidArgument with the grammar.
Result<Fault> ParseFault(std::string_view text);

// From the environment; nothing when it is unset.
Result<std::optional<Fault>> FaultFromEnvironment();

// What a LOAD (with `ending` an END) of this rank does; nothing where the fault is another.
Result<> InjectFaultAround(const std::optional<Fault>& fault, bool ending, comm::Channel& channel);

}  // namespace penstock::runtime
