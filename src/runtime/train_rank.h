// TrainRank: one rank of a training pipeline. Holds the stages that a proven schedule places on it
// (weights, gradient accumulators), and runs one step of the schedule, action by action: F, I, W,
// B, R, messages, releases, gradient reductions, and OPT through a hook of the caller.
//
// Everything about a step is fixed before it: the schedule, the shapes of the micro-batches, what
// each action keeps and releases. So PlannedMemory runs the same program without arithmetic and
// gives the peak that a step will have.
//
// Numbers (the same bits for every schedule, cut, transport and number of threads, given the same
// micro-batches, slices and lanes):
//   - A gradient is the sum of its lanes, lane 0 + lane 1 + ..., over all replicas, replica by
//     replica; each lane adds its micro-batches in ascending order (slices of one micro-batch from
//     the last to the first). A W that comes too early is put off until its turn, and what it needs
//     is held and counted.
//   - A tensor with several uses (tied or shared weights) has one accumulator per use; the uses are
//     added in ascending layer order after the lanes.
//   - The gradient of a value with several readers is added latest reader first; where the value
//     crosses stages, the running sum travels back with the chain.
//   - Loss: the sum of the cross-entropies of the rows that count over `counted` of the whole step,
//     in float64, micro-batch by micro-batch in ascending order.
//
// Operations are looked up in a table: train_op.h says how to add one.

#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "comm/channel.h"
#include "kernels/training.h"
#include "model/cut.h"
#include "model/graph.h"
#include "runtime/fault.h"
#include "schedule/passes.h"
#include "schedule/schedule.h"
#include "tensor/memory.h"
#include "trace/timeline.h"
#include "weights/model_files.h"

namespace penstock::runtime {

// ---- What a step works on ----

// One sequence of a micro-batch (packed sequences are several): its rows follow those of the
// sequence before it. Attention never crosses from one to another.
struct TrainSequence {
  int64_t rows = 0;
  int64_t first_position = 0;  // of its first row, for rotary embedding
};

// The same on every rank of a replica. Not all micro-batches need the same rows; one may have none,
// or none that counts.
struct MicroBatchData {
  std::vector<int32_t> tokens;   // id per row
  std::vector<int32_t> targets;  // per row the id that should follow; -1: the row does not count
  std::vector<TrainSequence> sequences;  // their rows add up to the tokens
  uint32_t key = 0;  // names the micro-batch in the step, over all replicas: dropout depends on it

  int64_t rows() const { return static_cast<int64_t>(tokens.size()); }

  // Rows whose target `shift` rows on in their sequence is not -1.
  int64_t counted(int32_t shift = 0) const;
};

struct StepData {
  int64_t step = 0;
  std::span<const MicroBatchData> micro_batches;  // of this replica: schedule.micro_batches
  int64_t counted = 0;  // rows that count in the whole step, all replicas; the loss's divisor, > 0
  // Divisors of the losses with shifted targets: [s - 1] counts rows at shift s, over all replicas.
  // Without replicas it may be empty: it is counted here.
  std::vector<int64_t> counted_later = {};
};

// Rows that count with targets `shift` rows on, as stated in the data.
inline int64_t DivisorOf(const StepData& data, int32_t shift) {
  const auto s = static_cast<size_t>(shift);
  return shift == 0 ? data.counted : s <= data.counted_later.size() ? data.counted_later[s - 1] : 0;
}

// Fills `counted_later` from the micro-batches of all replicas, as far as the graph's losses look.
std::vector<int64_t> CountLater(const model::Graph& graph,
                                std::span<const MicroBatchData> micro_batches);

// What planning needs to know of a micro-batch.
struct MicroBatchShape {
  int64_t rows = 0;
  int64_t counted = 0;                         // rows that get logits
  std::vector<int64_t> counted_in_slice = {};  // of each sequence slice; empty: as many as can be
};

// The shape of a micro-batch that is known, for a schedule with this many slices.
MicroBatchShape ShapeOf(const MicroBatchData& data, int32_t slices);

// ---- What is fixed for a run ----

// What F keeps for the backward pass, beside what can't be had again.
enum class Recompute : uint8_t {
  kNone,       // everything
  kSelective,  // not the results of cheap operations (norms, rotations, activations, gates)
  kFull,       // the stage's inputs only
};

// "none", "selective", "full". Errors: kInvalidArgument naming these.
Result<Recompute> ParseRecompute(std::string_view text);

struct TrainScheduleOptions {
  Recompute recompute = Recompute::kNone;
  bool optimizer = true;  // OPT actions at the end
  int credits = 2;        // messages in flight per edge and direction that the proof counts on
  bool naive = false;     // long values go over every hop again, also to ranks that hold them
  // Where links differ: long values take the fastest way. Null: from the nearest rank that has
  // them.
  schedule::LinkSeconds link_seconds;
  int64_t rows = 0;  // of the largest micro-batch, for the bytes of edges; 0: not known
};

// Makes a compute-only schedule (a generator's, or a file's) ready for this graph and cut: long
// values and tied weights become edges, R actions are placed where something is recomputed,
// communication, releases and the end of the step are added, and all is proven. A schedule that is
// lowered already keeps its order of messages and must carry the same values. Errors:
// kInvalidSchedule; kInvalidArgument (stages of the cut and of the schedule differ).
Result<schedule::Schedule> PrepareTrainSchedule(const schedule::Schedule& compute,
                                                const model::Graph& graph,
                                                const model::Partition& partition,
                                                const TrainScheduleOptions& options);

// The forward actions of a compute-only schedule, in its order on its ranks: for TrainSpec's
// eval_schedule, after PrepareTrainSchedule.
schedule::Schedule ForwardOf(const schedule::Schedule& compute);

// The edges of PrepareTrainSchedule: a value that stages beyond the next one read (`to` has those),
// and tensors that several stages use.
std::vector<schedule::Edge> TrainEdges(const model::Graph& graph,
                                       const model::Partition& partition);

struct TrainSpec {
  const model::Graph* graph = nullptr;
  const model::Partition* partition = nullptr;   // into the schedule's stages
  const schedule::Schedule* schedule = nullptr;  // from PrepareTrainSchedule
  // Forward only, with the same placement (ForwardOf, then PrepareTrainSchedule): what RunEval runs
  // on the same weights.
  const schedule::Schedule* eval_schedule = nullptr;
  int credits = 2;       // as the schedules were prepared
  int32_t replicas = 1;  // data-parallel copies; channel rank = replica * ranks + rank
  // First micro-batch of each lane, ascending from 0. Empty: what the schedule needs, that is {0},
  // or {0, m / 2 rounded up} for two copies of the weights, which must not be anything else.
  std::vector<int32_t> lane_starts;
  kernels::ProductType products = kernels::ProductType::kF32;
  Recompute recompute = Recompute::kNone;  // as the schedule was prepared
  float dropout = 0;  // on the embedding and on each branch before it is added to the residual
  uint64_t seed = 0;  // of dropout
  MicroBatchShape largest;     // bounds of a micro-batch, for messages and scratch
  bool forward_only = false;   // the schedule has no backward actions: no accumulators are made
  double deadline_s = 30;      // of every wait
  std::optional<Fault> fault;  // FaultFromEnvironment(); the number in it is the step's
};

// A trainable tensor that this rank holds. Several stages of a rank share one.
struct Parameter {
  TensorId id;
  std::string name;  // canonical
  std::vector<int64_t> shape;
  StageId stage;  // whose OPT action updates it: the last of its stages in this rank's program
  Tensor master;  // float32 [rows, columns], vectors [1, n]; the caller may write it between steps
                  // and in OPT, and then calls ParametersChanged
  Tensor gradient;  // the same shape; complete from the stage's OPT (or the end of the step) until
                    // the next step begins: over lanes, uses, copies of the weights and replicas.
                    // Empty when forward_only
  bool counts = true;  // this is the copy to write to checkpoints and to count in global sums: the
                       // lowest channel rank of those that hold the tensor
};

struct StepResult {
  // Sum of cross-entropies of each micro-batch whose head ran here, not divided; NaN for others.
  std::vector<double> losses;
  bool has_losses = false;
  // The same for the other terms of the graph's loss, [term - 1]: those whose logits are made here.
  std::vector<std::vector<double>> auxiliary;
};

// The loss of a step in one order whatever the cut: per term of the graph's losses its weight times
// the sum of the micro-batches, ascending (replica by replica), over its rows that count.
// `losses[k]`: term k, all micro-batches of all replicas; `data` of any replica.
double StepLoss(const model::Graph& graph, const StepData& data,
                std::span<const std::vector<double>> losses);

// Called by RunStep. An error ends the step with that error.
class StepEnd {
 public:
  virtual ~StepEnd() = default;
  // OPT of a stage: the gradients of `parameters` (indices into TrainRank::parameters()) are
  // complete. What it changes in masters it tells the rank (Update, ParametersChanged). A scalar
  // that must come from all ranks (the norm) may be exchanged here over control lanes of the
  // caller's own: every rank comes here after the last message that another one needs from it in
  // this step, since OPT actions stand at the end of the lists. May take gradients as scratch.
  virtual Result<> Optimize(StageId stage, std::span<const int32_t> parameters) = 0;

  // Seconds of the last Optimize in which this rank waited for others; recorded apart.
  virtual double waited_s() const { return 0; }

  // BARRIER. Every rank comes here equally often.
  virtual Result<> Barrier() { return {}; }
};

// Not thread-safe: one thread per rank. Everything that it is given must outlive it.
class TrainRank {
 public:
  // Allocates masters, packed matrices, accumulators and message lanes; nothing is loaded yet.
  // `channel` has replicas * ranks ends. Errors: kOutOfMemory; kUnsupported (an operation that does
  // not train, naming layer and kind); kInvalidArgument (lanes).
  static Result<std::unique_ptr<TrainRank>> Create(const TrainSpec& spec, comm::Channel& channel,
                                                   kernels::TrainingDevice& device,
                                                   MemoryAccount& account,
                                                   trace::RankRecorder& recorder);
  virtual ~TrainRank() = default;

  // Bytes by category that this rank will take at most, exactly what the account's peaks will be
  // (but for optimizer state, which is the caller's): from headers, before anything is allocated.
  // `rank` is that in the replica. With several sets of shapes, the caller takes the largest.
  static Result<MemoryFigures> PlannedMemory(const TrainSpec& spec, int32_t rank,
                                             std::span<const MicroBatchShape> shapes,
                                             const kernels::TrainingDevice& device,
                                             bool across_processes);

  // The curve behind the figure: bytes of activations held after each action of this rank's list
  // that belongs to a micro-batch, in their order.
  struct PlannedPoint {
    schedule::Action action;
    int64_t activation_bytes = 0;
  };

  static Result<std::vector<PlannedPoint>> PlannedActivations(
      const TrainSpec& spec, int32_t rank, std::span<const MicroBatchShape> shapes,
      const kernels::TrainingDevice& device);

  // Fills all masters from the files, by canonical names, and packs; calls Progress() meanwhile.
  // Errors: those of ModelFiles::Source and ReadRows.
  virtual Result<> Load(const weights::ModelFiles& files) = 0;

  // Ascending by tensor id. The vector never changes; the tensors' contents do.
  virtual std::span<const Parameter> parameters() const = 0;
  // Tensors of the model that training does not change: a router's bias, and what no operation
  // reads, which the rank of stage 0 holds. No gradients; `stage` is not valid.
  virtual std::span<const Parameter> constants() const = 0;
  // Packs the matrices of these parameters again after their masters were written outside OPT
  // (random start, checkpoint, rolled back step). Empty: all.
  virtual void ParametersChanged(std::span<const int32_t> parameters) = 0;
  // One step of AdamW on parameter i, with gradient and moments of as many contiguous numbers as
  // its master. Packs what it changes: faster than AdamW and ParametersChanged.
  virtual void Update(int32_t parameter, const kernels::AdamWParams& params, Tensor gradient,
                      Tensor m, Tensor v) = 0;

  // Runs this rank's list once. `end` may be null when the schedule has no OPT and no BARRIER.
  // Forward-only schedules give losses alone (evaluation): dropout is off then. Errors: kPeerLost,
  // kDeadlineExceeded; kNotFinite (exit status 3) for a loss or a gradient that is not finite,
  // naming step, micro-batch and stage; those of `end`. After an error the object can only be
  // destroyed; the caller tells the channel (Fail).
  virtual Result<StepResult> RunStep(const StepData& data, StepEnd* end) = 0;

  // Losses of up to eval_schedule->micro_batches micro-batches (those beyond the data are left
  // out), without dropout and without a backward pass. Every rank of the replica calls it with the
  // same data. `data.counted` is not used. REQUIRES: spec.eval_schedule.
  virtual Result<StepResult> RunEval(const StepData& data) = 0;

  // Whether one of this rank's stages has the head, in any copy of the weights: losses come from
  // it.
  virtual bool holds_head() const = 0;
};

}  // namespace penstock::runtime
