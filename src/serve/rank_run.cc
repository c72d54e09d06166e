#include "serve/rank_run.h"

#include "runtime/bytes.h"

namespace penstock::serve {
namespace {

using runtime::ByteReader;
using runtime::ByteWriter;

constexpr size_t kTraceSlices = 200000;

}  // namespace

std::vector<std::byte> EncodeReport(const RankReport& report) {
  ByteWriter writer;
  writer.Put(report.memory);
  writer.PutText(report.timeline.name);
  writer.PutAll(std::span<const trace::Slice>(report.timeline.slices));
  writer.PutAll(std::span<const trace::Wait>(report.timeline.waits));
  writer.PutAll(std::span<const trace::Message>(report.timeline.received));
  writer.Put(report.timeline.totals);
  writer.Put(report.timeline.dropped);
  writer.Put(report.counters);
  writer.PutText(report.instruction_set);
  writer.Put(report.threads);
  return std::move(writer).Take();
}

Result<RankReport> DecodeReport(std::span<const std::byte> bytes) {
  RankReport report;
  ByteReader reader(bytes);
  constexpr uint64_t kMost = kTraceSlices;
  reader.Get(report.memory);
  reader.GetText(report.timeline.name, 256);
  reader.GetAll(report.timeline.slices, kMost);
  reader.GetAll(report.timeline.waits, kMost);
  reader.GetAll(report.timeline.received, kMost);
  reader.Get(report.timeline.totals);
  reader.Get(report.timeline.dropped);
  reader.Get(report.counters);
  reader.GetText(report.instruction_set, 256);
  reader.Get(report.threads);
  if (!reader.done()) {
    return MakeError(ErrorCode::kCorruptData,
                     "[serve.report] a report of {} bytes that contradicts itself", bytes.size());
  }
  return report;
}

RankRun::RankRun(comm::Channel& channel, MemoryAccount& account,
                 std::unique_ptr<kernels::Device> device, comm::Clock::time_point origin,
                 size_t slices, double deadline_s)
    : account_(account),
      device_(std::move(device)),
      recorder_(RankId(channel.rank()), slices, origin),
      control_(channel),
      watch_(channel, deadline_s) {}

namespace {

// PENSTOCK_FAULT=STAGE:LOAD:KIND, where this rank is the stage's.
}  // namespace

Result<std::unique_ptr<RankRun>> RankRun::Create(const ModelBundle& bundle,
                                                 const RunOptions& options, const RunSetup& setup,
                                                 comm::Channel& channel, MemoryAccount& account,
                                                 std::unique_ptr<kernels::Device> device,
                                                 comm::Clock::time_point origin,
                                                 const runtime::StageWeights::Progress& progress) {
  const int32_t rank = channel.rank();
  std::unique_ptr<RankRun> run(new RankRun(channel, account, std::move(device), origin,
                                           options.keep_trace ? kTraceSlices : 0,
                                           options.deadline_s));
  run->threads_ = options.threads;
  const model::Graph& graph = bundle.model.graph;
  if (rank == setup.ranks() - 1) {
    run->sink_ = std::make_unique<SamplingSink>(setup.demand.mode, graph.value(graph.logits).width,
                                                setup.demand.logprobs);
  }
  runtime::ExecutorSpec spec;
  spec.graph = &graph;
  spec.stage = setup.stages[static_cast<size_t>(rank)];
  spec.stage_index = rank;
  spec.plan_limits = setup.plan_limits;
  spec.groups = setup.groups;
  spec.deadline_s = options.deadline_s;
  PENSTOCK_TRY_ASSIGN(spec.fault, runtime::FaultFromEnvironment());
  PENSTOCK_TRY_ASSIGN(run->executor_,
                      runtime::RankExecutor::Create(spec, setup.schedule, channel, run->sink_.get(),
                                                    run->recorder_));
  PENSTOCK_TRY(run->control_.Open(run->account_));
  PENSTOCK_TRY(run->watch_.Open(run->account_));
  PENSTOCK_TRY(run->executor_->Open(run->account_, setup.max_result_bytes));
  PENSTOCK_TRY(runtime::InjectFaultAround(spec.fault, false, channel));
  const auto load_progress = [&watch = run->watch_, &progress](int64_t bytes) {
    watch.Beat();
    if (progress) {
      progress(bytes);
    }
  };
  PENSTOCK_TRY_ASSIGN(
      run->stage_, runtime::Stage::Create(graph, spec.stage, setup.rule, setup.state, *bundle.files,
                                          *run->device_, run->account_, load_progress));
  run->executor_->SetStage(*run->stage_);
  return run;
}

RankReport RankRun::Report(const comm::Channel& channel) {
  return {account_.peak(), recorder_.Take(), channel.counters(), device_->InstructionSet(),
          threads_};
}

Result<> ServeRank(RankRun& run, comm::Channel& channel, double deadline_s) {
  PENSTOCK_TRY(run.watch().Meet());
  PENSTOCK_TRY(run.executor().Serve());
  const std::vector<std::byte> report = EncodeReport(run.Report(channel));
  return run.control().Send(0, report, deadline_s);
}

}  // namespace penstock::serve
