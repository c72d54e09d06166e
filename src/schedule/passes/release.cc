// Releasing long values at the earliest legal action.

#include <map>
#include <tuple>

#include "schedule/passes.h"

namespace penstock::schedule {

Result<Schedule> ReleaseValues(const Schedule& schedule) {
  std::vector<std::vector<uint16_t>> uses(
      static_cast<size_t>(schedule.num_stages()));  // values that a stage reads
  std::vector<std::vector<uint16_t>> makes(static_cast<size_t>(schedule.num_stages()));
  for (size_t e = 0; e < schedule.edges.size(); ++e) {
    if (schedule.edges[e].kind != EdgeKind::kValue)
      continue;
    makes[static_cast<size_t>(schedule.edges[e].from.value())].push_back(
        static_cast<uint16_t>(e + 1));
    for (const StageId stage : schedule.edges[e].to)
      uses[static_cast<size_t>(stage.value())].push_back(static_cast<uint16_t>(e + 1));
  }
  Schedule out = schedule;
  using Key = std::tuple<uint16_t, int, int>;  // value, micro-batch, slice
  for (size_t r = 0; r < schedule.ranks.size(); ++r) {
    const auto& program = schedule.ranks[r];
    std::map<Key, size_t> last_use;
    for (size_t i = 0; i < program.size(); ++i) {
      const Action& a = program[i];
      if (a.kind == OpKind::kRelease) {
        return MakeError(
            ErrorCode::kInvalidSchedule,
            "[schedule.release] rank {} has {} already, wanted a schedule without FREE", r,
            ActionText(a, schedule.edges));
      }
      auto use = [&](uint16_t value) { last_use[{value, a.micro_batch.value(), a.slice}] = i; };
      if (IsCompute(a.kind)) {
        for (const uint16_t value : uses[static_cast<size_t>(a.stage.value())])
          use(value);
        if (a.kind == OpKind::kForward) {
          for (const uint16_t value : makes[static_cast<size_t>(a.stage.value())])
            use(value);
        }
      } else if (IsMessage(a.kind) && a.value != 0) {
        use(a.value);
      }
    }
    std::map<size_t, std::vector<uint16_t>> freed_after;
    for (const auto& [key, index] : last_use)
      freed_after[index].push_back(std::get<0>(key));
    std::vector<Action> written;
    written.reserve(program.size() + last_use.size());
    std::vector<Action> due;
    for (size_t i = 0; i < program.size(); ++i) {
      if (!program[i].joined) {
        written.insert(written.end(), due.begin(), due.end());
        due.clear();
      }
      written.push_back(program[i]);
      const auto freed = freed_after.find(i);
      if (freed == freed_after.end())
        continue;
      for (const uint16_t value : freed->second) {
        Action release = MakeAction(OpKind::kRelease, program[i].stage, program[i].micro_batch,
                                    program[i].slice);
        release.value = value;
        due.push_back(release);
      }
    }
    written.insert(written.end(), due.begin(), due.end());
    out.ranks[r] = std::move(written);
  }
  return out;
}

}  // namespace penstock::schedule
