// Engine: a model cut into stages, ready to generate. Lives on rank 0; it decides, runs stage 0,
// and hears from the head.
//
//   Engine::Start -> Admit sequences -> Advance until nothing is left -> Stop
//
// Without MPI the other ranks are threads that Start makes; under MPI they are processes that run
// RunWorker.

#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "serve/decider.h"
#include "serve/rank_run.h"

namespace penstock::serve {

struct RunReport {
  std::vector<RankReport> ranks;
  double begin_s = 0;  // of the account's window, on the recorders' clock
  double end_s = 0;
};

// A rank and the bytes that it has loaded so far of those that it will.
using LoadProgress = std::function<void(int32_t rank, int64_t bytes, int64_t total)>;

class Engine {
 public:
  // `channel`: rank 0's end of MPI, or null for threads. The bundle must outlive the engine.
  // Errors: those of MakeRunSetup and of loading, the first of any rank.
  static Result<std::unique_ptr<Engine>> Start(const ModelBundle& bundle, const RunOptions& options,
                                               const RunDemand& demand,
                                               std::unique_ptr<comm::Channel> channel,
                                               const LoadProgress& progress);
  // Ends the threads; without Stop the run counts as failed.
  ~Engine();

  const RunSetup& setup() const { return setup_; }

  const std::string& device() const { return device_description_; }

  const std::string& instruction_set() const { return instruction_set_; }

  // Per stage.
  int threads() const { return options_.threads; }

  // What the cut was weighed with: the calibrated file, or "".
  const std::string& links_from() const { return options_.links_from; }

  bool across_processes() const { return channels_[0]->across_processes(); }

  // Gives the sequence's number. `room`: positions to set pages aside for (a conversation), 0: what
  // this prompt needs.
  Result<int32_t> Admit(std::span<const int32_t> prompt, int64_t max_new,
                        const SamplingParams& params, int64_t room = 0);
  Result<> Continue(int32_t sequence, std::span<const int32_t> tokens, int64_t max_new,
                    const SamplingParams& params);

  Decider& decider() { return *decider_; }

  // Does one thing: runs one plan, or takes one result and gives its rows to `on_row`, which may
  // say stop for the row's sequence (kSample; the token is then not fed back). False when nothing
  // is left.
  using OnRow = std::function<bool(const RowResult& row)>;
  Result<bool> Advance(const OnRow& on_row);

  // Tells the other ranks that the decider is alive, while it waits for a person.
  Result<> Heartbeat();

  // Ends all ranks in an orderly way and collects their reports.
  Result<RunReport> Stop();

 private:
  Engine(const ModelBundle& bundle, const RunOptions& options)
      : bundle_(bundle), options_(options) {}

  void StartThreads(comm::Clock::time_point origin, const LoadProgress& progress);
  Result<> ThreadMain(int32_t rank, comm::Clock::time_point origin, const LoadProgress& progress);
  Result<> TellWorkers(comm::Clock::time_point origin);
  Result<> RunPlan(runtime::StepPlan plan);
  Result<comm::Message> AwaitResult(int64_t step);
  Result<> TakeResult(int64_t step, const OnRow& on_row);
  HeadNote NoteFor(const runtime::StepPlan& plan);
  // The error of the rank that failed first, instead of "peer lost".
  Error First(const Error& error);
  void JoinThreads();

  const ModelBundle& bundle_;
  RunOptions options_;
  RunSetup setup_;
  std::string device_description_;
  std::string instruction_set_;
  MemoryAccount setup_account_;
  std::vector<std::unique_ptr<MemoryAccount>>
      accounts_;  // outlive the channels, which hold buffers of them
  std::vector<std::unique_ptr<comm::Channel>> channels_;  // [0] is rank 0's
  std::vector<std::thread> threads_;
  std::unique_ptr<RankRun> run_;
  std::unique_ptr<Decider> decider_;
  std::unordered_map<int32_t, Admission> admissions_;  // not yet told to the head
  double begin_s_ = -1;
  bool stopped_ = false;
};

// Ranks other than 0 under MPI: hears from rank 0 what to set up, loads its stage, serves until the
// stop.
Result<> RunWorker(const ModelBundle& bundle, const RunOptions& options,
                   std::unique_ptr<comm::Channel> channel);

}  // namespace penstock::serve
