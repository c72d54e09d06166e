// What every rank did and when: the one form that the simulator predicts and the runtime measures.
//
// A rank's thread fills a RankRecorder while it runs (one writer each, no locks, no allocation up
// to its capacity); the recorders are then collected into a Timeline, from which the bubble
// account, the pictures, the Perfetto file and the comparison are made. Times are seconds from an
// origin that all ranks of a timeline share; a simulated step starts at 0.

#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "schedule/action.h"

namespace penstock::trace {

// One timed action of one rank.
struct Slice {
  schedule::Action action;
  int32_t step = 0;  // training: optimizer step; serving: number of the step plan
  int32_t rows = 0;  // tokens computed, 0: not known
  double start_s = 0;
  double end_s = 0;
  int64_t bytes = 0;  // of a message; 0: none or not known

  friend bool operator==(const Slice&, const Slice&) = default;
};

enum class WaitCause : uint8_t {
  kImbalance,      // the rank that makes the awaited value has not finished (or, for a send that
                   // waits for room, has not taken the message before)
  kCommunication,  // the awaited message is in flight
  kBarrier,        // the other ranks have not reached the barrier
  kOther,          // anything else that the program can name
};
inline constexpr int kWaitCauseCount = 4;

// "imbalance", "communication", "barrier", "other".
std::string_view WaitCauseText(WaitCause cause);

// Time in which a rank had nothing to run, and what for.
struct Wait {
  schedule::Action awaited;  // the action that had to end first (kIdle: none)
  RankId awaited_rank;       // where that action runs; -1: unknown
  WaitCause cause = WaitCause::kOther;
  double start_s = 0;
  double end_s = 0;

  friend bool operator==(const Wait&, const Wait&) = default;
};

// One delivered message, kept by the receiver.
struct Message {
  schedule::Action action;  // the SEND
  RankId from;
  RankId to;
  int32_t step = 0;
  double sent_s = 0;
  double arrived_s = 0;
  int64_t bytes = 0;

  friend bool operator==(const Message&, const Message&) = default;
};

// A value over time, constant between samples: bytes of activations held, for instance.
struct Counter {
  struct Sample {
    double at_s = 0;
    double value = 0;

    friend bool operator==(const Sample&, const Sample&) = default;
  };

  std::string name;  // "activations"
  std::string unit;  // "bytes", "micro-batches"
  std::vector<Sample> samples;

  friend bool operator==(const Counter&, const Counter&) = default;
};

// Does this kind keep its rank busy? F, B, I, W, R and the optimizer do. A slice of another kind
// (messages, gathers, reductions, barriers) is time in which the rank could have computed.
constexpr bool IsWork(schedule::OpKind kind) {
  return schedule::IsCompute(kind) || kind == schedule::OpKind::kOptimizer;
}

// Why a rank is idle during a slice that is not work.
constexpr WaitCause CauseOf(schedule::OpKind kind) {
  return kind == schedule::OpKind::kBarrier ? WaitCause::kBarrier : WaitCause::kCommunication;
}

// Running sums of one rank, enough for its bubble account. Kept exact even where slices are not.
// Idle time is put down to a cause only between the first and the last work.
class RankTotals {
 public:
  // Slices and waits of a rank come in ascending order of their ends and don't overlap; what does
  // overlap earlier work is cut off. O(1).
  void AddSlice(schedule::OpKind kind, double start_s, double end_s) {
    if (!IsWork(kind)) {
      AddIdle(CauseOf(kind), start_s, end_s);
      return;
    }
    if (work_count_ == 0) {
      first_start_s_ = start_s;
      last_end_s_ = start_s;
    } else {
      Settle(std::max(0.0, start_s - last_end_s_));
    }
    ++work_count_;
    busy_s_ += std::max(0.0, end_s - std::max(start_s, last_end_s_));
    last_end_s_ = std::max(last_end_s_, end_s);
    std::fill(pending_s_, pending_s_ + kWaitCauseCount, 0.0);
  }

  void AddIdle(WaitCause cause, double start_s, double end_s) {
    const double from = std::max(start_s, last_end_s_);
    if (work_count_ != 0 && end_s > from)
      pending_s_[static_cast<int>(cause)] += end_s - from;
  }

  // Moves the first start and the last end, to another clock.
  void Shift(double offset_s) {
    first_start_s_ += offset_s;
    last_end_s_ += offset_s;
  }

  int64_t work_count() const { return work_count_; }

  double busy_s() const { return busy_s_; }

  // Start of the first and end of the last work. REQUIRES: work_count() > 0.
  double first_start_s() const { return first_start_s_; }

  double last_end_s() const { return last_end_s_; }

  // Idle seconds between first and last work with this cause on record.
  double idle_s(WaitCause cause) const { return idle_s_[static_cast<int>(cause)]; }

 private:
  // Books the waits before the work that begins now; never more than the gap.
  void Settle(double gap_s) {
    double sum = 0;
    for (const double pending : pending_s_)
      sum += pending;
    const double scale = sum > gap_s ? gap_s / sum : 1.0;
    for (int i = 0; i < kWaitCauseCount; ++i)
      idle_s_[i] += pending_s_[i] * scale;
  }

  int64_t work_count_ = 0;
  double first_start_s_ = 0;
  double last_end_s_ = 0;
  double busy_s_ = 0;
  double idle_s_[kWaitCauseCount] = {};
  double pending_s_[kWaitCauseCount] = {};
};

struct RankTimeline {
  std::string name;           // "rank 0", or "node3:1"
  std::vector<Slice> slices;  // ascending start
  std::vector<Wait> waits;    // ascending start
  std::vector<Message> received;
  std::vector<Counter> counters;
  RankTotals totals;    // over everything, also what was not kept
  int64_t dropped = 0;  // slices, waits and messages beyond the capacity

  friend bool operator==(const RankTimeline& a, const RankTimeline& b) {
    return a.name == b.name && a.slices == b.slices && a.waits == b.waits &&
           a.received == b.received && a.counters == b.counters;
  }
};

struct Timeline {
  std::string name;             // of the schedule or of the run
  bool measured = false;        // else simulated
  std::string instruction_set;  // of the kernels ("avx512_bf16"); bits hold for one only
  int threads_per_rank = 0;     // 0: does not apply
  double begin_s = 0;           // the window that the account covers
  double end_s = 0;
  std::vector<std::string> values;  // names of the schedule's long values, in order
  std::vector<RankTimeline> ranks;

  int64_t CountSlices() const;
};

// Writes one rank's part of a timeline while the rank runs. Not thread-safe: one writer.
class RankRecorder {
 public:
  using Clock = std::chrono::steady_clock;

  // Keeps at most `capacity` slices, as many waits and as many messages, reserved here; beyond that
  // only the totals go on and the rest is counted as dropped. `origin` is that of the timeline: the
  // same moment for all ranks. capacity 0: totals only.
  explicit RankRecorder(RankId rank, size_t capacity, Clock::time_point origin = Clock::now());

  RankId rank() const { return rank_; }

  // Seconds since the origin. About 25 ns.
  double Now() const { return At(Clock::now()); }

  // A moment on this timeline's clock.
  double At(Clock::time_point moment) const {
    return std::chrono::duration<double>(moment - origin_).count();
  }

  void Record(const schedule::Action& action, int step, double start_s, double end_s, int rows = 0,
              int64_t bytes = 0) {
    timeline_.totals.AddSlice(action.kind, start_s, end_s);
    if (timeline_.slices.size() < capacity_) {
      timeline_.slices.push_back({action, step, rows, start_s, end_s, bytes});
    } else {
      ++timeline_.dropped;
    }
  }

  // The rank had nothing to run from start_s to end_s because `awaited` on `awaited_rank` had not
  // ended. Waits shorter than 0 are ignored.
  void RecordWait(WaitCause cause, const schedule::Action& awaited, RankId awaited_rank,
                  double start_s, double end_s) {
    if (end_s <= start_s)
      return;
    timeline_.totals.AddIdle(cause, start_s, end_s);
    if (timeline_.waits.size() < capacity_) {
      timeline_.waits.push_back({awaited, awaited_rank, cause, start_s, end_s});
    } else {
      ++timeline_.dropped;
    }
  }

  // A wait for a message that its sender handed over at sent_s (on this timeline's clock):
  // imbalance until then, communication after.
  void RecordMessageWait(const schedule::Action& awaited, RankId awaited_rank, double start_s,
                         double end_s, double sent_s) {
    const double turn = std::clamp(sent_s, start_s, std::max(start_s, end_s));
    RecordWait(WaitCause::kImbalance, awaited, awaited_rank, start_s, turn);
    RecordWait(WaitCause::kCommunication, awaited, awaited_rank, turn, end_s);
  }

  void RecordMessage(const schedule::Action& send, RankId from, int step, double sent_s,
                     double arrived_s, int64_t bytes) {
    if (timeline_.received.size() < capacity_) {
      timeline_.received.push_back({send, from, rank_, step, sent_s, arrived_s, bytes});
    } else {
      ++timeline_.dropped;
    }
  }

  // Appends to the counter of this name, which is made on first use.
  void RecordCounter(std::string_view name, std::string_view unit, double at_s, double value);

  const RankTotals& totals() const { return timeline_.totals; }

  const RankTimeline& timeline() const { return timeline_; }

  // Hands over what was recorded; the recorder is empty after it, with the same capacity.
  RankTimeline Take();

 private:
  RankId rank_;
  size_t capacity_;
  Clock::time_point origin_;
  RankTimeline timeline_;
};

// One timeline from the parts of ranks 0, 1, ... (already in that order). The window is from the
// first start to the last end of any rank. A part of another machine has another clock: pass its
// offset in seconds (added to its times) or nothing.
Timeline MergeRanks(std::string name, std::vector<RankTimeline> parts,
                    const std::vector<double>& offsets_s = {});

// Sums of one rank as a recorder would have kept them, from its kept slices and waits.
RankTotals TotalsOf(const RankTimeline& rank);

}  // namespace penstock::trace
