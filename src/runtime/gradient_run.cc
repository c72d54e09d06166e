#include "runtime/gradient_run.h"

#include <algorithm>
#include <cmath>
#include <thread>

#include "base/progress.h"

namespace penstock::runtime {
namespace {

constexpr size_t kTraceSlices = 200000;

TrainSpec SpecOf(const GradientJob& job) {
  TrainSpec spec;
  spec.graph = job.graph;
  spec.partition = job.partition;
  spec.schedule = job.schedule;
  spec.credits = job.credits;
  spec.replicas = job.replicas;
  spec.lane_starts = job.lane_starts;
  spec.products = job.products;
  spec.recompute = job.recompute;
  spec.dropout = job.dropout;
  spec.seed = job.seed;
  spec.deadline_s = job.deadline_s;
  for (const MicroBatchData& batch : job.micro_batches) {
    spec.largest.rows = std::max(spec.largest.rows, batch.rows());
    spec.largest.counted = std::max(spec.largest.counted, batch.counted());
  }
  return spec;
}

// The step as a replica with these micro-batches sees it.
StepData DataOf(const GradientJob& job, std::span<const MicroBatchData> own) {
  StepData data;
  data.micro_batches = own;
  for (const MicroBatchData& batch : job.micro_batches) {
    data.counted += batch.counted();
  }
  data.counted_later = CountLater(*job.graph, job.micro_batches);
  return data;
}

}  // namespace

Result<RankGradients> RunGradientRank(const GradientJob& job, comm::Channel& channel,
                                      comm::LoadWatch& watch, MemoryAccount& account) {
  PENSTOCK_TRY(watch.Open(account));
  TrainSpec spec = SpecOf(job);
  PENSTOCK_TRY_ASSIGN(spec.fault, FaultFromEnvironment());
  PENSTOCK_TRY_ASSIGN(
      const std::unique_ptr<kernels::Device> device,
      kernels::CreateCpuDevice({.threads = job.threads, .pin = false, .cores = {}}));
  const std::unique_ptr<kernels::TrainingDevice> training = kernels::CreateCpuTraining(*device);
  const auto m = static_cast<size_t>(job.schedule->micro_batches);
  const auto replica = static_cast<size_t>(channel.rank() / job.schedule->num_ranks());
  const auto own = std::span(job.micro_batches).subspan(replica * m, m);
  std::vector<MicroBatchShape> shapes;
  for (const MicroBatchData& batch : own) {
    shapes.push_back(ShapeOf(batch, job.schedule->slices));
  }
  RankGradients result;
  PENSTOCK_TRY_ASSIGN(result.planned,
                      TrainRank::PlannedMemory(spec, channel.rank(), shapes, *training,
                                               channel.across_processes()));
  const int64_t beats =
      comm::PlannedWatchBytes(channel.rank(), channel.size(), channel.across_processes());
  result.planned[MemoryCategory::kMessages] += beats;
  result.planned.total += beats;
  if (result.planned.total > account.limit_bytes()) {
    return MakeError(ErrorCode::kOutOfMemory,
                     "[runtime.gradients] rank {} needs {} bytes, the limit is {}", channel.rank(),
                     result.planned.total, account.limit_bytes());
  }
  trace::RankRecorder recorder(RankId(channel.rank()), job.keep_trace ? kTraceSlices : 0);
  PENSTOCK_TRY_ASSIGN(const std::unique_ptr<TrainRank> rank,
                      TrainRank::Create(spec, channel, *training, account, recorder));
  PENSTOCK_TRY(InjectFaultAround(spec.fault, false, channel));
  {
    const ProgressScope progress([&watch] { watch.Beat(); });
    PENSTOCK_TRY(rank->Load(*job.files));
  }
  PENSTOCK_TRY(watch.Meet());  // ranks load at different speeds
  PENSTOCK_TRY_ASSIGN(StepResult step, rank->RunStep(DataOf(job, own), nullptr));
  result.losses.push_back(std::move(step.losses));
  for (std::vector<double>& term : step.auxiliary) {
    result.losses.push_back(std::move(term));
  }
  for (const Parameter& parameter : rank->parameters()) {
    if (parameter.counts) {
      const std::span<const float> numbers = parameter.gradient.All<float>();
      result.gradients[parameter.name].assign(numbers.begin(), numbers.end());
    }
  }
  result.peak = account.peak();
  result.timeline = recorder.Take();
  return result;
}

Result<std::vector<RankGradients>> RunGradientThreads(const GradientJob& job) {
  const int ranks = job.replicas * job.schedule->num_ranks();
  std::vector<std::unique_ptr<MemoryAccount>> accounts;  // outlive the channels' buffers
  std::vector<std::unique_ptr<comm::Channel>> channels = comm::CreateInProcessChannels(ranks);
  std::vector<std::optional<Result<RankGradients>>> results(static_cast<size_t>(ranks));
  for (int r = 0; r < ranks; ++r) {
    accounts.push_back(job.memory_bytes ? std::make_unique<MemoryAccount>(*job.memory_bytes)
                                        : std::make_unique<MemoryAccount>());
  }
  const auto run = [&](int rank) {
    const auto r = static_cast<size_t>(rank);
    comm::LoadWatch watch(*channels[r], job.deadline_s);
    results[r] = RunGradientRank(job, *channels[r], watch, *accounts[r]);
    if (!results[r]->ok()) {
      channels[r]->Fail(results[r]->error());
    }
  };
  std::vector<std::thread> threads;
  for (int r = 1; r < ranks; ++r) {
    threads.emplace_back(run, r);
  }
  run(0);
  for (std::thread& thread : threads) {
    thread.join();
  }
  if (const std::optional<Error> failure = channels[0]->failure()) {
    return *failure;
  }
  std::vector<RankGradients> all;
  for (auto& result : results) {
    all.push_back(std::move(*result).value());
  }
  return all;
}

double MeanLoss(const GradientJob& job, std::span<const RankGradients> ranks) {
  const auto m = static_cast<size_t>(job.schedule->micro_batches);
  const auto p = static_cast<size_t>(job.schedule->num_ranks());
  std::vector<std::vector<double>> losses(job.graph->losses.size());
  for (size_t k = 0; k < losses.size(); ++k) {
    for (size_t j = 0; j < job.micro_batches.size(); ++j) {
      const size_t replica = j / m;
      losses[k].push_back(0.0);
      for (size_t r = replica * p; r < (replica + 1) * p; ++r) {
        const double loss = ranks[r].losses[k][j % m];
        losses[k].back() += std::isnan(loss) ? 0.0 : loss;
      }
    }
  }
  return StepLoss(*job.graph, DataOf(job, job.micro_batches), losses);
}

}  // namespace penstock::runtime
