// The end of a step, and several steps in a row.

#include <algorithm>
#include <map>

#include "schedule/passes.h"

namespace penstock::schedule {
namespace {

Action StageAction(OpKind kind, StageId stage, uint16_t value = 0) {
  Action a = MakeAction(kind, stage, MicroBatchId());
  a.value = value;
  return a;
}

bool NumberIsStep(OpKind kind) {
  return kind == OpKind::kOptimizer || kind == OpKind::kBarrier || kind == OpKind::kReduceGrad ||
         kind == OpKind::kWaitReduceGrad;
}

// The stage's two copies are on different ranks.
bool HasTwoOwners(const Schedule& s, StageId stage) {
  return s.placement.num_directions() == 2 &&
         s.placement.RankOf(stage, 0) != s.placement.RankOf(stage, 1);
}

bool Holds(const Schedule& s, StageId stage, size_t rank) {
  for (int d = 0; d < s.placement.num_directions(); ++d) {
    if (s.placement.RankOf(stage, d) == RankId(static_cast<int32_t>(rank)))
      return true;
  }
  return false;
}

Error NotOneStep(const char* pass, const Schedule& s) {
  return MakeError(ErrorCode::kInvalidSchedule, "[schedule.{}] {} has {} steps, wanted 1", pass,
                   s.name, s.steps);
}

}  // namespace

Result<Schedule> AddStepEnd(const Schedule& schedule, const StepEndOptions& options) {
  if (schedule.steps != 1)
    return NotOneStep("step_end", schedule);
  Schedule out = schedule;
  for (size_t r = 0; r < schedule.ranks.size(); ++r) {
    const auto& program = schedule.ranks[r];
    std::map<int, size_t> last_weight;  // stage -> index of its last B or W here
    for (size_t i = 0; i < program.size(); ++i) {
      const OpKind kind = program[i].kind;
      if (kind == OpKind::kBackward || kind == OpKind::kBackwardWeight)
        last_weight[program[i].stage.value()] = i;
      if (NumberIsStep(kind)) {
        return MakeError(
            ErrorCode::kInvalidSchedule,
            "[schedule.step_end] rank {} has {} already, wanted a step without its end", r,
            ActionText(program[i], schedule.edges));
      }
    }
    std::vector<Action> written;
    std::vector<Action> due;
    for (size_t i = 0; i < program.size(); ++i) {
      if (!program[i].joined) {
        written.insert(written.end(), due.begin(), due.end());
        due.clear();
      }
      written.push_back(program[i]);
      if (!options.reduce || !program[i].stage.valid())
        continue;
      const auto last = last_weight.find(program[i].stage.value());
      if (last != last_weight.end() && last->second == i &&
          !HasTwoOwners(schedule, program[i].stage)) {
        due.push_back(StageAction(OpKind::kReduceGrad, program[i].stage));
      }
    }
    written.insert(written.end(), due.begin(), due.end());
    if (options.reduce) {
      for (int s = 0; s < schedule.num_stages(); ++s) {
        if (HasTwoOwners(schedule, StageId(s)) && Holds(schedule, StageId(s), r)) {
          written.push_back(StageAction(OpKind::kReduceGrad, StageId(s)));
        }
      }
      for (size_t e = 0; e < schedule.edges.size(); ++e) {
        const Edge& edge = schedule.edges[e];
        if (edge.kind != EdgeKind::kTied)
          continue;
        std::vector<StageId> owners = edge.to;
        owners.insert(owners.begin(), edge.from);
        for (const StageId owner : owners) {
          if (Holds(schedule, owner, r))
            written.push_back(
                StageAction(OpKind::kReduceGrad, owner, static_cast<uint16_t>(e + 1)));
        }
      }
    }
    if (options.optimizer) {
      for (int s = 0; s < schedule.num_stages(); ++s) {
        if (Holds(schedule, StageId(s), r))
          written.push_back(StageAction(OpKind::kOptimizer, StageId(s)));
      }
    }
    out.ranks[r] = std::move(written);
  }
  return out;
}

Result<Schedule> UnrollSteps(const Schedule& schedule, int steps, bool barrier) {
  if (schedule.steps != 1)
    return NotOneStep("unroll", schedule);
  if (steps < 1 || int64_t{schedule.micro_batches} * steps > 0x7ffffffe) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[schedule.unroll] {} steps of {} micro-batches, wanted at least 1 and less "
                     "than 2^31 in all",
                     steps, schedule.micro_batches);
  }
  Schedule out = schedule;
  out.steps = steps;
  for (auto& program : out.ranks) {
    const std::vector<Action> one = std::move(program);
    program.clear();
    program.reserve(one.size() * static_cast<size_t>(steps) + static_cast<size_t>(steps));
    for (int t = 0; t < steps; ++t) {
      for (Action a : one) {
        if (NumberIsStep(a.kind)) {
          a.micro_batch = MicroBatchId(t);
        } else if (a.micro_batch.valid()) {
          a.micro_batch = MicroBatchId(a.micro_batch.value() + t * schedule.micro_batches);
        }
        program.push_back(a);
      }
      if (barrier && t + 1 < steps)
        program.push_back(MakeAction(OpKind::kBarrier, StageId(), MicroBatchId(t)));
    }
  }
  return out;
}

}  // namespace penstock::schedule
