#include "train/rank_loop.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <limits>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/progress.h"
#include "base/statistics.h"
#include "model/inventory.h"
#include "train/sha256.h"

namespace penstock::train {
namespace {

constexpr size_t kTraceSteps = 3;
constexpr size_t kCalibratingSteps = 6;   // beside the first one
constexpr double kCalibratingS = 4;       // no further step that would end later
constexpr double kLongCalibratingS = 12;  // the same while there are fewer than kMedianSteps
constexpr size_t kMedianSteps = 3;        // beside the first one: one that is odd does not matter
constexpr double kShortCalibratingS = 1;  // more steps where they are shorter
constexpr size_t kMostCalibratingSteps = 64;

size_t SlicesPerStep(const TrainSetup& setup) {
  size_t most = 0;
  for (const auto& program : setup.schedule.ranks) {
    most = std::max(most, program.size());
  }
  return most + 16;
}

// What goes wrong once steps run is no mistake of the command line or of an input file.
Error WhileRunning(Error error) {
  if (ExitStatus(error.code) != 3) {
    error.code = ErrorCode::kInternal;
  }
  return error;
}

}  // namespace

RankLoop::RankLoop(const TrainSetup& setup, RankMeans means, comm::Clock::time_point origin,
                   const TrainEvents* events)
    : setup_(setup),
      channel_(means.channel),
      watch_(means.watch),
      account_(means.account),
      device_(std::move(means.device)),
      training_(kernels::CreateCpuTraining(*device_)),
      recorder_(RankId(channel_.rank()), SlicesPerStep(setup), origin),
      links_(channel_, setup.ranks(), SumsPerRank(setup), setup.report_numbers(),
             setup.options.deadline_s),
      events_(events) {}

RankLoop::~RankLoop() = default;

Result<std::unique_ptr<RankLoop>> RankLoop::Create(const TrainSetup& setup, RankMeans means,
                                                   comm::Clock::time_point origin,
                                                   const TrainEvents* events) {
  std::unique_ptr<RankLoop> loop(new RankLoop(setup, std::move(means), origin, events));
  comm::Channel& channel = loop->channel_;
  MemoryAccount& account = loop->account_;
  PENSTOCK_TRY(loop->links_.Open(account));
  PENSTOCK_TRY_ASSIGN(
      loop->rank_, runtime::TrainRank::Create(setup.Spec(true), channel, *loop->training_, account,
                                              loop->recorder_));
  PENSTOCK_TRY_ASSIGN(loop->optimizer_, RankOptimizer::Create(setup, *loop->rank_, *loop->training_,
                                                              loop->links_, account));
  loop->optimizer_->set_before_change([loop = loop.get()]() -> Result<> {
    loop->AwaitWritten();
    return {};
  });
  return loop;
}

Result<> RankLoop::LoadModel(const std::optional<Checkpoint>& checkpoint) {
  if (checkpoint.has_value()) {
    PENSTOCK_TRY(LoadWeights(*checkpoint, *rank_));
    if (first() && checkpoint->manifest().instruction_set != device_->InstructionSet()) {
      LogWarning(
          "{} was written with the instruction set {}, this machine uses {}: the run goes "
          "on, but not to the same bits",
          checkpoint->path(), checkpoint->manifest().instruction_set, device_->InstructionSet());
    }
    return {};
  }
  if (setup_.files != nullptr) {
    return rank_->Load(*setup_.files);
  }
  FillRandom(setup_, *rank_);
  return {};
}

// Weights, and what is written beside them; the checkpoint that they came from. Returns when all
// ranks have theirs.
Result<std::optional<Checkpoint>> RankLoop::Load() {
  const ProgressScope progress([this] { watch_.Beat(); });
  PENSTOCK_TRY_ASSIGN(fault_, runtime::FaultFromEnvironment());
  PENSTOCK_TRY(runtime::InjectFaultAround(fault_, false, channel_));
  std::optional<Checkpoint> checkpoint;
  if (start_.from_checkpoint) {
    const std::string path =
        (std::filesystem::path(setup_.config.train.folder) / CheckpointName(start_.step)).string();
    PENSTOCK_TRY_ASSIGN(checkpoint, Checkpoint::Open(path, false));
  }
  PENSTOCK_TRY(LoadModel(checkpoint));
  if (first() && setup_.config.train.checkpoint_every > 0) {
    PENSTOCK_TRY_ASSIGN(small_files_, SmallFiles(setup_));
  }
  PENSTOCK_TRY(watch_.Meet());
  return checkpoint;
}

// Steps that change nothing. The first one touches memory for the first time; where steps are
// short, more follow, and the first is left out.
Result<> RankLoop::Calibrate() {
  optimizer_->set_calibrating(true);
  std::vector<MeasuredStep> measured;
  bool cold = true;
  const double begin_s = recorder_.Now();
  for (bool more = true; more;) {
    MeasuredStep step;
    step.begin_s = recorder_.Now();
    const StepBatch batch = setup_.dataset->Step(setup_.config.pipeline, start_.step + 1,
                                                 links_.replica(), setup_.shifts());
    optimizer_->BeginStep(0, false);
    const auto result = rank_->RunStep({0, batch.micro_batches, batch.counted, batch.counted_later},
                                       optimizer_.get());
    if (!result.ok()) {
      return result.error().code != ErrorCode::kNotFinite
                 ? result.error()
                 : MakeError(ErrorCode::kNotFinite,
                             "[train.loop] step {}, tried before the run (as step 0): {}",
                             start_.step + 1, result.error().message);
    }
    step.end_s = recorder_.Now();
    step.timeline = recorder_.Take();
    // The same decision everywhere: by the slowest rank.
    const std::vector<double> times = {step.end_s - begin_s, step.end_s - step.begin_s};
    PENSTOCK_TRY(links_.Post(0, times));
    PENSTOCK_TRY_ASSIGN(const auto all, links_.Collect(0, times));
    double spent_s = 0;
    double step_s = 0;
    for (const std::vector<double>& numbers : all) {
      spent_s = std::max(spent_s, numbers.at(0));
      step_s = std::max(step_s, numbers.at(1));
    }
    if (measured.size() == 1 && std::exchange(cold, false)) {
      measured.clear();
    }
    measured.push_back(std::move(step));
    const size_t done = measured.size() + (cold ? 0 : 1);
    more = (done <= kCalibratingSteps || spent_s < kShortCalibratingS) &&
           done < kMostCalibratingSteps &&
           spent_s + step_s < (measured.size() < kMedianSteps ? kLongCalibratingS : kCalibratingS);
  }
  optimizer_->set_calibrating(false);
  return PlanFrom(measured);
}

// Rank 0 simulates a step from what the calibration measured on the ranks of the first replica.
Result<> RankLoop::PlanFrom(const std::vector<MeasuredStep>& own) {
  if (channel_.rank() >= setup_.ranks()) {
    return {};
  }
  std::vector<std::vector<MeasuredStep>> steps;
  for (const MeasuredStep& step : own) {
    if (!first()) {
      PENSTOCK_TRY(links_.SendBlob(0, EncodeStep(step)));
      continue;
    }
    std::vector<MeasuredStep>& ranks = steps.emplace_back(std::vector<MeasuredStep>{step});
    for (int32_t r = 1; r < setup_.ranks(); ++r) {
      PENSTOCK_TRY_ASSIGN(const auto bytes, links_.ReceiveBlob(r, kMaxFiguresBytes));
      PENSTOCK_TRY_ASSIGN(MeasuredStep other, DecodeStep(bytes));
      ranks.push_back(std::move(other));
    }
  }
  if (!first()) {
    return {};
  }
  auto planned = PlanStep(setup_.schedule, steps, setup_.config.pipeline.barrier);
  if (!planned.ok()) {
    LogNote("no planned step time: {}", planned.error().message);
    return {};
  }
  planned_ = std::move(planned).value();
  return planned_->timeline.has_value() ? PlanCurves(*planned_->timeline) : Result<>();
}

// The simulated times with the bytes that the same program will hold.
Result<> RankLoop::PlanCurves(trace::Timeline& timeline) {
  std::vector<runtime::MicroBatchShape> shapes;
  for (const auto& data :
       setup_.dataset->Step(setup_.config.pipeline, start_.step + 1, 0).micro_batches) {
    shapes.push_back(runtime::ShapeOf(data, setup_.schedule.slices));
  }
  for (size_t r = 0; r < timeline.ranks.size(); ++r) {
    PENSTOCK_TRY_ASSIGN(const auto points,
                        runtime::TrainRank::PlannedActivations(
                            setup_.Spec(false), static_cast<int32_t>(r), shapes, *training_));
    trace::RankTimeline& rank = timeline.ranks[r];
    trace::Counter counter{"activations", "bytes", {}};
    size_t slice = 0;
    for (const auto& point : points) {
      // Both lists are in program order; the simulation leaves out what takes no time.
      const auto same = [&](const trace::Slice& s) {
        return s.action.kind == point.action.kind && s.action.stage == point.action.stage &&
               s.action.micro_batch == point.action.micro_batch &&
               s.action.slice == point.action.slice;
      };
      const auto it = std::find_if(rank.slices.begin() + static_cast<ptrdiff_t>(slice),
                                   rank.slices.end(), same);
      if (it != rank.slices.end()) {
        slice = static_cast<size_t>(it - rank.slices.begin());
      }
      const double at = rank.slices.empty() ? 0 : rank.slices[slice].end_s;
      counter.samples.push_back({at, static_cast<double>(point.activation_bytes)});
    }
    rank.counters = {std::move(counter)};
  }
  return {};
}

std::vector<double> RankLoop::ReportOf(const runtime::StepResult& result, double begin_s,
                                       double end_s) {
  trace::RankTimeline timeline = recorder_.Take();
  const trace::RankAccount account = trace::AccountOf(timeline.totals, begin_s, end_s);
  figures_.Add(account);
  if (setup_.options.keep_trace) {
    recent_.emplace_back(std::pair(begin_s, end_s), std::move(timeline));
    if (recent_.size() > kTraceSteps) {
      recent_.pop_front();
    }
  }
  std::vector<double> report = {end_s - begin_s, account.busy_s, result.has_losses ? 1.0 : 0.0};
  report.insert(report.end(), result.losses.begin(), result.losses.end());
  for (const std::vector<double>& term : result.auxiliary) {
    report.insert(report.end(), term.begin(), term.end());
  }
  return report;
}

Result<> RankLoop::Step(int64_t step) {
  weights_step_ = step - 1;
  const double begin_s = recorder_.Now();
  const StepBatch batch =
      setup_.dataset->Step(setup_.config.pipeline, step, links_.replica(), setup_.shifts());
  runtime::StepResult result;
  do {
    optimizer_->BeginStep(step, first() && events_->interrupted && events_->interrupted());
    PENSTOCK_TRY_ASSIGN(
        result, rank_->RunStep({step, batch.micro_batches, batch.counted, batch.counted_later},
                               optimizer_.get()));
  } while (optimizer_->redo());
  weights_step_ = step;
  const std::vector<double> report = ReportOf(result, begin_s, recorder_.Now());
  if (first()) {
    done_.push_back({step, batch.rows, batch.counted, batch.counted_later, report});
  } else {
    PENSTOCK_TRY(links_.SendReport(step, report));
  }
  const TrainSection& train = setup_.config.train;
  const bool due =
      train.checkpoint_every > 0 && (step % train.checkpoint_every == 0 || step == train.steps);
  const bool evaluates = train.eval_every > 0 && setup_.dataset->validation_sequences() > 0 &&
                         (step % train.eval_every == 0 || step == train.steps);
  if (due || evaluates || step == train.steps) {
    PENSTOCK_TRY(optimizer_->Settle());
  }
  PENSTOCK_TRY(TakeLines());
  if (evaluates) {
    PENSTOCK_TRY_ASSIGN(const EvalResult evaluated, Validate(step));
    if (held_line_.has_value() && !evaluated.terms.empty()) {
      held_line_->eval_loss = evaluated.loss();
      for (const EvalTerm& term : evaluated.terms) {
        held_line_->eval_terms.emplace_back(term.name, term.loss());
      }
    }
  }
  if (stop_ && !due) {
    PENSTOCK_TRY(optimizer_->Settle());
    PENSTOCK_TRY(TakeLines());
  }
  if (due || (stop_ && train.checkpoint_every > 0)) {
    PENSTOCK_TRY(SaveCheckpoint(step));
  }
  PENSTOCK_TRY(PollCheckpoint(false));
  if (step > committed_step_) {
    RemoveOld();
  }
  return {};
}

// On the validation part, with the weights after `step`.
Result<EvalResult> RankLoop::Validate(int64_t step) {
  auto evaluated = Evaluate(setup_, EvalBatches(setup_, true), *rank_, links_);
  (void)recorder_.Take();
  if (!evaluated.ok()) {
    return MakeError(evaluated.error().code,
                     "[train.loop] validation after step {} (where steps are its batches): {}",
                     step, evaluated.error().message);
  }
  return evaluated;
}

// Writes the lines of steps whose norm is known.
Result<> RankLoop::TakeLines() {
  while (const auto facts = optimizer_->TakeFacts()) {
    stop_ = stop_ || facts->interrupted;
    if (first()) {
      PENSTOCK_TRY(FinishLine(*facts));
    }
  }
  return {};
}

Result<> RankLoop::FinishLine(const StepFacts& facts) {
  PENSTOCK_CHECK(!done_.empty() && done_.front().step == facts.step, "facts come in order");
  const DoneStep done = std::move(done_.front());
  done_.pop_front();
  const auto per_replica = static_cast<size_t>(setup_.config.pipeline.micro_batches);
  const size_t terms = setup_.model.graph.losses.size();
  std::vector<std::vector<double>> losses(
      terms, std::vector<double>(per_replica * static_cast<size_t>(setup_.replicas()),
                                 std::numeric_limits<double>::quiet_NaN()));
  double span = 0;
  double longest = 0;
  double busy = 0;
  for (int32_t r = 0; r < channel_.size(); ++r) {
    std::vector<double> report = done.own;
    if (r > 0) {
      PENSTOCK_TRY_ASSIGN(report, links_.ReceiveReport(r, facts.step));
    }
    span += report[0];
    longest = std::max(longest, report[0]);
    busy += report[1];
    for (size_t i = 3; i < report.size() && i - 3 < terms * per_replica; ++i) {
      if (!std::isnan(report[i])) {
        losses[(i - 3) / per_replica][static_cast<size_t>(r / setup_.ranks()) * per_replica +
                                      (i - 3) % per_replica] = report[i];
      }
    }
  }
  runtime::StepData data;
  data.counted = done.counted;
  data.counted_later = done.counted_later;
  StepLine line;
  line.step = facts.step;
  line.loss = runtime::StepLoss(setup_.model.graph, data, losses);
  line.grad_norm = facts.norm;
  line.clipped = facts.clipped;
  line.lr = LearningRate(setup_.config.optimizer, setup_.config.train.steps, facts.step);
  line.step_s = longest;
  line.tokens_per_s = longest > 0 ? static_cast<double>(done.rows) / longest : 0;
  line.bubble_ratio = span > 0 ? std::clamp(1 - busy / span, 0.0, 1.0) : 0;
  if (planned_.has_value()) {
    line.planned_step_s = planned_->step_s;
  }
  step_s_.push_back(longest);
  PENSTOCK_TRY(WriteHeldLine());
  held_line_ = line;
  return {};
}

Result<> RankLoop::WriteHeldLine() {
  const std::optional<StepLine> line = std::exchange(held_line_, std::nullopt);
  return line.has_value() && events_->on_line ? events_->on_line(*line) : Result<>();
}

// Written beside the next steps. The last one gets its name in Finish, behind the last line.
Result<> RankLoop::SaveCheckpoint(int64_t step) {
  PENSTOCK_TRY(PollCheckpoint(true));  // the one before
  const bool last = stop_ || step == setup_.config.train.steps;
  if (!last) {
    PENSTOCK_TRY(WriteHeldLine());  // a run that goes on from here has all lines up to here
  }
  const std::vector<int32_t> writers = WritingRanks(setup_);
  const bool writes = std::find(writers.begin(), writers.end(), channel_.rank()) != writers.end();
  if (!writes && !first()) {
    return {};
  }
  CheckpointJob job;
  job.folder = setup_.config.train.folder;
  job.step = step;
  job.rank = channel_.rank();
  if (writes) {
    job.parts = PartsToWrite(setup_, channel_.rank(), *rank_, *optimizer_);
  }
  if (first()) {
    job.commit = CommitOf(step);
    std::copy_if(writers.begin(), writers.end(), std::back_inserter(job.commit->others),
                 [](int32_t rank) { return rank > 0; });
  }
  PENSTOCK_TRY(MakePartial(job.folder, step));
  saving_ = step;
  written_by_.clear();
  writer_.Start(std::move(job), first() && last);
  return {};
}

CheckpointCommit RankLoop::CommitOf(int64_t step) const {
  CheckpointCommit commit;
  commit.manifest.step = step;
  commit.manifest.cursor = step * setup_.config.GlobalSequences();
  commit.manifest.seed = setup_.config.train.seed;
  commit.manifest.identity = setup_.Identity();
  commit.manifest.instruction_set = device_->InstructionSet();
  commit.manifest.config = setup_.config.source;
  commit.small_files = small_files_;
  commit.replaced = start_.older_run;
  return commit;
}

// Until this rank's tensors are on the disk.
void RankLoop::AwaitWritten() {
  while (writer_.busy() && !writer_.Written()) {
    watch_.Beat();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// Takes up what the writing threads have done meanwhile; `wait`: until all is done.
Result<> RankLoop::PollCheckpoint(bool wait) {
  if (saving_ < 0) {
    return {};
  }
  if (first()) {
    PENSTOCK_TRY(HearWritten(wait));
  }
  while (wait && !writer_.Finished()) {
    watch_.Beat();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (!writer_.Finished()) {
    return {};
  }
  PENSTOCK_TRY(writer_.Wait());
  const int64_t step = std::exchange(saving_, -1);
  if (!first()) {
    return links_.SendNote("written");
  }
  start_.older_run.clear();
  committed_step_ = step;
  committed_ = (std::filesystem::path(setup_.config.train.folder) / CheckpointName(step)).string();
  return {};
}

// Rank 0: which of the others say that they have written.
Result<> RankLoop::HearWritten(bool wait) {
  links_.set_watch(wait ? &watch_ : nullptr);
  bool all = true;
  for (const int32_t rank : WritingRanks(setup_)) {
    if (rank == 0 || written_by_.contains(rank)) {
      continue;
    }
    PENSTOCK_TRY_ASSIGN(const auto note, links_.TakeNote(rank, wait));
    if (note.has_value()) {
      written_by_.insert(rank);
    } else {
      all = false;
    }
  }
  links_.set_watch(nullptr);
  if (all) {
    writer_.ExpectNotes(setup_.options.deadline_s);
  }
  return {};
}

// The last `keep` stay. Older ones go once a step has been run with the newest one's weights.
void RankLoop::RemoveOld() {
  if (!first() || committed_step_ < 0) {
    return;
  }
  const std::string& folder = setup_.config.train.folder;
  std::vector<int64_t> steps = CheckpointSteps(folder);
  std::erase_if(steps, [this](int64_t step) { return step > committed_step_; });
  for (size_t i = 0; i + static_cast<size_t>(setup_.config.train.keep) < steps.size(); ++i) {
    RemoveCheckpoint(folder, steps[i]);
  }
  committed_step_ = -1;
}

// Over the float32 masters, in the order of the names.
Result<std::string> RankLoop::Digest() {
  Sha256 digest;
  if (channel_.rank() >= setup_.ranks()) {
    return std::string();
  }
  const auto master = [this](TensorId id) {
    for (const auto list : {rank_->parameters(), rank_->constants()}) {
      const auto it = std::find_if(list.begin(), list.end(),
                                   [id](const runtime::Parameter& p) { return p.id == id; });
      if (it != list.end()) {
        return it->master;
      }
    }
    PENSTOCK_CHECK(false, "the holder of a tensor has it");
    return Tensor();
  };
  for (const TensorId id : setup_.stored) {
    const int32_t holder = setup_.holder[static_cast<size_t>(id.value())];
    if (holder == channel_.rank()) {
      if (first()) {
        digest.Update(master(id).Bytes());
      } else {
        PENSTOCK_TRY(links_.SendBytes(0, master(id).Bytes()));
      }
    } else if (first()) {
      const int64_t bytes =
          model::Elements(setup_.model.graph.tensor(id)) * static_cast<int64_t>(sizeof(float));
      PENSTOCK_TRY(links_.ReceiveBytes(
          holder, bytes, [&](std::span<const std::byte> piece) { digest.Update(piece); }));
    }
  }
  return first() ? digest.Hex() : std::string();
}

Result<TrainReport> RankLoop::Finish() {
  PENSTOCK_TRY(runtime::InjectFaultAround(fault_, true, channel_));
  const ProgressScope progress([this] { watch_.Beat(); });
  links_.set_watch(&watch_);
  TrainReport report;
  report.interrupted = stop_;
  PENSTOCK_TRY_ASSIGN(const std::string digest, Digest());
  // The last line comes before the last checkpoint: a run that is killed between them does both
  // again, and one that has its checkpoint has its whole log.
  if (held_line_.has_value()) {
    held_line_->weights_sha256 = digest;
    if (events_->on_line) {
      PENSTOCK_TRY(events_->on_line(*held_line_));
    }
  }
  writer_.Release();
  PENSTOCK_TRY(PollCheckpoint(true));
  RemoveOld();
  links_.set_watch(&watch_);
  figures_.peak = account_.peak();
  figures_.counters = channel_.counters();
  figures_.device = device_->InstructionSet();
  figures_.threads = static_cast<int32_t>(setup_.options.threads);
  for (auto& [window, timeline] : recent_) {
    Append(figures_.timeline, std::move(timeline));
  }
  figures_.timeline.totals = trace::TotalsOf(figures_.timeline);
  if (!first()) {
    PENSTOCK_TRY(links_.SendBlob(0, EncodeFigures(figures_)));
    PENSTOCK_TRY(links_.Part());
    return report;
  }
  report.ranks.push_back(std::move(figures_));
  for (int32_t r = 1; r < channel_.size(); ++r) {
    PENSTOCK_TRY_ASSIGN(const auto bytes, links_.ReceiveBlob(r, kMaxFiguresBytes));
    PENSTOCK_TRY_ASSIGN(RankFigures figures, DecodeFigures(bytes));
    report.ranks.push_back(std::move(figures));
  }
  PENSTOCK_TRY(links_.Part());
  report.last = held_line_;
  report.checkpoint = committed_;
  report.rolled_back = optimizer_->rolled_back();
  report.step_s = Median(std::move(step_s_));
  report.planned = std::move(planned_);
  report.first_step = start_.step;
  return report;
}

Result<TrainReport> RankLoop::Run(const RunStart& start) {
  start_ = start;
  const auto note = [&](const std::string& text) {
    if (events_ != nullptr && events_->on_note) {
      events_->on_note(text);
    }
  };
  note(start.from_checkpoint ? "reading the checkpoint" : "loading weights");
  PENSTOCK_TRY_ASSIGN(std::optional<Checkpoint> checkpoint, Load());
  note("calibrating");
  PENSTOCK_TRY(Calibrate());
  if (checkpoint.has_value()) {
    PENSTOCK_TRY(LoadMoments(*checkpoint, *rank_, *optimizer_));  // calibration has cleared them
    checkpoint.reset();
  }
  note("");
  if (events_ != nullptr && events_->on_ready) {
    events_->on_ready();
  }
  for (int64_t step = start.step + 1; step <= setup_.config.train.steps && !stop_; ++step) {
    if (const Result<> done = Step(step); !done.ok()) {
      return WhileRunning(done.error());
    }
  }
  auto report = Finish();
  return report.ok() ? std::move(report) : Result<TrainReport>(WhileRunning(report.error()));
}

}  // namespace penstock::train
