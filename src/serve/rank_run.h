// One rank of a run: its memory account, device, stage and executor, in the order in which they
// must live.

#pragma once

#include <functional>
#include <memory>

#include "comm/load_watch.h"
#include "runtime/rank_executor.h"
#include "serve/control.h"
#include "serve/run_setup.h"
#include "serve/sampling_sink.h"
#include "trace/timeline.h"

namespace penstock::serve {

// What a rank reports when the run is over.
struct RankReport {
  MemoryFigures memory;  // peaks
  trace::RankTimeline timeline;
  comm::ChannelCounters counters;
  std::string instruction_set;
  int32_t threads = 1;
};

std::vector<std::byte> EncodeReport(const RankReport& report);
Result<RankReport> DecodeReport(std::span<const std::byte> bytes);
inline constexpr int64_t kMaxReportBytes = int64_t{1} << 30;

class RankRun {
 public:
  // Opens the lanes (before the slow part, so that peers can send), then loads the stage.
  static Result<std::unique_ptr<RankRun>> Create(const ModelBundle& bundle,
                                                 const RunOptions& options, const RunSetup& setup,
                                                 comm::Channel& channel, MemoryAccount& account,
                                                 std::unique_ptr<kernels::Device> device,
                                                 comm::Clock::time_point origin,
                                                 const runtime::StageWeights::Progress& progress);

  runtime::RankExecutor& executor() { return *executor_; }

  ControlLink& control() { return control_; }

  comm::LoadWatch& watch() { return watch_; }

  trace::RankRecorder& recorder() { return recorder_; }

  // Call once, at the end.
  RankReport Report(const comm::Channel& channel);

 private:
  RankRun(comm::Channel& channel, MemoryAccount& account, std::unique_ptr<kernels::Device> device,
          comm::Clock::time_point origin, size_t slices, double deadline_s);

  MemoryAccount& account_;
  std::unique_ptr<kernels::Device> device_;
  trace::RankRecorder recorder_;
  ControlLink control_;
  comm::LoadWatch watch_;
  std::unique_ptr<SamplingSink> sink_;
  std::unique_ptr<runtime::Stage> stage_;
  std::unique_ptr<runtime::RankExecutor> executor_;
  int32_t threads_ = 1;
};

// What ranks other than 0 do: say that they are ready, hear that all are, take plans until the
// stop, send their report.
Result<> ServeRank(RankRun& run, comm::Channel& channel, double deadline_s);

}  // namespace penstock::serve
