// Actions at which several ranks meet: barriers, and gradient reductions between the owners of tied
// weights or the two copies of a stage.

#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "schedule/proof/proof.h"

namespace penstock::schedule {

class Collectives {
 public:
  // Indexes the schedule and reports ranks that take part less often than others (unmatched).
  explicit Collectives(Proof& proof);

  // Whether several ranks meet at this action. A REDUCE_GRAD over replicas alone concerns one rank
  // of the schedule.
  bool Concerns(const Action& action) const { return FindGroup(action) != nullptr; }

  // `rank` reaches the action at its place in the list. Call once per action.
  void Arrive(int rank, const Action& action, int64_t time);
  // Whether the occasion that `rank` arrived at last is complete; `time` becomes at least that of
  // its last arrival.
  bool Complete(int rank, const Action& action, int64_t& time) const;
  // A BARRIER blocks; a REDUCE_GRAD blocks at the last of the rank's stages in its group unless the
  // rank has a WAIT for it.
  bool Blocks(int rank, const Action& action) const;
  std::vector<int> Members(const Action& action) const;
  // A member that has not arrived as often as `rank`, and the index of its next action of the group
  // at or after `from(member)`. REQUIRES: not complete.
  int Laggard(int rank, const Action& action) const;
  int64_t NextIndex(int rank, const Action& action, size_t from) const;

 private:
  struct Member {
    int per_occasion = 1;  // the rank's actions per occasion: the stages of the group that it holds
    int planned = 0;       // its actions in the schedule
    int arrived = 0;
    bool waits = false;

    int Occasions() const { return planned / per_occasion; }

    int Started() const { return (arrived + per_occasion - 1) / per_occasion; }

    // Whether it is past `occasion` (counted from 1), or never comes.
    bool Reached(int occasion) const {
      return arrived >= occasion * per_occasion || Occasions() < occasion;
    }
  };

  struct Group {
    std::map<int, Member> members;
    std::vector<int64_t> last_time;  // per occasion
  };

  using Key = std::pair<int, int>;  // (0 barrier, 1 stage, 2 tied edge; number)

  // Every member takes part equally often.
  void CheckMembers(Proof& proof, const Key& key, Group& group) const;
  static Key KeyOf(const Action& action);
  const Group* FindGroup(const Action& action) const;

  const Schedule& schedule_;
  std::map<Key, Group> groups_;
};

}  // namespace penstock::schedule
