// The parts of the proof, which Validate runs in this order. Each reports what it finds and leaves
// out of the later parts what it has reported: an action out of range is skipped, an input that is
// missing counts as there.

#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "schedule/schedule.h"
#include "schedule/validate.h"

namespace penstock::schedule {

// Collects problems up to a number, counts the rest.
class ProblemList {
 public:
  ProblemList(const Schedule& schedule, Report& report, int max_problems)
      : schedule_(schedule), report_(report), max_problems_(max_problems) {}

  // `index` counts actions in the rank's list (-1: none). `message` is only called where the
  // problem is listed.
  template <class Message>
  void Add(ProblemKind kind, int rank, int64_t index, const Message& message) {
    if (report_.problem_count++ < max_problems_)
      AddListed(kind, rank, index, nullptr, message());
  }

  // For an action that is not there.
  template <class Message>
  void AddAbsent(ProblemKind kind, int rank, const Action& action, const Message& message) {
    if (report_.problem_count++ < max_problems_)
      AddListed(kind, rank, -1, &action, message());
  }

  std::string Text(const Action& action) const { return ActionText(action, schedule_.edges); }

  std::string TextAt(int rank, int64_t index) const {
    return Text(schedule_.ranks[static_cast<size_t>(rank)][static_cast<size_t>(index)]);
  }

  // Cell of an action: joined actions share one.
  int CellOf(int rank, int64_t index) const;

 private:
  void AddListed(ProblemKind kind, int rank, int64_t index, const Action* absent,
                 std::string message);

  const Schedule& schedule_;
  Report& report_;
  int max_problems_;
};

// Where each triple's actions stand in their rank's list.
class TripleTable {
 public:
  static constexpr int32_t kAbsent = -1;
  static constexpr int32_t kElsewhere = -2;  // there, but where it can't be used (reported)

  struct Entry {
    int32_t forward = kAbsent;
    int32_t input = kAbsent;   // B or I
    int32_t weight = kAbsent;  // B or W
    int32_t recompute = kAbsent;
  };

  void Resize(const Schedule& schedule);

  size_t IndexOf(int stage, int micro_batch, int slice) const {
    return (static_cast<size_t>(stage) * micro_batches_ + static_cast<size_t>(micro_batch)) *
               slices_ +
           static_cast<size_t>(slice);
  }

  size_t IndexOf(const Action& a) const {
    return IndexOf(a.stage.value(), a.micro_batch.value(), a.slice);
  }

  Entry& operator[](size_t i) { return entries_[i]; }

  const Entry& operator[](size_t i) const { return entries_[i]; }

  size_t size() const { return entries_.size(); }

 private:
  size_t micro_batches_ = 0;
  size_t slices_ = 1;
  std::vector<Entry> entries_;
};

struct Message {
  int32_t send_rank = -1;
  int32_t send_index = -1;
  int32_t recv_rank = -1;
  int32_t recv_index = -1;
  int32_t channel = -1;
  int32_t next_of_forward = -1;  // further RECV_F of the same stage, micro-batch and slice
};

struct Proof {
  Proof(const Schedule& s, const ValidateOptions& o, Report& report)
      : schedule(s), options(o), problems(s, report, o.max_problems), result(report) {}

  const Schedule& schedule;
  const ValidateOptions& options;
  ProblemList problems;
  Report& result;

  bool has_backward = false;
  bool has_messages = false;  // messages are checked: the schedule is lowered
  TripleTable triples;
  std::vector<Message> messages;
  int num_channels = 0;
  // Per rank and action: the message of a SEND or RECV, else -1. Empty without messages.
  std::vector<std::vector<int32_t>> message_of;
  // Per triple: first message that its F waits for, and that its B or I waits for; -1: none. Empty
  // without messages.
  std::vector<int32_t> forward_message;
  std::vector<int32_t> backward_message;
  // Per rank and action: the slot in which a computation starts, -1 where it never does. Empty
  // unless there is a limit of activations, for its messages.
  std::vector<std::vector<int32_t>> start_slot;

  // Stage, micro-batch, slice, value and peer lie in the schedule and the rank holds the stage: the
  // parts look at no other actions.
  bool Usable(int rank, const Action& action) const;

  int StepOf(MicroBatchId micro_batch) const {
    return micro_batch.value() / schedule.micro_batches;
  }
};

// Header and lists agree. False: nothing further can be said.
bool CheckShape(Proof& proof);
// Range, placement, duplicate, missing; fills `triples`. False: nothing further can be said.
bool IndexActions(Proof& proof);
// Fills the message tables; duplicate, unmatched, and messages that are not there or come too late.
void IndexMessages(Proof& proof);
// Order on each rank: compute actions, slices, recompute, gathered weights, reductions, optimizer,
// waits.
void CheckOrder(Proof& proof);
// Long values: held before they are read or sent, not read after their release. Lowered schedules
// only.
void CheckValues(Proof& proof);
// Deadlock and makespan.
void RunToEnd(Proof& proof);
// Peaks and limits.
void CheckMemory(Proof& proof);

}  // namespace penstock::schedule
