#include "train/ranks.h"

#include <algorithm>
#include <cstdlib>
#include <thread>
#include <vector>

#include "base/units.h"

namespace penstock::train {

TrainOptions ResolvedOptions(TrainOptions options, const TrainConfig& config, bool across) {
  options.across_processes = across;
  options.ranks_on_machine =
      static_cast<int32_t>(config.pipeline.stages * config.pipeline.replicas);
  const char* local = across ? std::getenv("OMPI_COMM_WORLD_LOCAL_SIZE") : nullptr;
  if (local != nullptr) {
    options.ranks_on_machine = std::atoi(local);
  }
  options.ranks_on_machine = std::max(1, options.ranks_on_machine);
  if (options.threads <= 0) {
    options.threads = std::max(1, kernels::UsableCores() / options.ranks_on_machine);
  }
  return options;
}

Result<std::unique_ptr<kernels::Device>> MakeDevice(const TrainOptions& options) {
  kernels::CpuOptions cpu;
  cpu.threads = options.threads;
  return kernels::CreateCpuDevice(cpu);
}

Result<> CheckRanks(const TrainConfig& config, const comm::Channel* channel) {
  const int64_t wanted = config.pipeline.stages * config.pipeline.replicas;
  if (channel != nullptr && channel->size() != wanted) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[train.ranks] mpirun started {}, but pipeline.stages {} x "
                     "pipeline.replicas {} are {}",
                     Counted(channel->size(), "rank"), config.pipeline.stages,
                     config.pipeline.replicas, wanted);
  }
  return {};
}

ProcessRank::ProcessRank(std::unique_ptr<comm::Channel> channel, double deadline_s)
    : channel_(std::move(channel)) {
  if (channel_ != nullptr) {
    watch_.emplace(*channel_, deadline_s);
  }
}

Result<> ProcessRank::Open() {
  return watch_.has_value() ? watch_->Open(small_) : Result<>();
}

void ProcessRank::Beat() {
  if (watch_.has_value()) {
    watch_->Beat();
  }
}

RankMeans ProcessRank::Means(int64_t limit_bytes, std::unique_ptr<kernels::Device> device) {
  account_.emplace(limit_bytes);
  return {*channel_, *watch_, *account_, std::move(device)};
}

Result<> RunThreads(int32_t ranks, int64_t limit_bytes, const TrainOptions& options,
                    std::unique_ptr<kernels::Device> device, const RankBody& body) {
  std::vector<std::unique_ptr<MemoryAccount>> accounts;  // outlive the channels
  for (int32_t r = 0; r < ranks; ++r) {
    accounts.push_back(std::make_unique<MemoryAccount>(limit_bytes));
  }
  MemoryAccount beats;
  const bool spin = ranks * static_cast<int64_t>(options.threads) <= kernels::UsableCores();
  auto channels = comm::CreateInProcessChannels(ranks, spin);
  const auto run = [&](int32_t r, std::unique_ptr<kernels::Device> own) {
    const auto at = static_cast<size_t>(r);
    comm::LoadWatch watch(*channels[at], options.deadline_s);
    Result<> result = watch.Open(beats);
    if (result.ok()) {
      result = body({*channels[at], watch, *accounts[at], std::move(own)});
    }
    if (!result.ok()) {
      channels[at]->Fail(result.error());
    }
    return result;
  };
  std::vector<std::thread> threads;
  for (int32_t r = 1; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      auto own = MakeDevice(options);
      if (!own.ok()) {
        channels[static_cast<size_t>(r)]->Fail(own.error());
        return;
      }
      (void)run(r, std::move(own).value()).ok();
    });
  }
  const Result<> first = run(0, std::move(device));
  for (std::thread& thread : threads) {
    thread.join();
  }
  if (auto failure = channels[0]->failure(); failure.has_value()) {
    return std::move(*failure);
  }
  return first;
}

}  // namespace penstock::train
