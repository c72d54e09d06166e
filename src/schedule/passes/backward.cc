// Splitting and merging the backward.

#include "schedule/passes.h"

namespace penstock::schedule {

Result<Schedule> SplitBackward(const Schedule& schedule) {
  Schedule out = schedule;
  for (size_t r = 0; r < schedule.ranks.size(); ++r) {
    std::vector<Action> program;
    program.reserve(schedule.ranks[r].size());
    std::vector<Action> weights;  // of the current cell
    for (const Action& a : schedule.ranks[r]) {
      if (!a.joined) {
        program.insert(program.end(), weights.begin(), weights.end());
        weights.clear();
      }
      program.push_back(a);
      if (a.kind != OpKind::kBackward)
        continue;
      program.back().kind = OpKind::kBackwardInput;
      weights.push_back(a);
      weights.back().kind = OpKind::kBackwardWeight;
      weights.back().joined = false;
    }
    program.insert(program.end(), weights.begin(), weights.end());
    out.ranks[r] = std::move(program);
  }
  return out;
}

Result<Schedule> MergeBackward(const Schedule& schedule) {
  Schedule out = schedule;
  for (auto& program : out.ranks) {
    size_t kept = 0;
    for (const Action& a : program) {
      const bool follows =
          kept > 0 && a.kind == OpKind::kBackwardWeight && !a.joined &&
          program[kept - 1].kind == OpKind::kBackwardInput && program[kept - 1].stage == a.stage &&
          program[kept - 1].micro_batch == a.micro_batch && program[kept - 1].slice == a.slice;
      if (follows) {
        program[kept - 1].kind = OpKind::kBackward;
      } else {
        program[kept++] = a;
      }
    }
    program.resize(kept);
  }
  return out;
}

}  // namespace penstock::schedule
