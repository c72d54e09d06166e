// Long values on each rank: there before they are read or sent, not read after their release.

#include <algorithm>

#include "schedule/proof/flat_map.h"
#include "schedule/proof/proof.h"

namespace penstock::schedule {
namespace {

enum State : int32_t { kNever = 0, kHeld = 1, kReleased = 2 };

class RankValues {
 public:
  RankValues(Proof& proof, int rank, const std::vector<std::vector<uint16_t>>& read_by,
             const std::vector<std::vector<uint16_t>>& made_by)
      : proof_(proof),
        schedule_(proof.schedule),
        rank_(rank),
        read_by_(read_by),
        made_by_(made_by),
        program_(proof.schedule.ranks[static_cast<size_t>(rank)]) {}

  void Run() {
    for (size_t i = 0; i < program_.size(); ++i) {
      const Action& a = program_[i];
      if (!proof_.Usable(rank_, a))
        continue;
      index_ = static_cast<int32_t>(i);
      if (IsCompute(a.kind)) {
        for (const uint16_t value : read_by_[static_cast<size_t>(a.stage.value())])
          Read(a, value);
        if (a.kind == OpKind::kForward) {
          for (const uint16_t value : made_by_[static_cast<size_t>(a.stage.value())])
            StateOf(a, value) = kHeld;
        }
      } else if (a.value != 0 && a.kind == OpKind::kRecvForward) {
        StateOf(a, a.value) = kHeld;
      } else if (a.value != 0 && a.kind == OpKind::kSendForward) {
        Read(a, a.value);
      } else if (a.kind == OpKind::kRelease) {
        Release(a);
      }
    }
  }

 private:
  int32_t& StateOf(const Action& a, uint16_t value) {
    const uint64_t triple =
        static_cast<uint64_t>(a.micro_batch.value()) * static_cast<uint64_t>(schedule_.slices) +
        a.slice;
    return states_.FindOrInsert(static_cast<uint64_t>(value) << 48 | triple, kNever);
  }

  const std::string& Name(uint16_t value) const { return schedule_.edges[value - 1U].name; }

  // Where the release stands, and the last action of the rank that it may not stand before.
  std::string TooLate(const Action& a, uint16_t value) const {
    int64_t release = 0;
    int64_t last = index_;
    const auto reads = [&](const Action& b) {
      if (b.kind == OpKind::kSendForward)
        return b.value == value;
      const auto& by = read_by_[static_cast<size_t>(std::max(b.stage.value(), 0))];
      return IsCompute(b.kind) && std::find(by.begin(), by.end(), value) != by.end();
    };
    for (size_t i = 0; i < program_.size(); ++i) {
      const Action& b = program_[i];
      if (!proof_.Usable(rank_, b) || b.micro_batch != a.micro_batch || b.slice != a.slice)
        continue;
      if (b.kind == OpKind::kRelease && b.value == value && static_cast<int32_t>(i) < index_)
        release = static_cast<int64_t>(i);
      if (static_cast<int32_t>(i) > index_ && reads(b))
        last = static_cast<int64_t>(i);
    }
    return fmt::format(
        "reads '{}' after its release on this rank, {} at cell {}; the first legal place of that "
        "is behind {} at cell {}",
        Name(value), proof_.problems.TextAt(rank_, release), proof_.problems.CellOf(rank_, release),
        proof_.problems.TextAt(rank_, last), proof_.problems.CellOf(rank_, last));
  }

  void Read(const Action& a, uint16_t value) {
    const int32_t state = StateOf(a, value);
    if (state == kHeld)
      return;
    if (state == kReleased) {
      proof_.problems.Add(ProblemKind::kOrder, rank_, index_, [&] { return TooLate(a, value); });
      return;
    }
    if (!proof_.has_messages)
      return;  // compute-only: values arrive by themselves
    for (size_t i = static_cast<size_t>(index_) + 1; i < program_.size(); ++i) {
      const Action& later = program_[i];
      const bool brings =
          later.micro_batch == a.micro_batch && later.slice == a.slice &&
          ((later.kind == OpKind::kRecvForward && later.value == value) ||
           (later.kind == OpKind::kForward && later.stage == schedule_.edges[value - 1U].from));
      if (!brings)
        continue;
      proof_.problems.Add(ProblemKind::kOrder, rank_, index_, [&] {
        return fmt::format("before {} at cell {}, which brings '{}'", proof_.problems.Text(later),
                           proof_.problems.CellOf(rank_, static_cast<int64_t>(i)), Name(value));
      });
      StateOf(a, value) = kHeld;
      return;
    }
    Action recv = MakeAction(OpKind::kRecvForward, a.stage, a.micro_batch, a.slice);
    recv.value = value;
    proof_.problems.AddAbsent(ProblemKind::kMissing, rank_, recv, [&] {
      return fmt::format("{} at cell {} reads '{}', which never reaches this rank",
                         proof_.problems.Text(a), proof_.problems.CellOf(rank_, index_),
                         Name(value));
    });
    StateOf(a, value) = kHeld;
  }

  void Release(const Action& a) {
    if (a.value == 0) {
      proof_.problems.Add(ProblemKind::kShape, rank_, index_, [] {
        return std::string("FREE without a value, wanted ':' and its name");
      });
      return;
    }
    int32_t& state = StateOf(a, a.value);
    if (state == kReleased || (state == kNever && proof_.has_messages)) {
      proof_.problems.Add(
          state == kReleased ? ProblemKind::kDuplicate : ProblemKind::kOrder, rank_, index_, [&] {
            return fmt::format(
                "'{}' {}", Name(a.value),
                state == kReleased ? "is released already" : "is not on this rank yet");
          });
    }
    state = kReleased;
  }

  Proof& proof_;
  const Schedule& schedule_;
  int rank_;
  const std::vector<std::vector<uint16_t>>& read_by_;
  const std::vector<std::vector<uint16_t>>& made_by_;
  const std::vector<Action>& program_;
  int32_t index_ = 0;
  FlatMap states_;
};

}  // namespace

void CheckValues(Proof& proof) {
  const Schedule& s = proof.schedule;
  bool any_release = false;
  for (const auto& program : s.ranks) {
    for (const Action& a : program)
      any_release = any_release || a.kind == OpKind::kRelease;
  }
  std::vector<std::vector<uint16_t>> read_by(static_cast<size_t>(s.num_stages()));
  std::vector<std::vector<uint16_t>> made_by(static_cast<size_t>(s.num_stages()));
  bool any = false;
  for (size_t e = 0; e < s.edges.size(); ++e) {
    const Edge& edge = s.edges[e];
    if (edge.kind != EdgeKind::kValue)
      continue;
    any = true;
    made_by[static_cast<size_t>(edge.from.value())].push_back(static_cast<uint16_t>(e + 1));
    for (const StageId stage : edge.to)
      read_by[static_cast<size_t>(stage.value())].push_back(static_cast<uint16_t>(e + 1));
  }
  if (!any && !any_release)
    return;
  for (int r = 0; r < s.num_ranks(); ++r)
    RankValues(proof, r, read_by, made_by).Run();
}

}  // namespace penstock::schedule
