// The frame in which ranks run: threads of this process, each with its end of a channel, its memory
// account and its device.

#pragma once

#include <functional>
#include <memory>

#include "comm/channel.h"
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

using RankBody = std::function<Result<>(comm::Channel& channel, MemoryAccount& account,
                                        std::unique_ptr<kernels::Device> device)>;

// Runs the body once per rank; the calling thread is rank 0, on `device`. Gives the error of the
// rank that failed first.
Result<> RunThreads(int32_t ranks, int64_t limit_bytes, const TrainOptions& options,
                    std::unique_ptr<kernels::Device> device, const RankBody& body);

}  // namespace penstock::train
