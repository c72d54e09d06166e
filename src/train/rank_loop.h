// One rank's part of a training run: loads, calibrates, steps, writes its part of checkpoints. The
// same program on every rank; rank 0 also gathers, logs and commits.

#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "comm/channel.h"
#include "kernels/training.h"
#include "runtime/train_rank.h"
#include "train/checkpoint_writer.h"
#include "train/evaluate.h"
#include "train/links.h"
#include "train/optimizer.h"
#include "train/planned_step.h"
#include "train/rank_weights.h"
#include "train/ranks.h"
#include "train/report.h"
#include "train/setup.h"

namespace penstock::train {

// Where a run begins; rank 0 decides, the others hear it.
struct RunStart {
  int64_t step = 0;  // steps done
  bool from_checkpoint = false;
  std::vector<int64_t> older_run;  // steps of checkpoints that this run replaces
};

class RankLoop {
 public:
  // `events` of rank 0, or with on_ready alone, or null. Everything that it is given must outlive
  // it.
  static Result<std::unique_ptr<RankLoop>> Create(const TrainSetup& setup, RankMeans means,
                                                  comm::Clock::time_point origin,
                                                  const TrainEvents* events);
  ~RankLoop();

  // Trains to the end, or until some rank is interrupted. The report is rank 0's only.
  Result<TrainReport> Run(const RunStart& start);

  // The step that made the weights that the last step or evaluation was begun with.
  int64_t weights_step() const { return weights_step_; }

 private:
  struct DoneStep {  // of one step, until its line is written
    int64_t step = 0;
    int64_t rows = 0;
    int64_t counted = 0;
    std::vector<int64_t> counted_later;
    std::vector<double> own;  // this rank's report
  };

  RankLoop(const TrainSetup& setup, RankMeans means, comm::Clock::time_point origin,
           const TrainEvents* events);

  bool first() const { return channel_.rank() == 0; }

  Result<std::optional<Checkpoint>> Load();
  Result<> LoadModel(const std::optional<Checkpoint>& checkpoint);
  Result<> Calibrate();
  Result<> PlanFrom(const std::vector<MeasuredStep>& own);
  Result<> PlanCurves(trace::Timeline& timeline);
  Result<> Step(int64_t step);
  std::vector<double> ReportOf(const runtime::StepResult& result, double begin_s, double end_s);
  Result<EvalResult> Validate(int64_t step);
  Result<> TakeLines();
  Result<> FinishLine(const StepFacts& facts);
  Result<> WriteHeldLine();
  Result<> SaveCheckpoint(int64_t step);
  CheckpointCommit CommitOf(int64_t step) const;
  void AwaitWritten();
  Result<> PollCheckpoint(bool wait);
  Result<> HearWritten(bool wait);
  void RemoveOld();
  Result<std::string> Digest();
  Result<TrainReport> Finish();

  const TrainSetup& setup_;
  comm::Channel& channel_;
  comm::LoadWatch& watch_;
  MemoryAccount& account_;
  std::unique_ptr<kernels::Device> device_;
  std::unique_ptr<kernels::TrainingDevice> training_;
  trace::RankRecorder recorder_;
  Links links_;
  std::unique_ptr<runtime::TrainRank> rank_;
  std::unique_ptr<RankOptimizer> optimizer_;
  const TrainEvents* events_;

  RunStart start_;
  std::optional<runtime::Fault> fault_;
  std::deque<DoneStep> done_;          // whose lines are not written
  std::optional<StepLine> held_line_;  // the newest one, until it is known whether it is the last
  int64_t weights_step_ = 0;           // that made the weights which run
  bool stop_ = false;
  std::optional<PlannedStep> planned_;
  std::vector<double> step_s_;  // of all steps
  RankFigures figures_;
  std::deque<std::pair<std::pair<double, double>, trace::RankTimeline>> recent_;

  CheckpointWriter writer_;
  int64_t saving_ = -1;           // step that is being written; -1: none
  std::set<int32_t> written_by_;  // rank 0: others that have written theirs
  int64_t committed_step_ = -1;   // rank 0: of the newest, while older ones may have to go
  std::string committed_;
  std::vector<std::pair<std::string, std::string>> small_files_;
};

}  // namespace penstock::train
