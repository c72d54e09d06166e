#include "serve/run_setup.h"

#include <algorithm>

#include "base/json.h"
#include "base/units.h"
#include "comm/load_watch.h"
#include "cost/profile.h"
#include "model/cut_search.h"
#include "plan/serving_rules.h"
#include "serve/control.h"
#include "serve/serving_schedule.h"
#include "weights/left_out.h"

namespace penstock::serve {
namespace {

constexpr int64_t kDefaultContext = 4096;
constexpr int64_t kScoreRows = 64;  // rows per step when every row yields logits

Result<model::Partition> Cut(const model::Graph& graph, const RunOptions& options, int64_t stages) {
  if (!options.cut.empty()) {
    return model::CutAt(graph.num_layers(), options.cut);
  }
  if (stages > graph.num_layers()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[serve.setup] --stages {}: the model has {} units (embedding, {} layers, "
                     "head), wanted 1 to {}",
                     stages, graph.num_layers(), graph.num_layers() - 2, graph.num_layers());
  }
  return model::CutBalanced(cost::DecodeCut(graph, options.work_per_byte), stages);
}

runtime::StateSpec StateFor(const model::Graph& graph, const RunOptions& options,
                            const RunDemand& demand, int64_t rows) {
  runtime::StateSpec state;
  state.pools = runtime::PoolsOf(graph);
  const bool wide = options.weights == runtime::WeightChoice::kF32;
  state.kv_type = options.kv_type.value_or(wide ? DType::kF32 : DType::kBF16);
  for (const int64_t window : state.pools.windows) {
    state.blocks.push_back(demand.sequences *
                           runtime::BlocksPerSequence(window, demand.positions, rows));
  }
  return state;
}

std::vector<runtime::StageSpec> StageSpecs(const model::Graph& graph,
                                           const model::Partition& partition,
                                           const runtime::RowLimits& limits) {
  const model::CutSets cuts(graph);
  std::vector<runtime::StageSpec> specs;
  for (int32_t s = 0; s < partition.num_stages(); ++s) {
    runtime::StageSpec& spec = specs.emplace_back();
    spec.range = {partition.first_layer(StageId(s)), partition.end_layer(StageId(s))};
    spec.limits = limits;
    if (s > 0) {
      spec.incoming = cuts.Crossing(spec.range.first_layer);
    }
    if (s + 1 < partition.num_stages()) {
      spec.outgoing = cuts.Crossing(spec.range.last_layer);
    }
  }
  return specs;
}

Result<> CheckMemory(const RunSetup& setup, const RunOptions& options) {
  for (size_t rank = 0; rank < setup.memory.size(); ++rank) {
    const RankMemory& memory = setup.memory[rank];
    if (memory.figures.total > memory.limit_bytes) {
      return MakeError(ErrorCode::kOutOfMemory,
                       "[serve.setup] rank {} needs {} bytes ({} of weights, {} of KV for {} "
                       "of {}, {} of the rest), but {} bytes are "
                       "free{}\nfewer sequences, a smaller --context, more --stages or smaller "
                       "--weights would need less",
                       rank, memory.figures.total,
                       FormatBytes(static_cast<double>(memory.figures[MemoryCategory::kWeights])),
                       FormatBytes(static_cast<double>(memory.figures[MemoryCategory::kKv])),
                       Counted(setup.demand.sequences, "sequence"),
                       Counted(setup.demand.positions, "token"),
                       FormatBytes(static_cast<double>(memory.figures.total -
                                                       memory.figures[MemoryCategory::kWeights] -
                                                       memory.figures[MemoryCategory::kKv])),
                       memory.limit_bytes, options.memory_bytes > 0 ? " (--memory)" : "");
    }
  }
  return {};
}

}  // namespace

Result<ModelBundle> OpenBundle(const std::string& path, model::GraphUse use) {
  ModelBundle bundle;
  PENSTOCK_TRY_ASSIGN(bundle.files, weights::OpenModel(path));
  if (bundle.files->config().is_null()) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        "[serve.setup] {}: the file holds a vocabulary only, no weights; `tokenize` can use it",
        path);
  }
  PENSTOCK_TRY_ASSIGN(bundle.model, model::BuildModel(bundle.files->config(), path, use));
  PENSTOCK_TRY(weights::CheckNothingLeftOut(*bundle.files, bundle.model.graph));
  return bundle;
}

Result<int64_t> ContextOf(const model::ModelConfig& config, int64_t asked) {
  if (asked == 0) {
    return std::min(config.context, kDefaultContext);
  }
  if (asked > config.context) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        "[serve.setup] --context {}: the model was made for {} positions, wanted 1 to {}", asked,
        config.context, config.context);
  }
  return asked;
}

int DefaultThreads(int32_t ranks_on_machine) {
  return std::max(1, kernels::UsableCores() / std::max(1, ranks_on_machine));
}

Result<RunSetup> MakeRunSetup(const ModelBundle& bundle, const RunOptions& options,
                              const RunDemand& demand, int32_t ranks_on_machine,
                              bool across_processes, const kernels::Device& device) {
  const model::Graph& graph = bundle.model.graph;
  RunSetup setup;
  setup.demand = demand;
  const int64_t stages = options.cut.empty() ? std::max<int64_t>(1, options.stages)
                                             : static_cast<int64_t>(options.cut.size()) + 1;
  if (!options.cut.empty() && options.stages > 0 && options.stages != stages) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[serve.setup] --stages {} and --cut with {} (which makes {}) "
                     "contradict each other{}",
                     options.stages, Counted(options.cut.size(), "entry", "entries"),
                     Counted(stages, "stage"),
                     model::NearestCutText(graph.num_layers(), options.cut, options.stages));
  }
  PENSTOCK_TRY_ASSIGN(setup.partition, Cut(graph, options, stages));
  PENSTOCK_TRY_ASSIGN(setup.context, ContextOf(bundle.model.config, options.context));
  setup.groups = static_cast<int32_t>(options.groups > 0 ? options.groups : stages);
  setup.attention_share = cost::AttentionShare(graph);
  const bool every_row = demand.mode != HeadMode::kSample;
  const int64_t chunk = plan::PrefillChunk(demand.longest_prompt, stages, demand.sequences);
  setup.prefill_chunk = options.prefill_chunk > 0
                            ? options.prefill_chunk
                            : (every_row ? std::min(chunk, kScoreRows) : chunk);
  const int64_t per_group = (demand.sequences + setup.groups - 1) / setup.groups;
  setup.limits.rows = setup.prefill_chunk + (every_row ? 0 : per_group);
  setup.limits.selected =
      every_row ? setup.limits.rows : std::min(setup.limits.rows, demand.sequences);
  setup.stages = StageSpecs(graph, setup.partition, setup.limits);
  PENSTOCK_TRY_ASSIGN(setup.rule,
                      runtime::WeightRule::Create(graph, *bundle.files, options.weights));
  setup.state = StateFor(graph, options, demand, setup.limits.rows);
  setup.plan_limits.max_rows = setup.limits.rows;
  setup.plan_limits.max_sequences =
      static_cast<int32_t>(std::min(setup.limits.rows, demand.sequences));
  setup.plan_limits.pools = static_cast<int32_t>(setup.state.pools.windows.size());
  setup.plan_limits.max_blocks_per_table =
      (demand.positions + runtime::kBlockTokens - 1) / runtime::kBlockTokens;
  setup.plan_limits.max_note_bytes = MaxNoteBytes(
      setup.plan_limits.max_sequences, demand.penalties ? demand.positions * demand.sequences : 0,
      every_row ? setup.limits.selected : 0);
  setup.max_result_bytes = MaxResultBytes(demand.mode, setup.limits.selected,
                                          graph.value(graph.logits).width, demand.logprobs);
  PENSTOCK_TRY_ASSIGN(setup.schedule, ServingSchedule(static_cast<int32_t>(stages), setup.groups));
  const int64_t free = options.memory_bytes > 0
                           ? options.memory_bytes
                           : AvailableMemoryBytes() / std::max(1, ranks_on_machine);
  for (int32_t rank = 0; rank < setup.ranks(); ++rank) {
    const runtime::StageSpec& spec = setup.stages[static_cast<size_t>(rank)];
    RankMemory& memory = setup.memory.emplace_back();
    PENSTOCK_TRY_ASSIGN(memory.figures,
                        runtime::PlannedStageMemory(graph, spec, setup.rule, setup.state, device));
    const int64_t messages =
        runtime::PlannedMessageBytes(graph, spec, rank, setup.ranks(), setup.plan_limits,
                                     setup.groups, setup.max_result_bytes, across_processes) +
        PlannedControlBytes(rank, setup.ranks(), across_processes) +
        comm::PlannedWatchBytes(rank, setup.ranks(), across_processes);
    memory.figures[MemoryCategory::kMessages] = messages;
    memory.figures.total += messages;
    memory.limit_bytes = free;
  }
  PENSTOCK_TRY(CheckMemory(setup, options));
  return setup;
}

}  // namespace penstock::serve
