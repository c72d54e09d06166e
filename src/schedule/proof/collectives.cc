#include "schedule/proof/collectives.h"

#include <algorithm>

namespace penstock::schedule {

Collectives::Key Collectives::KeyOf(const Action& action) {
  if (action.kind == OpKind::kBarrier)
    return {0, 0};
  return action.value != 0 ? Key{2, action.value} : Key{1, action.stage.value()};
}

const Collectives::Group* Collectives::FindGroup(const Action& action) const {
  if (action.kind != OpKind::kBarrier && action.kind != OpKind::kReduceGrad &&
      action.kind != OpKind::kWaitReduceGrad) {
    return nullptr;
  }
  const auto found = groups_.find(KeyOf(action));
  return found == groups_.end() ? nullptr : &found->second;
}

Collectives::Collectives(Proof& proof) : schedule_(proof.schedule) {
  const Placement& placement = schedule_.placement;
  auto add_owner = [&](Group& group, StageId stage) {
    for (int d = 0; d < placement.num_directions(); ++d) {
      if (d == 1 && placement.RankOf(stage, 1) == placement.RankOf(stage, 0))
        continue;
      auto [member, fresh] = group.members.try_emplace(placement.RankOf(stage, d).value());
      if (!fresh)
        ++member->second.per_occasion;
    }
  };
  for (int r = 0; r < schedule_.num_ranks(); ++r) {
    for (const Action& a : schedule_.ranks[static_cast<size_t>(r)]) {
      const bool meets = a.kind == OpKind::kBarrier || a.kind == OpKind::kReduceGrad ||
                         a.kind == OpKind::kWaitReduceGrad;
      if (!meets || !proof.Usable(r, a))
        continue;
      const bool alone =
          a.kind != OpKind::kBarrier && a.value == 0 && placement.num_directions() == 1;
      if (alone)
        continue;
      auto [group, fresh] = groups_.try_emplace(KeyOf(a));
      if (fresh && a.kind == OpKind::kBarrier) {
        for (int k = 0; k < schedule_.num_ranks(); ++k)
          group->second.members.try_emplace(k);
      } else if (fresh && a.value != 0) {
        const Edge& edge = schedule_.edges[a.value - 1U];
        add_owner(group->second, edge.from);
        for (const StageId stage : edge.to)
          add_owner(group->second, stage);
      } else if (fresh) {
        add_owner(group->second, a.stage);
      }
      Member& member = group->second.members[r];
      if (a.kind == OpKind::kWaitReduceGrad) {
        member.waits = true;
      } else {
        ++member.planned;
      }
    }
  }
  for (auto& entry : groups_)
    CheckMembers(proof, entry.first, entry.second);
}

void Collectives::CheckMembers(Proof& proof, const Key& key, Group& group) const {
  int most = 0;
  for (const auto& entry : group.members)
    most = std::max(most, entry.second.Occasions());
  group.last_time.assign(static_cast<size_t>(most) + 1, 0);
  std::string what = "BARRIER";
  if (key.first == 1)
    what = fmt::format("REDUCE_GRAD of stage {}", key.second);
  if (key.first == 2) {
    const Edge& edge = schedule_.edges[static_cast<size_t>(key.second) - 1];
    what = fmt::format("REDUCE_GRAD of '{}'", edge.name);
  }
  for (const auto& entry : group.members) {
    const int have = entry.second.Occasions();
    if (have == most)
      continue;
    proof.problems.Add(ProblemKind::kUnmatched, entry.first, -1, [&] {
      return fmt::format("{} {}, wanted {} as on the other ranks", have, what, most);
    });
  }
}

void Collectives::Arrive(int rank, const Action& action, int64_t time) {
  Group& group = groups_.at(KeyOf(action));
  Member& member = group.members[rank];
  ++member.arrived;
  int64_t& last =
      group.last_time[std::min(static_cast<size_t>(member.Started()), group.last_time.size() - 1)];
  last = std::max(last, time);
}

bool Collectives::Complete(int rank, const Action& action, int64_t& time) const {
  const Group& group = *FindGroup(action);
  const int occasion = group.members.at(rank).Started();
  const bool complete =
      std::all_of(group.members.begin(), group.members.end(),
                  [occasion](const auto& entry) { return entry.second.Reached(occasion); });
  if (complete)
    time = std::max(
        time, group.last_time[std::min(static_cast<size_t>(occasion), group.last_time.size() - 1)]);
  return complete;
}

bool Collectives::Blocks(int rank, const Action& action) const {
  if (action.kind == OpKind::kBarrier)
    return true;
  const Member& member = FindGroup(action)->members.at(rank);
  return !member.waits && member.arrived % member.per_occasion == 0;
}

std::vector<int> Collectives::Members(const Action& action) const {
  std::vector<int> ranks;
  for (const auto& [rank, member] : FindGroup(action)->members)
    ranks.push_back(rank);
  return ranks;
}

int Collectives::Laggard(int rank, const Action& action) const {
  const Group& group = *FindGroup(action);
  const int occasion = group.members.at(rank).Started();
  for (const auto& [other, member] : group.members) {
    if (!member.Reached(occasion))
      return other;
  }
  return rank;
}

int64_t Collectives::NextIndex(int rank, const Action& action, size_t from) const {
  const auto& program = schedule_.ranks[static_cast<size_t>(rank)];
  for (size_t i = from; i < program.size(); ++i) {
    const bool meets =
        program[i].kind == OpKind::kBarrier || program[i].kind == OpKind::kReduceGrad;
    if (meets && KeyOf(program[i]) == KeyOf(action))
      return static_cast<int64_t>(i);
  }
  return -1;
}

}  // namespace penstock::schedule
