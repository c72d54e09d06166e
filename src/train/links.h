// Messages between the ranks of a training run beside the schedule's: the parts of the gradient
// norm, what a step gave, tensors for the digest, shards of weights among replicas.
//
// All are ordered within a pair of ranks and a kind. One thread per rank calls.

#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/result.h"
#include "comm/load_watch.h"

namespace penstock::train {

class Links {
 public:
  // `ranks_per_replica` p; channel rank = replica * p + rank. `sums` is the most numbers that a
  // rank posts, `report` the most that it reports.
  Links(comm::Channel& channel, int32_t ranks_per_replica, int64_t sums, int64_t report,
        double deadline_s);

  int32_t rank() const { return channel_.rank(); }

  int32_t size() const { return channel_.size(); }

  int32_t replica() const { return channel_.rank() / ranks_; }

  int32_t replicas() const { return channel_.size() / ranks_; }

  // Bytes of buffers that Open takes on a rank.
  static int64_t PlannedBytes(int32_t rank, int32_t size, int32_t ranks_per_replica, int64_t sums,
                              int64_t report, bool across_processes);
  Result<> Open(MemoryAccount& account);

  // Hands these numbers to every other rank. Takes no longer than copying them, unless another rank
  // is more than kPostCredits posts behind.
  Result<> Post(int64_t step, std::span<const double> numbers);
  // What each rank posted for this step, its own from `own`.
  Result<std::vector<std::vector<double>>> Collect(int64_t step, std::span<const double> own);

  // From any rank but 0 to rank 0.
  Result<> SendReport(int64_t step, std::span<const double> numbers);
  Result<std::vector<double>> ReceiveReport(int32_t source, int64_t step);

  // A short text to rank 0 at any time, at most kNoteCredits that are not taken; TakeNote gives the
  // oldest of any rank, if one is there.
  Result<> SendNote(std::string_view text);
  Result<std::optional<std::string>> TakeNote(int32_t source, bool wait);

  // Bytes of any length, in pieces, from or to rank 0.
  Result<> SendBytes(int32_t target, std::span<const std::byte> bytes);
  using Sink = std::function<void(std::span<const std::byte>)>;
  Result<> ReceiveBytes(int32_t source, int64_t bytes, const Sink& sink);
  // With its length in front.
  Result<> SendBlob(int32_t target, std::span<const std::byte> bytes);
  Result<std::vector<std::byte>> ReceiveBlob(int32_t source, int64_t limit_bytes);

  // Each replica has a part of `whole` (of replica k: [starts[k], starts[k + 1]) bytes); all get
  // all. The same call on all replicas of this rank.
  Result<> ShareParts(std::span<std::byte> whole, std::span<const int64_t> starts);

  // The last exchange: rank 0 tells the others that it has everything they sent, so that their
  // buffers may go.
  Result<> Part();

  // While somebody does what takes as long as it takes (a digest, writing a file): exchanges with
  // rank 0 wait as long as the other side beats. Null: the deadline counts again.
  void set_watch(comm::LoadWatch* watch) { watch_ = watch; }

 private:
  struct Use {
    comm::Lane lane;
    comm::LaneOptions options;
  };

  static std::vector<Use> LanesOf(int32_t rank, int32_t size, int32_t ranks, int64_t sums,
                                  int64_t report);
  Result<> AwaitPatiently(const comm::Lane& lane);
  Result<> Send(const comm::Lane& lane, int64_t step, std::span<const std::byte> bytes);

  comm::Channel& channel_;
  int32_t ranks_;
  int64_t sums_;
  int64_t report_;
  double deadline_s_;
  comm::LoadWatch* watch_ = nullptr;
};

}  // namespace penstock::train
