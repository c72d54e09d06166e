// Taking communication out, and the WAIT cells of PyTorch's newest text form.

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "schedule/passes.h"

namespace penstock::schedule {
namespace {

template <class Remove>
Schedule Without(const Schedule& schedule, const Remove& remove) {
  Schedule out = schedule;
  for (auto& program : out.ranks) {
    // The action after a removed first part of a cell starts a cell of its own.
    size_t kept = 0;
    bool head_removed = false;
    for (Action a : program) {
      if (!a.joined)
        head_removed = false;
      if (remove(a)) {
        head_removed = head_removed || !a.joined;
        continue;
      }
      if (a.joined && head_removed) {
        a.joined = false;
        head_removed = false;
      }
      program[kept++] = a;
    }
    program.resize(kept);
  }
  return out;
}

bool IsWait(OpKind kind) {
  return kind == OpKind::kWaitSendForward || kind == OpKind::kWaitSendBackward;
}

Action WaitFor(const Action& send) {
  Action wait = send;
  wait.kind =
      send.kind == OpKind::kSendForward ? OpKind::kWaitSendForward : OpKind::kWaitSendBackward;
  wait.joined = false;
  return wait;
}

// Adds the waits of one rank.
class WaitWriter {
 public:
  WaitWriter(const std::vector<Action>& in, bool forward_only)
      : in_(in), forward_only_(forward_only) {
    for (const Action& a : in_) {
      if (IsWait(a.kind))
        waited_.insert(KeyOf(a, a.kind == OpKind::kWaitSendForward));
    }
  }

  std::vector<Action> Run() {
    for (size_t i = 0; i < in_.size(); ++i) {
      const Action& a = in_[i];
      if (!a.joined) {
        for (size_t k = i; k == i || (k < in_.size() && in_[k].joined); ++k)
          Before(in_[k]);
      }
      out_.push_back(a);
      if (IsSend(a.kind) && waited_.count(KeyOf(a, a.kind == OpKind::kSendForward)) == 0)
        pending_.push_back(a);
    }
    for (const Action& send : pending_)
      out_.push_back(WaitFor(send));
    return std::move(out_);
  }

 private:
  using Key = std::tuple<bool, int, int, int, int, int>;

  static Key KeyOf(const Action& a, bool forward) {
    return {forward, a.stage.value(), a.micro_batch.value(), a.slice, a.value, a.peer_stage};
  }

  // Flushes what must be waited for before this action.
  void Before(const Action& a) {
    const bool backward = a.kind == OpKind::kBackward || a.kind == OpKind::kBackwardInput;
    auto due = [&](const Action& send) {
      if (send.stage != a.stage)
        return false;
      if (send.kind == OpKind::kSendForward) {
        return (backward && send.micro_batch == a.micro_batch) ||
               (forward_only_ && a.kind == OpKind::kSendForward && a.value == send.value &&
                a.peer_stage == send.peer_stage);
      }
      return a.kind == OpKind::kSendBackward;
    };
    size_t kept = 0;
    for (const Action& send : pending_) {
      if (due(send)) {
        out_.push_back(WaitFor(send));
      } else {
        pending_[kept++] = send;
      }
    }
    pending_.resize(kept);
  }

  const std::vector<Action>& in_;
  bool forward_only_;
  std::set<Key> waited_;
  std::vector<Action> pending_;
  std::vector<Action> out_;
};

}  // namespace

Result<Schedule> RemoveCommunication(const Schedule& schedule) {
  Schedule out = Without(schedule, [](const Action& a) {
    return IsMessage(a.kind) || IsWait(a.kind) || a.kind == OpKind::kRelease;
  });
  out.lowered = false;
  return out;
}

Result<Schedule> RemoveWaits(const Schedule& schedule) {
  return Without(schedule, [](const Action& a) {
    return IsWait(a.kind) || a.kind == OpKind::kWaitReduceGrad;
  });
}

Result<Schedule> RemoveIdle(const Schedule& schedule) {
  return Without(schedule, [](const Action& a) { return a.kind == OpKind::kIdle; });
}

Result<Schedule> AddWaits(const Schedule& schedule) {
  Schedule out = schedule;
  for (size_t r = 0; r < schedule.ranks.size(); ++r)
    out.ranks[r] = WaitWriter(schedule.ranks[r], schedule.forward_only).Run();
  return out;
}

}  // namespace penstock::schedule
