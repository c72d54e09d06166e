#include "train/setup.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <set>

#include "base/file.h"
#include "base/units.h"
#include "cost/link_seconds.h"
#include "model/cut_search.h"
#include "model/inventory.h"
#include "runtime/train_edges.h"
#include "schedule/registry.h"
#include "schedule/text/text.h"
#include "train/links.h"
#include "train/optimizer.h"
#include "train/sha256.h"
#include "weights/left_out.h"

namespace penstock::train {
namespace {

// Multiply-adds that take as long as one element of a norm, rotation or activation.
constexpr double kElementCost = 64;
// Multiply-adds of a forward product that take as long as sending a byte of a value and, later, of
// its gradient, where nothing was measured: the backward pass multiplies twice as much.
constexpr double kWorkPerByte = 16;
// Sets of shapes whose memory is worked out one by one; more are covered by the largest
// micro-batch.
constexpr size_t kMaxShapeSets = 32;
constexpr int64_t kMaxStepRows = int64_t{1} << 27;  // four bytes each, several times

// Stages of each rank of a replica, in both copies of the weights.
std::vector<std::set<int32_t>> StagesOf(const schedule::Schedule& schedule) {
  std::vector<std::set<int32_t>> stages(static_cast<size_t>(schedule.num_ranks()));
  for (int32_t s = 0; s < schedule.num_stages(); ++s) {
    for (int direction = 0; direction < schedule.placement.num_directions(); ++direction) {
      const RankId rank = schedule.placement.RankOf(StageId(s), direction);
      stages[static_cast<size_t>(rank.value())].insert(s);
    }
  }
  return stages;
}

void FindHolders(TrainSetup& setup) {
  const model::Graph& graph = setup.model.graph;
  const model::CutSets cuts(graph);
  const auto contents = model::Contents(graph, cuts, setup.partition);
  const auto stages = StagesOf(setup.schedule);
  setup.holder.assign(graph.tensors.size(), -1);
  setup.held.assign(stages.size(), {});
  const std::vector<bool> trainable = runtime::TrainableTensors(graph);
  for (size_t rank = 0; rank < stages.size(); ++rank) {
    std::set<TensorId> held;
    for (const int32_t s : stages[rank]) {
      const auto& tensors = contents[static_cast<size_t>(s)].tensors;
      held.insert(tensors.begin(), tensors.end());
    }
    for (const TensorId id : held) {
      int32_t& holder = setup.holder[static_cast<size_t>(id.value())];
      holder = holder < 0 ? static_cast<int32_t>(rank) : holder;
    }
    std::copy_if(held.begin(), held.end(), std::back_inserter(setup.held[rank]),
                 [&](TensorId id) { return trainable[static_cast<size_t>(id.value())]; });
  }
  // What nothing reads lies with stage 0.
  const auto first = std::find_if(stages.begin(), stages.end(), [](const auto& of_rank) {
    return std::find(of_rank.begin(), of_rank.end(), 0) != of_rank.end();
  });
  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    const TensorId id(static_cast<int32_t>(t));
    if (setup.holder[t] < 0) {
      setup.holder[t] = static_cast<int32_t>(first - stages.begin());
    } else if (trainable[t]) {
      setup.by_name.push_back(id);
    }
    setup.stored.push_back(id);
  }
  for (std::vector<TensorId>* list : {&setup.by_name, &setup.stored}) {
    std::sort(list->begin(), list->end(),
              [&](TensorId a, TensorId b) { return graph.tensor(a).name < graph.tensor(b).name; });
  }
}

Result<> CutModel(TrainSetup& setup) {
  const PipelineSection& pipeline = setup.config.pipeline;
  const model::Graph& graph = setup.model.graph;
  const int64_t stages = setup.compute.num_stages();
  if (!pipeline.cut.empty()) {
    if (static_cast<int64_t>(pipeline.cut.size()) + 1 != stages) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "[train.setup] pipeline.cut has {}, wanted {}: {} has {}{}",
                       Counted(pipeline.cut.size(), "entry", "entries"), stages - 1,
                       setup.compute.name, Counted(stages, "stage"),
                       model::NearestCutText(graph.num_layers(), pipeline.cut, stages));
    }
    PENSTOCK_TRY_ASSIGN(setup.partition, model::CutAt(graph.num_layers(), pipeline.cut));
    return {};
  }
  if (pipeline.stages > graph.num_layers()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[train.setup] pipeline.stages = {}: the model has {} units (embedding, {} "
                     "layers, head), wanted 1 to {}",
                     pipeline.stages, graph.num_layers(), graph.num_layers() - 2,
                     graph.num_layers());
  }
  const model::CutWeights weights =
      TrainCut(graph, setup.config.data.sequence_tokens, setup.options.work_per_byte);
  PENSTOCK_TRY_ASSIGN(setup.partition, model::CutBalanced(weights, stages, true));
  return {};
}

Result<> SetLanes(TrainSetup& setup) {
  const auto m = static_cast<int32_t>(setup.config.pipeline.micro_batches);
  const auto lanes = static_cast<int32_t>(setup.config.pipeline.lanes);
  if (lanes == 0) {
    return {};
  }
  if (lanes > m) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[train.setup] pipeline.lanes = {}, wanted at most pipeline.micro_batches, "
                     "which is {}",
                     lanes, m);
  }
  for (int32_t lane = 0; lane < lanes; ++lane) {
    setup.lane_starts.push_back(static_cast<int32_t>((int64_t{lane} * m + lanes - 1) / lanes));
  }
  return {};
}

// Errors: those of ReadCostFile; kInvalidArgument (a link of a rank that there is not).
Result<schedule::LinkSeconds> ReadLinks(const std::string& path, int ranks) {
  if (path.empty()) {
    return schedule::LinkSeconds();
  }
  PENSTOCK_TRY_ASSIGN(const cost::CostFile file, cost::ReadCostFile(path));
  for (const auto& [pair, link] : file.model.links) {
    if (std::max(pair.first, pair.second) >= ranks) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "[train.setup] {}: a link from rank {} to {}, wanted ranks 0 to {}", path,
                       pair.first, pair.second, ranks - 1);
    }
  }
  return cost::LinkSecondsOf(file.model);
}

// Shapes of the micro-batches of the steps of one replica, each set once; where there are many, the
// largest micro-batch in all places.
std::vector<std::vector<runtime::MicroBatchShape>> ShapeSets(const TrainSetup& setup,
                                                             int64_t replica) {
  const auto& config = setup.config;
  const int32_t slices = setup.schedule.slices;
  std::set<std::vector<std::vector<int64_t>>> seen;
  std::vector<std::vector<runtime::MicroBatchShape>> result;
  constexpr int64_t kMaxSteps = 4096;
  for (int64_t step = 1; step <= std::min(config.train.steps, kMaxSteps); ++step) {
    std::vector<std::vector<int64_t>> key;
    std::vector<runtime::MicroBatchShape> shapes;
    for (const auto& data : setup.dataset->Step(config.pipeline, step, replica).micro_batches) {
      shapes.push_back(runtime::ShapeOf(data, slices));
      key.push_back({shapes.back().rows, shapes.back().counted});
      key.back().insert(key.back().end(), shapes.back().counted_in_slice.begin(),
                        shapes.back().counted_in_slice.end());
    }
    if (seen.insert(std::move(key)).second) {
      result.push_back(std::move(shapes));
    }
    if (result.size() > kMaxShapeSets) {
      break;
    }
  }
  if (result.size() > kMaxShapeSets || config.train.steps > kMaxSteps) {
    result.assign(1, {static_cast<size_t>(config.pipeline.micro_batches), setup.largest});
  }
  return result;
}

Result<> PlanMemory(TrainSetup& setup, const kernels::TrainingDevice& device) {
  const runtime::TrainSpec spec = setup.Spec(false);
  const int64_t sums = SumsPerRank(setup);
  const int64_t report = setup.report_numbers();
  for (int32_t r = 0; r < setup.channel_ranks(); ++r) {
    MemoryFigures planned;
    for (const auto& shapes : ShapeSets(setup, r / setup.ranks())) {
      PENSTOCK_TRY_ASSIGN(const MemoryFigures one,
                          runtime::TrainRank::PlannedMemory(spec, r % setup.ranks(), shapes, device,
                                                            setup.options.across_processes));
      for (size_t c = 0; c < kMemoryCategories; ++c) {
        planned.bytes[c] = std::max(planned.bytes[c], one.bytes[c]);
      }
      planned.total = std::max(planned.total, one.total);
    }
    const int64_t optimizer = setup.options.evaluate ? 0 : PlannedOptimizerBytes(setup, r);
    const int64_t links = Links::PlannedBytes(r, setup.channel_ranks(), setup.ranks(), sums, report,
                                              setup.options.across_processes);
    planned[MemoryCategory::kOptimizer] += optimizer;
    planned[MemoryCategory::kMessages] += links;
    planned.total += optimizer + links;
    setup.planned.push_back(planned);
  }
  return {};
}

Result<> CheckMemory(TrainSetup& setup) {
  const int64_t asked = setup.options.memory_bytes;
  setup.limit_bytes =
      asked > 0 ? asked : AvailableMemoryBytes() / std::max(1, setup.options.ranks_on_machine);
  for (size_t r = 0; r < setup.planned.size(); ++r) {
    const MemoryFigures& planned = setup.planned[r];
    if (planned.total <= setup.limit_bytes) {
      continue;
    }
    std::string parts;
    for (size_t c = 0; c < kMemoryCategories; ++c) {
      if (planned.bytes[c] > 0) {
        parts += fmt::format("{}{} {}", parts.empty() ? "" : ", ",
                             MemoryCategoryName(static_cast<MemoryCategory>(c)),
                             FormatBytes(static_cast<double>(planned.bytes[c])));
      }
    }
    return MakeError(ErrorCode::kOutOfMemory,
                     "[train.setup] rank {} needs {} ({}), but has {}\nmore stages, a smaller "
                     "micro_batch or sequence_tokens, train.recompute, or a schedule that holds "
                     "less ({})",
                     r, FormatBytes(static_cast<double>(planned.total)), parts,
                     FormatBytes(static_cast<double>(setup.limit_bytes)),
                     asked > 0 ? "--memory" : "what is free on this machine");
  }
  return {};
}

}  // namespace

std::string TrainSetup::Identity() const {
  return config.Identity() + fmt::format("model.layout = {}\ndata = {}\n",
                                         Sha256Hex(DumpJson(model_config)), corpus.key());
}

runtime::TrainSpec TrainSetup::Spec(bool with_fault) const {
  runtime::TrainSpec spec;
  spec.graph = &model.graph;
  spec.partition = &partition;
  spec.schedule = &schedule;
  spec.eval_schedule = options.evaluate || config.train.eval_every > 0 ? &forward : nullptr;
  spec.forward_only = options.evaluate;
  spec.replicas = replicas();
  spec.lane_starts = lane_starts;
  spec.products = config.train.bf16 ? kernels::ProductType::kBF16 : kernels::ProductType::kF32;
  spec.recompute = options.evaluate ? runtime::Recompute::kNone
                                    : static_cast<runtime::Recompute>(config.train.recompute);
  spec.dropout = static_cast<float>(config.train.dropout);
  spec.seed = config.train.seed;
  spec.largest = largest;
  spec.deadline_s = options.deadline_s;
  if (with_fault) {
    if (auto fault = runtime::FaultFromEnvironment(); fault.ok()) {
      spec.fault = fault.value();
    }
  }
  return spec;
}

static_assert(static_cast<int>(Recompute::kFull) == static_cast<int>(runtime::Recompute::kFull));

Result<> OpenModelOf(const TrainConfig& config, TrainSetup& setup) {
  setup.config = config;
  if (!config.model.path.empty()) {
    setup.model_source = config.model.path;
    PENSTOCK_TRY_ASSIGN(setup.files, weights::OpenModel(config.model.path));
    if (setup.files->config().is_null()) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "[train.setup] {}: holds a vocabulary only, wanted a model",
                       config.model.path);
    }
    setup.model_config = setup.files->config();
  } else {
    setup.model_source = config.model.config;
    PENSTOCK_TRY_ASSIGN(setup.model_config, ReadJsonFile(config.model.config));
  }
  PENSTOCK_TRY_ASSIGN(setup.model, model::BuildModel(setup.model_config, setup.model_source,
                                                     model::GraphUse::kTrain));
  if (setup.files != nullptr) {
    PENSTOCK_TRY(weights::CheckNothingLeftOut(*setup.files, setup.model.graph));
  }
  if (!config.data.tokenizer.empty()) {
    PENSTOCK_TRY_ASSIGN(setup.material, weights::OpenTokenizer(config.data.tokenizer));
  } else if (setup.files != nullptr) {
    PENSTOCK_TRY_ASSIGN(setup.material, setup.files->Tokenizer());
  } else {
    const std::string folder = std::filesystem::path(config.model.config).parent_path().string();
    PENSTOCK_TRY_ASSIGN(setup.material, weights::OpenTokenizer(folder.empty() ? "." : folder));
  }
  PENSTOCK_TRY_ASSIGN(LoadedTokenizer tokenizer, LoadTokenizer(setup.material));
  setup.tokenizer.emplace(std::move(tokenizer));
  return {};
}

std::vector<double> TrainLayerWeights(const model::Graph& graph, int64_t sequence_tokens) {
  model::WorkShape shape = model::PrefillShape(static_cast<double>(sequence_tokens));
  shape.logit_rows = shape.rows;  // every row has a target
  const model::TensorBytes bytes = model::BytesAtBits(graph, 32);
  std::vector<double> times(graph.layers.size(), 1.0);
  for (const model::Op& op : graph.ops) {
    double work = 0;
    if (!std::holds_alternative<model::EmbedOp>(op.params)) {
      work = model::OpWork(graph, op, shape, bytes, 4).flops / 2 / shape.rows;
    }
    if (!std::holds_alternative<model::LinearOp>(op.params) && !op.outputs.empty()) {
      work += kElementCost * static_cast<double>(graph.value(op.outputs[0]).width);
    }
    times[static_cast<size_t>(op.layer.value())] += work;
  }
  for (const model::LossTerm& term : graph.losses) {
    const model::Value& logits = graph.value(term.logits);
    times[static_cast<size_t>(logits.producer.value())] +=
        kElementCost * static_cast<double>(logits.width);
  }
  return times;
}

model::CutWeights TrainCut(const model::Graph& graph, int64_t sequence_tokens,
                           double work_per_byte) {
  return {TrainLayerWeights(graph, sequence_tokens), model::CrossingBytes(graph, 4),
          work_per_byte > 0 ? work_per_byte : kWorkPerByte};
}

Result<schedule::Schedule> ComputeSchedule(const PipelineSection& pipeline) {
  schedule::Schedule schedule;
  if (pipeline.schedule_is_file) {
    PENSTOCK_TRY_ASSIGN(schedule::ScheduleText text, schedule::ReadScheduleFile(pipeline.schedule));
    schedule = std::move(text.schedule);
  } else {
    schedule::GeneratorOptions options;
    options.ranks = static_cast<int>(pipeline.stages);
    options.micro_batches = static_cast<int>(pipeline.micro_batches);
    options.chunks = static_cast<int>(pipeline.chunks);
    options.slices = static_cast<int>(pipeline.slices);
    PENSTOCK_TRY_ASSIGN(schedule, schedule::Generate(pipeline.schedule, options));
  }
  if (schedule.forward_only || schedule.ring) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[train.setup] pipeline.schedule: {} has no backward work, wanted a schedule "
                     "that trains",
                     pipeline.schedule);
  }
  if (schedule.num_ranks() != pipeline.stages || schedule.micro_batches != pipeline.micro_batches) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[train.setup] {} has {} ranks and {} micro-batches, but pipeline.stages is "
                     "{} and pipeline.micro_batches {}",
                     pipeline.schedule, schedule.num_ranks(), schedule.micro_batches,
                     pipeline.stages, pipeline.micro_batches);
  }
  return schedule;
}

Result<TrainSetup> MakeTrainSetup(const TrainConfig& config, const TrainOptions& options,
                                  const kernels::TrainingDevice& device) {
  TrainSetup setup;
  setup.options = options;
  PENSTOCK_TRY(OpenModelOf(config, setup));
  const int64_t context = setup.model.config.context;
  if (context > 0 && config.data.sequence_tokens > context) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[train.setup] data.sequence_tokens = {}, but the model's context is {}, "
                     "wanted at most that",
                     config.data.sequence_tokens, context);
  }
  if (config.GlobalSequences() > kMaxStepRows / config.data.sequence_tokens) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[train.setup] a step of {} sequences of {} tokens, wanted at most {} tokens "
                     "in all (pipeline.micro_batch, micro_batches, replicas, data.sequence_tokens)",
                     FormatCount(config.GlobalSequences()),
                     FormatCount(config.data.sequence_tokens), FormatCount(kMaxStepRows));
  }
  PENSTOCK_TRY_ASSIGN(setup.compute, ComputeSchedule(config.pipeline));
  PENSTOCK_TRY(CutModel(setup));
  PENSTOCK_TRY(SetLanes(setup));
  runtime::TrainScheduleOptions lowering;
  lowering.recompute = static_cast<runtime::Recompute>(config.train.recompute);
  lowering.naive = config.pipeline.naive;
  lowering.rows = config.data.sequence_tokens * config.pipeline.micro_batch;
  PENSTOCK_TRY_ASSIGN(lowering.link_seconds,
                      ReadLinks(config.pipeline.links, setup.compute.num_ranks()));
  PENSTOCK_TRY_ASSIGN(
      setup.schedule,
      runtime::PrepareTrainSchedule(setup.compute, setup.model.graph, setup.partition, lowering));
  lowering.recompute = runtime::Recompute::kNone;
  lowering.optimizer = false;
  PENSTOCK_TRY_ASSIGN(setup.forward,
                      runtime::PrepareTrainSchedule(runtime::ForwardOf(setup.compute),
                                                    setup.model.graph, setup.partition, lowering));
  if (options.evaluate) {
    setup.schedule = setup.forward;
  }
  FindHolders(setup);
  PENSTOCK_TRY_ASSIGN(setup.corpus,
                      OpenCorpus(config.data, *setup.tokenizer, TokenizerDigest(setup.material),
                                 TokenCacheFolder()));
  PENSTOCK_TRY_ASSIGN(Dataset dataset, Dataset::Create(setup.corpus, config.data, config.train.seed,
                                                       setup.model.config.vocabulary));
  setup.dataset.emplace(std::move(dataset));
  setup.largest.rows = setup.dataset->longest() * config.pipeline.micro_batch;
  setup.largest.counted = setup.largest.rows;
  PENSTOCK_TRY(PlanMemory(setup, device));
  PENSTOCK_TRY(CheckMemory(setup));
  return setup;
}

}  // namespace penstock::train
