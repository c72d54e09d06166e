// What a training run says of itself: a line per step, and figures of each rank at the end.

#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json_reader.h"
#include "base/result.h"
#include "comm/channel.h"
#include "tensor/memory.h"
#include "trace/bubble.h"
#include "trace/timeline.h"
#include "train/planned_step.h"

namespace penstock::train {

struct StepLine {
  int64_t step = 0;
  double loss = 0;  // mean cross-entropy of the step's targets
  double grad_norm = 0;
  bool clipped = false;
  double lr = 0;
  double tokens_per_s = 0;
  double step_s = 0;
  double bubble_ratio = 0;
  std::optional<double> planned_step_s;
  std::optional<double> eval_loss;                         // after this step, of the model's output
  std::vector<std::pair<std::string, double>> eval_terms;  // of each term of the loss, by name
  std::string weights_sha256;                              // last line of a run
};

// {"step","loss","grad_norm","tokens_per_s","step_s","bubble_ratio","planned_step_s", ...}
Json LineJson(const StepLine& line);

// Sums over the steps of a run, of one rank.
struct RankFigures {
  MemoryFigures peak;
  double busy_s = 0;
  double idle_s = 0;
  trace::Bubble bubble;
  comm::ChannelCounters counters;
  int32_t threads = 1;
  std::string device;
  trace::RankTimeline timeline;  // of the last steps, where a trace is wanted

  void Add(const trace::RankAccount& account);
};

std::vector<std::byte> EncodeFigures(const RankFigures& figures);
Result<RankFigures> DecodeFigures(std::span<const std::byte> bytes);
inline constexpr int64_t kMaxFiguresBytes = int64_t{1} << 30;

// Adds what came later on the same rank. Totals stay those of `to`.
void Append(trace::RankTimeline& to, trace::RankTimeline later);

// A step between ranks: its window, slices, waits and messages.
std::vector<std::byte> EncodeStep(const MeasuredStep& step);
Result<MeasuredStep> DecodeStep(std::span<const std::byte> bytes);

// What the run's owner hears while it goes on; on rank 0's thread, any of them may be empty.
struct TrainEvents {
  std::function<Result<>(const StepLine& line)> on_line;
  std::function<void(const std::string& text)> on_note;  // "loading", "calibrating"
  std::function<bool()> interrupted;
  // All is loaded and tried: the steps begin. Also on the other ranks of a run of processes.
  std::function<void()> on_ready;
};

struct TrainReport {
  std::vector<RankFigures> ranks;  // per channel rank
  std::optional<StepLine> last;
  int64_t first_step = 0;  // steps done before the run
  bool already_finished = false;
  bool interrupted = false;
  std::string checkpoint;  // path of the newest; empty: none
  int64_t rolled_back = 0;
  double step_s = 0;  // median over the steps of this run
  std::optional<PlannedStep> planned;
  double begin_s = 0;  // window of the timelines, on their clock
  double end_s = 0;
};

}  // namespace penstock::train
