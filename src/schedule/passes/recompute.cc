// Recomputation as planned actions.

#include <algorithm>
#include <set>
#include <tuple>

#include "schedule/passes.h"

namespace penstock::schedule {
namespace {

using Triple = std::tuple<int, int, int>;

Triple TripleOf(const Action& a) {
  return {a.stage.value(), a.micro_batch.value(), a.slice};
}

bool IsInputGradient(const Action& a) {
  return a.kind == OpKind::kBackward || a.kind == OpKind::kBackwardInput;
}

}  // namespace

Result<Schedule> PlaceRecompute(const Schedule& schedule, const std::vector<StageId>& stages) {
  for (const StageId stage : stages) {
    if (stage.value() < 0 || stage.value() >= schedule.num_stages()) {
      return MakeError(ErrorCode::kInvalidArgument, "[schedule.recompute] stage {}, wanted 0 to {}",
                       stage, schedule.num_stages() - 1);
    }
  }
  Schedule out = schedule;
  for (auto& program : out.ranks) {
    std::set<Triple> has;
    for (const Action& a : program) {
      if (a.kind == OpKind::kRecompute)
        has.insert(TripleOf(a));
    }
    std::vector<Action> written;
    written.reserve(program.size() + program.size() / 2);
    const Action* before = nullptr;  // computation before the current cell
    for (size_t i = 0; i < program.size();) {
      size_t end = i + 1;
      while (end < program.size() && program[end].joined)
        ++end;
      for (size_t k = i; k < end; ++k) {
        const Action& a = program[k];
        const bool wanted =
            stages.empty() || std::find(stages.begin(), stages.end(), a.stage) != stages.end();
        const bool directly = before != nullptr && before->kind == OpKind::kForward &&
                              TripleOf(*before) == TripleOf(a);
        if (IsInputGradient(a) && wanted && !directly && has.count(TripleOf(a)) == 0) {
          written.push_back(MakeAction(OpKind::kRecompute, a.stage, a.micro_batch, a.slice));
        }
      }
      for (; i < end; ++i) {
        written.push_back(program[i]);
        if (IsCompute(program[i].kind))
          before = &program[i];
      }
    }
    program = std::move(written);
  }
  return out;
}

}  // namespace penstock::schedule
