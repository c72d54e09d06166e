#include "serve/engine.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/log.h"
#include "base/units.h"
#include "comm/prepare_watch.h"

namespace penstock::serve {
namespace {

// What rank 0 tells the others before anything is set up.
struct SetupMessage {
  RunDemand demand;
  int64_t origin_ns = 0;
};

// Carries the one set-up message, before there is an account for anything else.
comm::Lane SetupLane(int32_t target) {
  return {comm::LaneKind::kControl, 0, target, 1};
}

int32_t RanksOnThisMachine(int32_t ranks, bool across_processes) {
  if (!across_processes) {
    return ranks;
  }
  const char* local = std::getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
  return local == nullptr ? ranks : std::max(1, std::atoi(local));
}

RunOptions Resolved(RunOptions options, int32_t ranks_on_machine) {
  if (options.threads <= 0) {
    options.threads = DefaultThreads(ranks_on_machine);
  }
  return options;
}

Result<std::unique_ptr<kernels::Device>> MakeDevice(const RunOptions& options) {
  kernels::CpuOptions cpu;
  cpu.threads = options.threads;
  return kernels::CreateCpuDevice(cpu);
}

int32_t WantedRanks(const RunOptions& options) {
  return static_cast<int32_t>(options.cut.empty() ? std::max<int64_t>(1, options.stages)
                                                  : static_cast<int64_t>(options.cut.size()) + 1);
}

int64_t LongRopeFrom(const model::Graph& graph) {
  for (const model::Op& op : graph.ops) {
    if (const auto* rope = std::get_if<model::RopeOp>(&op.params);
        rope != nullptr && !rope->table.long_inverse_frequencies.empty()) {
      return rope->table.long_from;
    }
  }
  return 0;
}

DeciderConfig ConfigFor(const RunSetup& setup, const model::Graph& graph) {
  DeciderConfig config;
  config.rules.groups = setup.groups;
  config.rules.max_rows = setup.limits.rows;
  config.rules.prefill_chunk = setup.prefill_chunk;
  config.rules.attention_share = setup.attention_share;
  config.rules.select_all = setup.demand.mode != HeadMode::kSample;
  config.context = setup.context;
  config.long_rope_from = LongRopeFrom(graph);
  return config;
}

runtime::StageWeights::Progress ProgressOf(const LoadProgress& progress, const RunSetup& setup,
                                           int32_t rank) {
  if (!progress) {
    return nullptr;
  }
  const int64_t total = setup.memory[static_cast<size_t>(rank)].figures[MemoryCategory::kWeights];
  return [progress, rank, total](int64_t bytes) { progress(rank, bytes, total); };
}

Error WrongRanks(int32_t started, int32_t stages) {
  return MakeError(ErrorCode::kInvalidArgument,
                   "[serve.engine] mpirun started {}, but --stages or --cut make {}",
                   Counted(started, "rank"), Counted(stages, "stage"));
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::Start(const ModelBundle& bundle, const RunOptions& options,
                                              const RunDemand& demand,
                                              std::unique_ptr<comm::Channel> channel,
                                              const LoadProgress& progress) {
  const bool across = channel != nullptr;
  const int32_t ranks = across ? channel->size() : WantedRanks(options);
  const int32_t on_machine = RanksOnThisMachine(ranks, across);
  std::unique_ptr<Engine> engine(new Engine(bundle, Resolved(options, on_machine)));
  PENSTOCK_TRY_ASSIGN(auto device, MakeDevice(engine->options_));
  engine->device_description_ = device->Description();
  engine->instruction_set_ = device->InstructionSet();
  PENSTOCK_TRY_ASSIGN(engine->setup_,
                      MakeRunSetup(bundle, engine->options_, demand, on_machine, across, *device));
  if (engine->setup_.ranks() != ranks) {
    return WrongRanks(ranks, engine->setup_.ranks());
  }
  for (const RankMemory& memory : engine->setup_.memory) {
    engine->accounts_.push_back(std::make_unique<MemoryAccount>(memory.limit_bytes));
  }
  const comm::Clock::time_point origin = comm::Clock::now();
  if (across) {
    engine->channels_.push_back(std::move(channel));
    PENSTOCK_TRY(engine->TellWorkers(origin));
  } else {
    engine->channels_ = comm::CreateInProcessChannels(ranks);
    engine->StartThreads(origin, progress);
  }
  auto run = RankRun::Create(bundle, engine->options_, engine->setup_, *engine->channels_[0],
                             *engine->accounts_[0], std::move(device), origin,
                             ProgressOf(progress, engine->setup_, 0));
  if (!run.ok()) {
    return engine->First(run.error());
  }
  engine->run_ = std::move(run).value();
  if (const Result<> ready = engine->run_->watch().Meet(); !ready.ok()) {
    return engine->First(ready.error());
  }
  engine->decider_ = std::make_unique<Decider>(
      ConfigFor(engine->setup_, bundle.model.graph),
      BlockManager(engine->setup_.state.pools, engine->setup_.state.blocks,
                   engine->setup_.limits.rows));
  return engine;
}

Result<> Engine::TellWorkers(comm::Clock::time_point origin) {
  const SetupMessage message{setup_.demand, origin.time_since_epoch().count()};
  const std::span<const std::byte> part = std::as_bytes(std::span(&message, 1));
  for (int32_t other = 1; other < channels_[0]->size(); ++other) {
    PENSTOCK_TRY(channels_[0]->Open(SetupLane(other), {sizeof message, 1}, setup_account_));
    PENSTOCK_TRY(channels_[0]->Send({SetupLane(other), {0, 0}, DType::kU8, sizeof message, 1, 0},
                                    std::span(&part, 1), options_.deadline_s));
  }
  return {};
}

Result<> Engine::ThreadMain(int32_t rank, comm::Clock::time_point origin,
                            const LoadProgress& progress) {
  comm::Channel& channel = *channels_[static_cast<size_t>(rank)];
  PENSTOCK_TRY_ASSIGN(auto device, MakeDevice(options_));
  PENSTOCK_TRY_ASSIGN(
      const auto run,
      RankRun::Create(bundle_, options_, setup_, channel, *accounts_[static_cast<size_t>(rank)],
                      std::move(device), origin, ProgressOf(progress, setup_, rank)));
  return ServeRank(*run, channel, options_.deadline_s);
}

void Engine::StartThreads(comm::Clock::time_point origin, const LoadProgress& progress) {
  for (int32_t rank = 1; rank < setup_.ranks(); ++rank) {
    threads_.emplace_back([this, rank, origin, progress] {
      const Result<> result = ThreadMain(rank, origin, progress);
      if (!result.ok()) {
        channels_[static_cast<size_t>(rank)]->Fail(result.error());
      }
    });
  }
}

Engine::~Engine() {
  if (!stopped_ && !threads_.empty()) {
    channels_[0]->Fail(MakeError(ErrorCode::kInterrupted, "[serve.engine] the run was given up"));
  }
  JoinThreads();
  run_.reset();  // before its channel
}

void Engine::JoinThreads() {
  for (std::thread& thread : threads_) {
    if (thread.joinable()) {
      thread.join();
    }
  }
}

Error Engine::First(const Error& error) {
  if (channels_.empty()) {
    return error;
  }
  if (error.code != ErrorCode::kPeerLost && !channels_[0]->across_processes()) {
    channels_[0]->Fail(error);  // processes are ended by whoever has reported the error
  }
  return channels_[0]->failure().value_or(error);
}

Result<int32_t> Engine::Admit(std::span<const int32_t> prompt, int64_t max_new,
                              const SamplingParams& params, int64_t room) {
  PENSTOCK_TRY(CheckSampling(params));
  const int64_t vocabulary = bundle_.model.config.vocabulary;
  for (const int32_t token : prompt) {
    if (token < 0 || token >= vocabulary) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "[serve.engine] token {} is not in the vocabulary, wanted 0 to {}", token,
                       vocabulary - 1);
    }
  }
  PENSTOCK_TRY_ASSIGN(const int32_t sequence, decider_->AdmitWithRoom(prompt, max_new, room));
  Admission admission{sequence, params, {}};
  if (params.penalizes()) {
    admission.history.assign(prompt.begin(), prompt.end());
  }
  admissions_[sequence] = std::move(admission);
  return sequence;
}

Result<> Engine::Continue(int32_t sequence, std::span<const int32_t> tokens, int64_t max_new,
                          const SamplingParams& params) {
  PENSTOCK_TRY(decider_->Continue(sequence, tokens, max_new));
  Admission admission{sequence, params, {}};
  if (params.penalizes()) {
    const auto all = decider_->tokens(sequence);
    admission.history.assign(all.begin(), all.end());
  }
  admissions_[sequence] = std::move(admission);
  return {};
}

HeadNote Engine::NoteFor(const runtime::StepPlan& plan) {
  HeadNote note;
  for (const runtime::SequenceSlice& slice : plan.slices) {
    if (slice.selected() == 0) {
      continue;
    }
    if (const auto it = admissions_.find(slice.sequence); it != admissions_.end()) {
      note.admissions.push_back(std::move(it->second));
      admissions_.erase(it);
    }
    if (setup_.demand.mode == HeadMode::kScore) {
      const auto tokens = decider_->tokens(slice.sequence);
      for (int64_t i = slice.rows() - slice.selected(); i < slice.rows(); ++i) {
        const auto next = static_cast<size_t>(slice.first_position + i + 1);
        note.targets.push_back(next < tokens.size() ? tokens[next] : -1);
      }
    }
  }
  return note;
}

Result<> Engine::RunPlan(runtime::StepPlan plan) {
  if (begin_s_ < 0) {
    begin_s_ = run_->recorder().Now();
  }
  if (plan.selected() > 0) {
    plan.note = EncodeNote(NoteFor(plan));
  }
  PENSTOCK_TRY(run_->executor().Announce(plan));
  return run_->executor().Run(plan);
}

Result<comm::Message> Engine::AwaitResult(int64_t step) {
  const int32_t last = setup_.ranks() - 1;
  auto message = channels_[0]->ReceiveNext(
      runtime::ResultLane(last), runtime::ResultDeadline(options_.deadline_s, setup_.ranks()));
  const bool others_words = !message.ok() && message.error().code == ErrorCode::kPeerLost &&
                            !channels_[0]->across_processes();
  if (!message.ok() && !others_words) {
    return MakeError(message.error().code,
                     "rank 0 (stage 0), the result of stage {} for step {}: {}", last, step,
                     message.error().message);
  }
  return message;
}

Result<> Engine::TakeResult(int64_t step, const OnRow& on_row) {
  trace::RankRecorder& recorder = run_->recorder();
  const int32_t last = setup_.ranks() - 1;
  const double start_s = recorder.Now();
  PENSTOCK_TRY_ASSIGN(const comm::Message message, AwaitResult(step));
  const double end_s = recorder.Now();
  const int64_t age_ns = comm::Clock::now().time_since_epoch().count() - message.header().sent_ns;
  schedule::Action awaited = schedule::MakeAction(schedule::OpKind::kForward, StageId(last),
                                                  MicroBatchId(message.header().tag.micro_batch));
  recorder.RecordMessageWait(awaited, RankId(last), start_s, end_s,
                             end_s - static_cast<double>(age_ns) * 1e-9);
  PENSTOCK_TRY_ASSIGN(const std::vector<RowResult> rows, DecodeResults(message.payload()));
  decider_->OnResult(message.header().tag.step);
  for (const RowResult& row : rows) {
    if (decider_->finished(row.sequence)) {
      continue;  // ended while this row was under way
    }
    const bool stop = on_row(row);
    if (setup_.demand.mode == HeadMode::kSample) {
      decider_->OnToken(row.sequence, row.sampled.token, stop);
    } else if (row.position + 1 == decider_->length(row.sequence)) {
      decider_->Finish(row.sequence);
    }
  }
  return {};
}

Result<bool> Engine::Advance(const OnRow& on_row) {
  auto next = decider_->Next();
  if (std::holds_alternative<AllDone>(next)) {
    return false;
  }
  Result<> result;
  if (auto* plan = std::get_if<runtime::StepPlan>(&next)) {
    result = RunPlan(std::move(*plan));
  } else {
    result = TakeResult(std::get<NeedResult>(next).step, on_row);
  }
  if (!result.ok()) {
    return First(result.error());
  }
  return true;
}

Result<> Engine::Heartbeat() {
  runtime::StepPlan plan;
  plan.kind = runtime::PlanKind::kHeartbeat;
  const Result<> result = run_->executor().Announce(plan);
  return result.ok() ? result : Result<>(First(result.error()));
}

Result<RunReport> Engine::Stop() {
  RunReport report;
  report.begin_s = std::max(0.0, begin_s_);
  report.end_s = run_->recorder().Now();
  runtime::StepPlan plan;
  plan.kind = runtime::PlanKind::kStop;
  if (const Result<> result = run_->executor().Announce(plan); !result.ok()) {
    return First(result.error());
  }
  report.ranks.push_back(run_->Report(*channels_[0]));
  for (int32_t other = 1; other < setup_.ranks(); ++other) {
    auto bytes = run_->control().Receive(other, options_.deadline_s, kMaxReportBytes);
    if (!bytes.ok()) {
      return First(bytes.error());
    }
    PENSTOCK_TRY_ASSIGN(RankReport rank, DecodeReport(bytes.value()));
    report.ranks.push_back(std::move(rank));
  }
  stopped_ = true;
  JoinThreads();
  return report;
}

namespace {

Result<SetupMessage> HearSetup(comm::Channel& channel, double deadline_s, MemoryAccount& account) {
  SetupMessage message;
  const comm::Lane lane = SetupLane(channel.rank());
  PENSTOCK_TRY(channel.Open(lane, {sizeof message, 1}, account));
  PENSTOCK_TRY(comm::AwaitWhileBeating(channel, lane, deadline_s, account));
  PENSTOCK_TRY_ASSIGN(const comm::Message received, channel.Receive(lane, {0, 0}, deadline_s));
  if (received.payload().size() != sizeof message) {
    return MakeError(ErrorCode::kCorruptData,
                     "[serve.engine] the set-up message has {} bytes, wanted {}: do all ranks run "
                     "the same binary?",
                     received.payload().size(), sizeof message);
  }
  std::memcpy(static_cast<void*>(&message), received.payload().data(), sizeof message);
  return message;
}

}  // namespace

Result<> RunWorker(const ModelBundle& bundle, const RunOptions& options,
                   std::unique_ptr<comm::Channel> owned) {
  MemoryAccount setup_account;  // outlives the channel, which holds buffers of it
  std::unique_ptr<MemoryAccount> account;
  const std::unique_ptr<comm::Channel> channel = std::move(owned);
  const int32_t on_machine = RanksOnThisMachine(channel->size(), true);
  const RunOptions resolved = Resolved(options, on_machine);
  PENSTOCK_TRY_ASSIGN(const SetupMessage message,
                      HearSetup(*channel, resolved.deadline_s, setup_account));
  PENSTOCK_TRY_ASSIGN(auto device, MakeDevice(resolved));
  PENSTOCK_TRY_ASSIGN(const RunSetup setup,
                      MakeRunSetup(bundle, resolved, message.demand, on_machine, true, *device));
  if (setup.ranks() != channel->size()) {
    return WrongRanks(channel->size(), setup.ranks());
  }
  account = std::make_unique<MemoryAccount>(
      setup.memory[static_cast<size_t>(channel->rank())].limit_bytes);
  const comm::Clock::time_point origin{comm::Clock::duration(message.origin_ns)};
  PENSTOCK_TRY_ASSIGN(const auto run, RankRun::Create(bundle, resolved, setup, *channel, *account,
                                                      std::move(device), origin, nullptr));
  return ServeRank(*run, *channel, resolved.deadline_s);
}

}  // namespace penstock::serve
