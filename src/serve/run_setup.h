// Everything about a run that is fixed before it starts: the cut, the proven schedule, row limits,
// KV pages, and the memory that each rank will take. A pure function of headers and flags: every
// rank computes the same.

#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/cut.h"
#include "runtime/rank_executor.h"
#include "runtime/stage.h"
#include "schedule/schedule.h"
#include "serve/head_note.h"
#include "serve/sampling.h"
#include "weights/model_files.h"

namespace penstock::serve {

// A model opened by its headers.
struct ModelBundle {
  std::unique_ptr<weights::ModelFiles> files;
  model::Model model;
};

Result<ModelBundle> OpenBundle(const std::string& path,
                               model::GraphUse use = model::GraphUse::kRun);

// What the command line says; the same on every rank.
struct RunOptions {
  int64_t stages = 0;        // 0: 1, or the number of MPI ranks
  std::vector<int64_t> cut;  // --cut; empty: balanced
  int64_t groups = 0;        // 0: as many as stages
  int threads = 0;           // per stage; 0: usable cores over stages on this machine
  runtime::WeightChoice weights = runtime::WeightChoice::kAuto;
  std::optional<DType> kv_type;  // empty: f32 with f32 weights, else bf16
  int64_t context = 0;           // 0: min(model's, 4096)
  int64_t prefill_chunk = 0;     // 0: chosen
  int64_t memory_bytes = 0;      // per rank; 0: what the machine has, divided by the ranks on it
  double deadline_s = 30;
  bool keep_trace = false;   // record slices, not only sums
  double work_per_byte = 0;  // what crosses a boundary against work (cost::DecodeCut), for the cut
  std::string links_from;    // the file that this is from; empty: nothing was measured
};

// What the requests need; only the rank that has them knows.
struct RunDemand {
  HeadMode mode = HeadMode::kSample;
  int64_t sequences = 1;
  int64_t positions = 0;  // most positions of one sequence: pages are set aside for these
  int64_t longest_prompt = 0;
  int32_t logprobs = -1;
  bool penalties = false;  // histories travel to the head
};

struct RankMemory {
  MemoryFigures figures;  // with messages
  int64_t limit_bytes = 0;
};

struct RunSetup {
  RunDemand demand;
  model::Partition partition{{0, 0}, 0};
  std::vector<runtime::StageSpec> stages;
  runtime::WeightRule rule;
  runtime::StateSpec state;
  runtime::RowLimits limits;
  runtime::PlanLimits plan_limits;
  schedule::Schedule schedule;  // one lap, lowered and proven
  int32_t groups = 1;
  int64_t context = 0;
  int64_t prefill_chunk = 0;
  double attention_share = 0;
  int64_t max_result_bytes = 0;
  std::vector<RankMemory> memory;  // per rank

  int32_t ranks() const { return partition.num_stages(); }
};

// The context of a run: --context, or the smaller of the model's and 4096. Errors: kInvalidArgument
// beyond the model's.
Result<int64_t> ContextOf(const model::ModelConfig& config, int64_t asked);

// Errors: kInvalidArgument (stages, cut, groups, context), kOutOfMemory (a rank's limit, with bytes
// needed and free), kInvalidSchedule.
Result<RunSetup> MakeRunSetup(const ModelBundle& bundle, const RunOptions& options,
                              const RunDemand& demand, int32_t ranks_on_machine,
                              bool across_processes, const kernels::Device& device);

// The default of --threads: max(1, usable cores / stages on this machine).
int DefaultThreads(int32_t ranks_on_machine);

}  // namespace penstock::serve
