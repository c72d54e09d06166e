// One step of a schedule, action by action. Internal to sim/: use simulate.h.

#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/result.h"
#include "cost/cost_model.h"
#include "schedule/schedule.h"
#include "schedule/transport.h"
#include "sim/simulate.h"
#include "trace/timeline.h"

namespace penstock::sim {

// Runs step after step; what one step leaves behind (clocks, links, credits, the ring) is where the
// next begins.
class Engine {
 public:
  // Keeps references to both. Errors as Simulate.
  static Result<Engine> Make(const schedule::Schedule& schedule, const cost::CostModel& costs,
                             const schedule::Transport& transport);

  // Times of single actions instead of the cost model's; null: none. Kept by reference. Errors:
  // kInvalidArgument (not one for each).
  Result<> UseSeconds(const std::vector<std::vector<ActionSeconds>>* seconds);

  // Runs one step from the current state. With `totals` (one per rank) it adds up busy and idle
  // times; with `record` (one per rank) it also keeps slices, waits and messages.
  Result<> RunStep(std::vector<trace::RankTotals>* totals = nullptr,
                   std::vector<trace::RankTimeline>* record = nullptr);

  // All ranks wait for the slowest. With `totals` and `record` (of the step before it) as RunStep:
  // the wait is on record.
  void Barrier(std::vector<trace::RankTotals>* totals = nullptr,
               std::vector<trace::RankTimeline>* record = nullptr);

  // Latest clock of any rank.
  double End() const;

  // Everything that the next step depends on, in a fixed order.
  std::vector<double> State() const;

  // Between different ranks, in the last step.
  int64_t messages() const { return messages_; }

  int64_t message_bytes() const { return message_bytes_; }

 private:
  // A value on its way to the action that needs it.
  struct Cell {
    double arrival_s = -1;  // -1: not sent
    double sent_s = -1;     // under rendezvous: the sender waits since then
  };

  enum class Block : uint8_t { kNone, kCell, kCredit, kBarrier };

  struct Rank {
    const schedule::Action* next = nullptr;
    const schedule::Action* end = nullptr;
    double now_s = 0;
    int64_t blocked_on = -1;  // cell or channel
    Block block = Block::kNone;
  };

  // What a value travels through, and what credits are counted for: sending and receiving stage,
  // value and direction.
  struct Channel {
    int32_t from = 0;  // ranks
    int32_t to = 0;
    int32_t link = -1;      // index of an occupied link, or -1
    int32_t direction = 0;  // copy of the weights
    bool used = false;      // a SEND or RECV of it exists
    double latency_s = 0;   // 0 on one rank
    double transfer_s = 0;  // of one message
    int64_t bytes = 0;      // of one message
    int64_t sent = 0;       // messages so far
    int64_t taken = 0;
    std::vector<double> taken_s;  // the last K times at which a RECV took a message
    schedule::Action awaited;     // what a rank that waits for a message waits for
  };

  Engine(const schedule::Schedule& schedule, const cost::CostModel& costs,
         const schedule::Transport& transport);

  // Setting up, in engine_setup.cc.
  Result<> CheckAction(int rank, size_t position, const schedule::Action& action) const;
  Result<> AddMessageChannels();
  void MakeDurations();
  void MakeChainChannels();
  void AddFreeFlowEdges();
  int32_t AddLongChannel(uint64_t key, int from, int to, int direction, int64_t bytes);
  void SetLink(Channel& channel);
  static uint64_t MessageKey(bool backward, int value, int from, int to, int direction);

  Error Stuck() const;

  // Runs a rank until it waits or ends.
  template <bool kAccount>
  void Advance(int rank);
  // These do one action and return false when the rank has to wait for something not known yet.
  template <bool kAccount>
  bool Do(int rank, const schedule::Action& action);
  template <bool kAccount>
  bool Compute(int rank, const schedule::Action& action);
  // What the cost model gives no time.
  template <bool kAccount>
  bool Other(int rank, const schedule::Action& action);
  template <bool kAccount>
  void Spend(int rank, const schedule::Action& action, double seconds);
  template <bool kAccount>
  bool AwaitInputs(int rank, const schedule::Action& action, bool backward);
  template <bool kAccount>
  bool Send(int rank, const schedule::Action& action);
  template <bool kAccount>
  bool Receive(int rank, const schedule::Action& action);
  template <bool kAccount>
  bool AtBarrier(int rank, const schedule::Action& action);
  template <bool kAccount>
  bool Await(int rank, int64_t cell, int channel, const schedule::Action& action);

  void HandOver(const schedule::Action& action, bool backward, double end_s);
  void Deliver(int64_t cell, int channel, double sent_s, const schedule::Action& action);
  template <bool kAccount>
  void IdleUntil(int rank, double until_s, trace::WaitCause cause, int channel,
                 const schedule::Action& action);
  double ArrivalOf(const Channel& channel, double sent_s);

  ActionSeconds MeasuredOf(int rank, const schedule::Action& action) const {
    if (measured_ == nullptr)
      return {};
    const auto r = static_cast<size_t>(rank);
    return (*measured_)[r][static_cast<size_t>(&action - schedule_->ranks[r].data())];
  }

  void BlockOn(int rank, Block block, int64_t id) {
    ranks_[static_cast<size_t>(rank)].block = block;
    ranks_[static_cast<size_t>(rank)].blocked_on = id;
  }

  void Wake(int rank) {
    ranks_[static_cast<size_t>(rank)].block = Block::kNone;
    ready_.push_back(rank);
  }

  bool WaitsFor(int rank, Block block, int64_t id) const {
    const Rank& state = ranks_[static_cast<size_t>(rank)];
    return state.block == block && state.blocked_on == id;
  }

  int DirectionOf(const schedule::Action& action) const {
    return directions_.empty() ? 0 : directions_[static_cast<size_t>(action.micro_batch.value())];
  }

  int RankOf(int stage, int direction) const {
    return rank_of_[static_cast<size_t>(direction * stages_ + stage)];
  }

  int64_t CellOf(int64_t slot, int64_t micro_batch, int slice) const {
    return (slot * micro_batches_ + micro_batch) * slices_ + slice;
  }

  // The chain's value into `stage`: forward from stage - 1, backward from stage + 1.
  int64_t ChainSlot(bool backward, int stage) const { return backward ? stages_ + stage : stage; }

  int ChainChannel(bool backward, int stage, int direction) const {
    return (direction * 2 + (backward ? 1 : 0)) * stages_ + stage;
  }

  int64_t LongSlot(int channel) const {
    return 2 * static_cast<int64_t>(stages_) + channel - chain_channels_;
  }

  // Channel of a SEND, RECV or WAIT_SEND. REQUIRES: it was there at Make.
  int MessageChannel(const schedule::Action& action) const;
  int64_t MessageCell(const schedule::Action& action, int channel) const;

  const schedule::Schedule* schedule_;
  const cost::CostModel* costs_;
  schedule::Transport transport_;
  bool free_flow_;  // compute-only
  int stages_;
  int64_t micro_batches_;  // of all unrolled steps
  int slices_;
  int chain_channels_ = 0;

  std::vector<int32_t> rank_of_;     // [direction][stage]
  std::vector<uint8_t> directions_;  // per micro-batch; empty: one copy of the weights
  std::vector<double> seconds_;      // [kind][stage]
  std::vector<double> scale_;        // [micro-batch][slice]; empty: 1
  std::vector<Channel> channels_;    // the chain's, then those of long values
  std::unordered_map<uint64_t, int32_t> long_channels_;  // by MessageKey
  std::vector<std::vector<int32_t>> long_into_;          // per stage, channels of what it reads
  std::vector<std::vector<int32_t>> long_from_;          // per stage, channels it feeds (free flow)

  std::vector<Rank> ranks_;
  std::vector<int32_t> ready_;
  std::vector<Cell> cells_;
  std::vector<uint8_t> posted_;  // per cell of a long value: its RECV was passed
  std::vector<double> link_free_s_;
  std::map<std::pair<int, int>, int32_t> link_ids_;
  std::vector<Cell> ring_;  // what arrives at the first stage, per micro-batch and slice
  int barrier_count_ = 0;
  double barrier_s_ = 0;
  int barrier_last_ = 0;
  int64_t messages_ = 0;
  int64_t message_bytes_ = 0;
  const std::vector<std::vector<ActionSeconds>>* measured_ = nullptr;
  std::vector<trace::RankTotals>* totals_ = nullptr;
  std::vector<trace::RankTimeline>* record_ = nullptr;
};

}  // namespace penstock::sim
