// The frame in which ranks run: threads of this process, each with its end of a channel, its memory
// account and its device.

#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "comm/load_watch.h"
#include "kernels/device.h"
#include "tensor/memory.h"
#include "train/config.h"
#include "train/setup.h"

namespace penstock::train {

// With threads per stage and ranks on this machine filled in.
TrainOptions ResolvedOptions(TrainOptions options, const TrainConfig& config, bool across);

Result<std::unique_ptr<kernels::Device>> MakeDevice(const TrainOptions& options);

// Errors: kInvalidArgument when mpirun started other than stages x replicas ranks.
Result<> CheckRanks(const TrainConfig& config, const comm::Channel* channel);

// One rank's means. The watch's lanes are open, with an account of their own: it works before the
// memory of the run is known.
struct RankMeans {
  comm::Channel& channel;
  comm::LoadWatch& watch;
  MemoryAccount& account;
  std::unique_ptr<kernels::Device> device;
};

// The same for a rank that is a process; without a channel there is none, and all calls are
// harmless but Means.
class ProcessRank {
 public:
  ProcessRank(std::unique_ptr<comm::Channel> channel, double deadline_s);
  Result<> Open();

  comm::Channel* channel() { return channel_.get(); }

  comm::LoadWatch& watch() { return *watch_; }

  // Tells the others that this one gets on.
  void Beat();

  // For what the ranks say before the run's memory is known.
  MemoryAccount& small_account() { return small_; }

  // REQUIRES: a channel. Once.
  RankMeans Means(int64_t limit_bytes, std::unique_ptr<kernels::Device> device);

 private:
  MemoryAccount small_;
  std::optional<MemoryAccount> account_;
  std::unique_ptr<comm::Channel> channel_;  // dies before the accounts
  std::optional<comm::LoadWatch> watch_;
};

using RankBody = std::function<Result<>(RankMeans means)>;

// Runs the body once per rank; the calling thread is rank 0, on `device`. Gives the error of the
// rank that failed first.
Result<> RunThreads(int32_t ranks, int64_t limit_bytes, const TrainOptions& options,
                    std::unique_ptr<kernels::Device> device, const RankBody& body);

}  // namespace penstock::train
