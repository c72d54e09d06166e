// penstock inspect MODEL: what a model weighs, and what a cut of it moves. Reads headers only.

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "base/units.h"
#include "cli/engine_planning.h"
#include "cli/inspected_model.h"
#include "cli/verb.h"
#include "cli/verbs.h"
#include "cost/profile.h"
#include "cost/roofline.h"
#include "model/config.h"
#include "model/cut.h"
#include "model/cut_search.h"
#include "model/inventory.h"
#include "schedule/placement.h"
#include "train/setup.h"
#include "weights/model_files.h"

namespace penstock::cli {
namespace {

using model::Graph;

// Activations and state are counted at 16 bits a value.
constexpr int64_t kElementBytes = kInspectedElementBytes;
// Context at which `--balance` weighs attention and state.
constexpr int64_t kBalanceContext = 4096;

struct Flags {
  CommonFlags common;
  std::string model;
  std::optional<int64_t> stages;
  std::string cut;
  std::string balance = "time";
  std::optional<int64_t> chunks;
  std::string placement;
  bool training = false;
};

Result<std::vector<int64_t>> ParseCut(const std::string& text) {
  std::vector<int64_t> cut;
  size_t at = 0;
  while (at <= text.size()) {
    const size_t comma = std::min(text.find(',', at), text.size());
    int64_t entry = 0;
    const char* end = text.data() + comma;
    const auto [stop, error] = std::from_chars(text.data() + at, end, entry);
    if (error != std::errc() || stop != end) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "[cli.inspect] --cut: got '{}', wanted layers separated by commas, as 10,20",
                       text);
    }
    cut.push_back(entry);
    at = comma + 1;
  }
  return cut;
}

// A cut, and what it was weighed by.
struct Chosen {
  model::Partition partition{{0}, 1};
  model::CutWeights weights;
  std::optional<model::Partition> by_work;  // where what crosses changed the cut: without it
  std::string links_from;  // the calibrated file that says what a byte weighs, or ""
};

// What `run` (with --training: `train`) cuts by, what stages hold, or numbers of layers.
Result<> WeighLayers(const Flags& flags, const Inspected& inspected,
                     const model::TensorBytes& bytes, Chosen& chosen) {
  PENSTOCK_TRY_ASSIGN(const model::Balance balance, model::ParseBalance(flags.balance));
  const Graph& graph = inspected.model.graph;
  model::CutWeights& weights = chosen.weights;
  if (balance == model::Balance::kTime) {
    const CrossingWeight crossing =
        flags.training ? TrainCrossing(false) : DecodeCrossing(inspected.held, false);
    chosen.links_from = crossing.system;
    weights = flags.training ? train::TrainCut(graph, train::DataSection().sequence_tokens,
                                               crossing.work_per_byte)
                             : cost::DecodeCut(graph, crossing.work_per_byte);
    return {};
  }
  weights.work = model::BalanceWeights(graph, balance, bytes, kElementBytes,
                                       std::min(inspected.model.config.context, kBalanceContext));
  if (balance == model::Balance::kMemory) {
    weights.crossing_bytes = model::CrossingBytes(graph, kElementBytes);
    weights.work_per_byte = 1;  // a byte held is a byte held
  }
  return {};
}

// The partition that the flags ask for, or one stage.
Result<model::Partition> ChoosePartition(const Flags& flags, const Graph& graph,
                                         const model::CutWeights& weights) {
  if (!flags.cut.empty()) {
    PENSTOCK_TRY_ASSIGN(const std::vector<int64_t> cut, ParseCut(flags.cut));
    if (flags.stages && *flags.stages != static_cast<int64_t>(cut.size()) + 1) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "[cli.inspect] --stages {} with {} of --cut, wanted {}{}", *flags.stages,
                       Counted(cut.size(), "entry", "entries"), Counted(cut.size() + 1, "stage"),
                       model::NearestCutText(graph.num_layers(), cut, *flags.stages));
    }
    return model::CutAt(graph.num_layers(), cut);
  }
  return model::CutBalanced(weights, flags.stages.value_or(1));
}

Result<Chosen> Choose(const Flags& flags, const Inspected& inspected,
                      const model::TensorBytes& bytes) {
  const Graph& graph = inspected.model.graph;
  Chosen chosen;
  PENSTOCK_TRY(WeighLayers(flags, inspected, bytes, chosen));
  PENSTOCK_TRY_ASSIGN(chosen.partition, ChoosePartition(flags, graph, chosen.weights));
  if (flags.cut.empty() && flags.balance != "layers") {
    PENSTOCK_TRY_ASSIGN(model::Partition by_work,
                        model::CutBalanced(chosen.weights.work, flags.stages.value_or(1)));
    if (!(by_work == chosen.partition)) {
      chosen.by_work = std::move(by_work);
    }
  }
  // The figures that are shown are at 16 bits a value.
  chosen.weights.work_per_byte *= flags.balance == "time" ? 2 : 1;
  chosen.weights.crossing_bytes = model::CrossingBytes(graph, kElementBytes);
  return chosen;
}

// One boundary of the cut, and the nearest other place for it where less crosses: how much heavier
// the heavier of its two stages would be there, with what their boundaries send and receive.
struct CutRow {
  int32_t layer = 0;
  std::optional<int32_t> elsewhere;
  double heavier = 0;
};

std::vector<CutRow> CutRows(const Chosen& chosen) {
  const std::vector<double>& bytes = chosen.weights.crossing_bytes;
  const model::Partition& partition = chosen.partition;
  std::vector<CutRow> rows;
  for (int32_t s = 1; s < partition.num_stages(); ++s) {
    CutRow& row = rows.emplace_back();
    row.layer = partition.first_layer(StageId(s));
    const int32_t first = partition.first_layer(StageId(s - 1));
    const int32_t end = partition.end_layer(StageId(s));
    const auto load = [&](int32_t from, int32_t to) {
      const auto work = chosen.weights.work.begin();
      return std::accumulate(work + from, work + to, 0.0) +
             chosen.weights.work_per_byte *
                 (bytes[static_cast<size_t>(from)] + bytes[static_cast<size_t>(to)]);
    };
    const auto heavier_half = [&](int32_t at) { return std::max(load(first, at), load(at, end)); };
    for (int32_t d = 1; d < end - first && !row.elsewhere; ++d) {
      for (const int32_t at : {row.layer - d, row.layer + d}) {
        if (at > first && at < end &&
            bytes[static_cast<size_t>(at)] < bytes[static_cast<size_t>(row.layer)]) {
          row.elsewhere = at;
          row.heavier = heavier_half(at) / std::max(heavier_half(row.layer), 1e-300) - 1;
          break;
        }
      }
    }
  }
  return rows;
}

std::vector<int32_t> StartsOf(const model::Partition& partition) {
  std::vector<int32_t> starts;
  for (int32_t s = 1; s < partition.num_stages(); ++s) {
    starts.push_back(partition.first_layer(StageId(s)));
  }
  return starts;
}

Result<schedule::Placement> ChoosePlacement(const Flags& flags, int32_t stages) {
  const int64_t chunks = flags.chunks.value_or(1);
  if (chunks < 1 || chunks > stages || stages % chunks != 0) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        "[cli.inspect] --chunks: got {}, wanted a divisor of the number of stages ({})", chunks,
        stages);
  }
  const auto ranks = static_cast<int>(stages / chunks);
  if (flags.placement.empty() || flags.placement == "loop") {
    return schedule::Placement::Loop(ranks, static_cast<int>(chunks));
  }
  if (flags.placement != "v") {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[cli.inspect] --placement: got '{}', wanted loop or v", flags.placement);
  }
  if (chunks != 2) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[cli.inspect] --placement v has 2 chunks on each rank, got --chunks {}",
                     chunks);
  }
  return schedule::Placement::V(ranks);
}

// Weights of routed experts that a step of so many rows reads, if they choose evenly.
struct ExpertReads {
  int64_t rows = 0;
  double bytes = 0;
};

// Of 1 to 256 rows; nothing for a model without routed experts.
std::vector<ExpertReads> ExpertReadsOf(const Inspected& inspected) {
  std::vector<ExpertReads> reads = {{1}, {16}, {64}, {256}};
  double all = 0;
  for (const model::Op& op : inspected.model.graph.ops) {
    const auto* moe = std::get_if<model::MoeOp>(&op.params);
    if (moe == nullptr) {
      continue;
    }
    double bytes = 0;
    for (const auto* ids : {&moe->gate, &moe->up, &moe->down}) {
      for (const TensorId id : *ids) {
        bytes += static_cast<double>(inspected.tensor_bytes[static_cast<size_t>(id.value())]);
      }
    }
    const auto experts = static_cast<double>(moe->down.size());
    for (ExpertReads& read : reads) {
      read.bytes += bytes / experts *
                    cost::ExpertsTouched(experts, static_cast<double>(moe->chosen),
                                         static_cast<double>(read.rows));
    }
    all += bytes;
  }
  return all > 0 ? reads : std::vector<ExpertReads>();
}

// ---- JSON ----

// What crosses a boundary but for the token ids, which every stage is given.
std::vector<ValueId> Crossing(const Graph& graph, const model::CutSets& cuts, int32_t boundary) {
  std::vector<ValueId> values = cuts.Crossing(boundary);
  std::erase(values, graph.tokens);
  return values;
}

int64_t SumBytes(const Graph& graph, const std::vector<ValueId>& values) {
  int64_t sum = 0;
  for (const ValueId id : values) {
    sum += model::BytesPerToken(graph.value(id), kElementBytes);
  }
  return sum;
}

Json Names(const Graph& graph, const std::vector<ValueId>& values) {
  Json names = Json::array();
  for (const ValueId id : values) {
    names.push_back(graph.value(id).name);
  }
  return names;
}

Json BoundariesJson(const Graph& graph, const model::CutSets& cuts) {
  Json boundaries = Json::array();
  for (int32_t b = 1; b < graph.num_layers(); ++b) {
    Json values = Json::array();
    for (const ValueId id : Crossing(graph, cuts, b)) {
      values.push_back({{"name", graph.value(id).name},
                        {"bytes_per_token", model::BytesPerToken(graph.value(id), kElementBytes)}});
    }
    boundaries.push_back({{"after_layer", b - 1},
                          {"values", std::move(values)},
                          {"bytes_per_token", SumBytes(graph, Crossing(graph, cuts, b))}});
  }
  return boundaries;
}

struct StageRow {
  model::StageContent content;
  int64_t weights_bytes = 0;
  int64_t kv_bytes_per_token = 0;
};

std::vector<StageRow> StageRows(const Graph& graph, const model::CutSets& cuts,
                                const model::Partition& partition, const model::TensorBytes& bytes,
                                const model::Inventory& inventory) {
  std::vector<StageRow> rows;
  for (model::StageContent& stage : model::Contents(graph, cuts, partition)) {
    StageRow row;
    row.weights_bytes = model::StageWeightsBytes(stage, bytes);
    for (int32_t l = stage.first_layer; l < stage.end_layer; ++l) {
      row.kv_bytes_per_token += inventory.layers[static_cast<size_t>(l)].kv_bytes_per_token;
    }
    if (stage.first_layer > 0) {
      std::erase(stage.receives, graph.tokens);
    }
    row.content = std::move(stage);
    rows.push_back(std::move(row));
  }
  return rows;
}

Json StagesJson(const Graph& graph, const std::vector<StageRow>& rows) {
  Json stages = Json::array();
  for (const StageRow& row : rows) {
    const bool first = row.content.first_layer == 0;
    stages.push_back(
        {{"first_layer", row.content.first_layer},
         {"last_layer", row.content.end_layer - 1},
         {"weights_bytes", row.weights_bytes},
         {"kv_bytes_per_token", row.kv_bytes_per_token},
         {"receives_bytes_per_token", first ? 0 : SumBytes(graph, row.content.receives)}});
  }
  return stages;
}

// What crosses each boundary of the cut, what less would cross nearby, and what weighing it saved.
Json CutsJson(const Graph& graph, const model::CutSets& cuts, const Chosen& chosen) {
  Json rows = Json::array();
  for (const CutRow& row : CutRows(chosen)) {
    Json json = {{"layer", row.layer},
                 {"values", Names(graph, Crossing(graph, cuts, row.layer))},
                 {"bytes_per_token", SumBytes(graph, Crossing(graph, cuts, row.layer))},
                 {"elsewhere", nullptr}};
    if (row.elsewhere) {
      json["elsewhere"] = {
          {"layer", *row.elsewhere},
          {"bytes_per_token", SumBytes(graph, Crossing(graph, cuts, *row.elsewhere))},
          {"heavier", row.heavier}};
    }
    rows.push_back(std::move(json));
  }
  return rows;
}

Json ExpertsJson(const Inspected& inspected) {
  Json rows = Json::array();
  for (const ExpertReads& read : ExpertReadsOf(inspected)) {
    rows.push_back({{"rows", read.rows}, {"bytes", std::llround(read.bytes)}});
  }
  return rows;
}

Json SavingJson(const Chosen& chosen) {
  if (!chosen.by_work) {
    return nullptr;
  }
  const model::CutFigures with = model::FiguresOf(chosen.weights, chosen.partition);
  const model::CutFigures without = model::FiguresOf(chosen.weights, *chosen.by_work);
  return {{"cut_by_work", StartsOf(*chosen.by_work)},
          {"bytes_per_token", without.crossing_bytes - with.crossing_bytes},
          {"heavier", with.heaviest / std::max(without.heaviest, 1e-300) - 1}};
}

void AddHops(const Graph& graph, const model::HopPlan& plan, Json& out) {
  Json hops = Json::array();
  for (const model::Hop& hop : plan.hops) {
    hops.push_back({{"from_stage", hop.from_stage.value()},
                    {"to_stage", hop.to_stage.value()},
                    {"from_rank", hop.from_rank.value()},
                    {"to_rank", hop.to_rank.value()},
                    {"values", Names(graph, hop.values)},
                    {"bytes_per_token", SumBytes(graph, hop.values)},
                    {"naive_bytes_per_token", SumBytes(graph, hop.naive)}});
  }
  out["hops"] = std::move(hops);
}

// What stays on a rank from one of its stages to the next: the values of each gap.
Json KeptJson(const Graph& graph, const model::HopPlan& plan, std::span<const RankId> rank_of,
              RankId rank) {
  Json gaps = Json::array();
  for (const model::Kept& kept : plan.kept) {
    if (rank_of[static_cast<size_t>(kept.from_stage.value())] == rank) {
      gaps.push_back({{"from_stage", kept.from_stage.value()},
                      {"to_stage", kept.to_stage.value()},
                      {"values", Names(graph, kept.values)},
                      {"bytes_per_token", SumBytes(graph, kept.values)}});
    }
  }
  return gaps;
}

// What each rank holds at once, and what stays on it between its stages.
void AddHeld(const Graph& graph, const model::HopPlan& plan, std::span<const RankId> rank_of,
             Json& out) {
  Json held = Json::array();
  Json ranks = Json::array();
  for (int32_t r = 0; r < static_cast<int32_t>(plan.held.size()); ++r) {
    const model::Held& most = plan.held[static_cast<size_t>(r)];
    Json stages = Json::array();
    for (size_t s = 0; s < rank_of.size(); ++s) {
      if (rank_of[s] == RankId(r)) {
        stages.push_back(s);
      }
    }
    Json at;
    if (most.stage.valid()) {
      at = {{"stage", most.stage.value()}, {"when", most.behind ? "after" : "before"}};
    }
    Json kept = KeptJson(graph, plan, rank_of, RankId(r));
    int64_t most_kept = 0;
    for (const Json& gap : kept) {
      most_kept = std::max(most_kept, gap["bytes_per_token"].get<int64_t>());
    }
    held.push_back(SumBytes(graph, most.values));
    ranks.push_back({{"rank", r},
                     {"stages", std::move(stages)},
                     {"held_bytes_per_token", held.back()},
                     {"held_values", Names(graph, most.values)},
                     {"held_at", std::move(at)},
                     {"kept_bytes_per_token", most_kept},
                     {"kept", std::move(kept)}});
  }
  out["held_bytes_per_token"] = std::move(held);
  out["ranks"] = std::move(ranks);
}

// ---- Text ----

// Columns separated by two spaces, numbers to the right. The first row is the heading.
void PrintTable(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths(rows.front().size(), 0);
  for (const auto& row : rows) {
    for (size_t c = 0; c < row.size(); ++c) {
      widths[c] = std::max(widths[c], row[c].size());
    }
  }
  for (const auto& row : rows) {
    std::string line;
    for (size_t c = 0; c < row.size(); ++c) {
      line += fmt::format("{:>{}}{}", row[c], widths[c], c + 1 < row.size() ? "  " : "\n");
    }
    fmt::print("{}", line);
  }
}

// "0-9", "10", "none", counting as --cut does: 0 is the embedding.
std::string LayersText(int32_t first, int32_t end) {
  if (first == end) {
    return "none";
  }
  return first + 1 == end ? fmt::format("{}", first) : fmt::format("{}-{}", first, end - 1);
}

// "embedding, 9 decoder layers".
std::string HoldsText(const Graph& graph, int32_t first, int32_t end) {
  if (first == end) {
    return "empty";
  }
  std::vector<std::string> parts;
  if (first == 0) {
    parts.emplace_back("embedding");
  }
  const int32_t decoder = std::min(end, graph.num_layers() - 1) - std::max(first, 1);
  if (decoder > 0) {
    parts.push_back(Counted(decoder, "decoder layer"));
  }
  if (end == graph.num_layers()) {
    parts.emplace_back("head");
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string ValueText(const Graph& graph, const std::vector<ValueId>& values) {
  if (values.size() > 3) {
    return fmt::format("{} values", values.size());
  }
  std::string names;
  for (const ValueId id : values) {
    names += names.empty() ? "" : " ";
    names += graph.value(id).name;
  }
  return names;
}

void PrintSummary(const Inspected& inspected, const model::Inventory& inventory) {
  const model::ModelConfig& config = inspected.model.config;
  fmt::print("{}\n", inspected.name);
  fmt::print("  family      {} ({} decoder layers, hidden {}, vocabulary {}, context {})\n",
             config.family, config.layers, config.hidden, FormatCount(config.vocabulary),
             FormatCount(config.context));
  fmt::print("  parameters  {}", FormatCount(inventory.parameters));
  if (inventory.parameters_active != inventory.parameters) {
    fmt::print(", of which {} are active for one token", FormatCount(inventory.parameters_active));
  }
  if (config.mtp_parameters > 0) {
    fmt::print("; {} more predict further tokens", FormatCount(config.mtp_parameters));
  }
  fmt::print("{}\n", config.tied ? ", head tied to the embedding" : "");
  fmt::print("  weights     {} {}\n", FormatBytes(static_cast<double>(inventory.weights_bytes)),
             inspected.stored);
  fmt::print("  KV          {} per token at 16 bits",
             FormatBytes(static_cast<double>(inventory.kv_bytes_per_token)));
  if (config.windowed_layers > 0) {
    fmt::print("; {} of {} layers keep {} tokens at most", config.windowed_layers, config.layers,
               FormatCount(config.window));
  }
  if (inventory.sequence_bytes > 0) {
    fmt::print("; {} per sequence", FormatBytes(static_cast<double>(inventory.sequence_bytes)));
  }
  fmt::print("\n");
  std::string reads;
  for (const ExpertReads& read : ExpertReadsOf(inspected)) {
    reads += fmt::format("{}{} by {}", reads.empty() ? "" : ", ", FormatBytes(read.bytes),
                         FormatCount(read.rows));
  }
  if (!reads.empty()) {
    fmt::print("  experts     read {} rows of a step, {}\n", reads, inspected.stored);
  }
}

// One line per run of boundaries that carry as many bytes.
void PrintBoundaries(const Graph& graph, const model::CutSets& cuts) {
  fmt::print("\nWhat crosses a boundary, per token at 16 bits\n");
  std::vector<std::vector<std::string>> rows = {{"after layers", "values", "bytes"}};
  for (int32_t b = 1; b < graph.num_layers();) {
    int32_t end = b + 1;
    while (end < graph.num_layers() &&
           Crossing(graph, cuts, end).size() == Crossing(graph, cuts, b).size() &&
           SumBytes(graph, Crossing(graph, cuts, end)) ==
               SumBytes(graph, Crossing(graph, cuts, b))) {
      ++end;
    }
    rows.push_back({LayersText(b - 1, end - 1), fmt::format("{}", Crossing(graph, cuts, b).size()),
                    FormatBytes(static_cast<double>(SumBytes(graph, Crossing(graph, cuts, b))))});
    b = end;
  }
  PrintTable(rows);
}

void PrintStages(const Graph& graph, const std::vector<StageRow>& stages) {
  fmt::print("\nStages\n");
  std::vector<std::vector<std::string>> rows = {
      {"stage", "layers", "holds", "weights", "KV per token", "receives", "per token"}};
  for (size_t s = 0; s < stages.size(); ++s) {
    const model::StageContent& content = stages[s].content;
    rows.push_back({fmt::format("{}", s), LayersText(content.first_layer, content.end_layer),
                    HoldsText(graph, content.first_layer, content.end_layer),
                    FormatBytes(static_cast<double>(stages[s].weights_bytes)),
                    FormatBytes(static_cast<double>(stages[s].kv_bytes_per_token)),
                    s == 0 ? "token ids" : ValueText(graph, content.receives),
                    FormatBytes(static_cast<double>(SumBytes(graph, content.receives)))});
  }
  PrintTable(rows);
}

// "+3.1 %".
std::string Percent(double share) {
  return fmt::format("{:+.1f} %", 100 * share);
}

// "0.8 % lighter".
std::string Heavier(double share) {
  return std::abs(share) < 5e-4
             ? "no heavier"
             : fmt::format("{:.1f} % {}", 100 * std::abs(share), share > 0 ? "heavier" : "lighter");
}

void PrintCuts(const Graph& graph, const model::CutSets& cuts, const Chosen& chosen) {
  const std::vector<CutRow> cut_rows = CutRows(chosen);
  const auto& bytes = chosen.weights.crossing_bytes;
  if (bytes.size() > 3 &&
      std::all_of(bytes.begin() + 2, bytes.end() - 1, [&](double b) { return b == bytes[1]; })) {
    return;  // a cut is a cut
  }
  fmt::print("\nCuts, per token at 16 bits\n");
  std::vector<std::vector<std::string>> rows = {
      {"before layer", "crosses", "bytes", "less crosses before", "bytes", "heavier stage there"}};
  for (const CutRow& row : cut_rows) {
    rows.push_back({fmt::format("{}", row.layer),
                    ValueText(graph, Crossing(graph, cuts, row.layer)),
                    FormatBytes(bytes[static_cast<size_t>(row.layer)]), "-", "", ""});
    if (row.elsewhere) {
      rows.back()[3] = fmt::format("{}", *row.elsewhere);
      rows.back()[4] = FormatBytes(bytes[static_cast<size_t>(*row.elsewhere)]);
      rows.back()[5] = Percent(row.heavier);
    }
  }
  PrintTable(rows);
  if (chosen.by_work) {
    const model::CutFigures with = model::FiguresOf(chosen.weights, chosen.partition);
    const model::CutFigures without = model::FiguresOf(chosen.weights, *chosen.by_work);
    fmt::print(
        "The cut weighs what crosses: by work alone it would be before {} and send {} more per "
        "token; the heaviest stage is {} for it.\n",
        fmt::join(StartsOf(*chosen.by_work), ", "),
        FormatBytes(without.crossing_bytes - with.crossing_bytes),
        Heavier(with.heaviest / std::max(without.heaviest, 1e-300) - 1));
  }
}

void PrintHops(const Graph& graph, const model::HopPlan& plan) {
  fmt::print("\nHops between ranks, forward, per token at 16 bits\n");
  std::vector<std::vector<std::string>> rows = {
      {"stages", "ranks", "sent", "bytes", "naive bytes"}};
  for (const model::Hop& hop : plan.hops) {
    rows.push_back({fmt::format("{} -> {}", hop.from_stage.value(), hop.to_stage.value()),
                    fmt::format("{} -> {}", hop.from_rank.value(), hop.to_rank.value()),
                    ValueText(graph, hop.values),
                    FormatBytes(static_cast<double>(SumBytes(graph, hop.values))),
                    FormatBytes(static_cast<double>(SumBytes(graph, hop.naive)))});
  }
  PrintTable(rows);
}

// From the JSON of the ranks.
void PrintHeld(const Json& ranks) {
  const auto size = [](const Json& bytes) { return FormatBytes(bytes.get<double>()); };
  fmt::print("\nWhat ranks hold of these, per token at 16 bits\n");
  std::vector<std::vector<std::string>> rows = {
      {"rank", "stages", "most at once", "when", "kept to the next stage"}};
  for (const Json& rank : ranks) {
    const Json& at = rank["held_at"];
    std::vector<std::string> kept;
    for (const Json& gap : rank["kept"]) {
      kept.push_back(size(gap["bytes_per_token"]));
    }
    rows.push_back({DumpJson(rank["rank"]),
                    fmt::format("{}", fmt::join(rank["stages"].get<std::vector<int>>(), " ")),
                    size(rank["held_bytes_per_token"]),
                    at.is_null() ? "-"
                                 : fmt::format("{} stage {}", at["when"].get<std::string>(),
                                               at["stage"].get<int>()),
                    kept.empty() ? "-" : fmt::format("{}", fmt::join(kept, ", "))});
  }
  PrintTable(rows);
}

// ---- The verb ----

// Everything that is shown.
struct Report {
  const Inspected& inspected;
  const model::CutSets& cuts;
  model::Inventory inventory;
  Chosen chosen;
  std::vector<StageRow> stages;
  std::optional<model::HopPlan> hops;
  std::vector<RankId> rank_of;  // by stage, with the hops
};

Json ReportJson(const Report& report) {
  const Graph& graph = report.inspected.model.graph;
  const model::ModelConfig& config = report.inspected.model.config;
  const model::Inventory& inventory = report.inventory;
  Json out = {{"model", report.inspected.name},
              {"family", config.family},
              {"model_type", config.model_type},
              {"parameters", inventory.parameters},
              {"parameters_active", inventory.parameters_active},
              {"parameters_embedding", inventory.parameters_embedding},
              // With multi-token-prediction layers, which the other figures leave out.
              {"parameters_mtp", inventory.parameters + config.mtp_parameters},
              {"layers", config.layers},
              {"hidden", config.hidden},
              {"vocabulary", config.vocabulary},
              {"context", config.context},
              {"tied", config.tied},
              {"window", config.window},
              {"windowed_layers", config.windowed_layers},
              {"weights_bytes", inventory.weights_bytes},
              {"kv_bytes_per_token", inventory.kv_bytes_per_token},
              {"state_bytes_per_sequence", inventory.sequence_bytes},
              {"expert_bytes_by_rows", ExpertsJson(report.inspected)},
              {"boundaries", BoundariesJson(graph, report.cuts)},
              {"stages", StagesJson(graph, report.stages)},
              {"cuts", CutsJson(graph, report.cuts, report.chosen)},
              {"crossing_saved", SavingJson(report.chosen)},
              {"cut_links",
               report.chosen.links_from.empty() ? Json(nullptr) : Json(report.chosen.links_from)}};
  if (report.hops) {
    AddHops(graph, *report.hops, out);
    AddHeld(graph, *report.hops, report.rank_of, out);
  }
  return out;
}

void PrintReport(const Report& report) {
  const Graph& graph = report.inspected.model.graph;
  PrintSummary(report.inspected, report.inventory);
  PrintBoundaries(graph, report.cuts);
  if (report.stages.size() > 1) {
    PrintStages(graph, report.stages);
    PrintCuts(graph, report.cuts, report.chosen);
  }
  if (report.hops) {
    PrintHops(graph, *report.hops);
    Json held;
    AddHeld(graph, *report.hops, report.rank_of, held);
    PrintHeld(held["ranks"]);
  }
}

Result<> ChooseHops(const Flags& flags, const Graph& graph, const model::CutSets& cuts,
                    const model::Partition& partition, Report& report) {
  PENSTOCK_TRY_ASSIGN(const schedule::Placement placement,
                      ChoosePlacement(flags, partition.num_stages()));
  for (int32_t s = 0; s < partition.num_stages(); ++s) {
    report.rank_of.push_back(placement.RankOf(StageId(s)));
  }
  report.hops =
      model::PlanHops(graph, cuts, partition, report.rank_of, placement.num_ranks(), kElementBytes);
  return {};
}

Result<> Inspect(const Flags& flags) {
  if (!flags.placement.empty() && !flags.chunks) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[cli.inspect] --placement: wanted --chunks with it");
  }
  PENSTOCK_TRY_ASSIGN(
      const Inspected inspected,
      OpenInspected(flags.model, flags.training ? model::GraphUse::kTrain : model::GraphUse::kRun));
  const Graph& graph = inspected.model.graph;
  const model::TensorBytes bytes = [&](TensorId id) {
    return inspected.tensor_bytes[static_cast<size_t>(id.value())];
  };
  PENSTOCK_TRY_ASSIGN(Chosen chosen, Choose(flags, inspected, bytes));
  const model::Partition partition = chosen.partition;
  const model::CutSets cuts(graph);
  Report report{
      inspected, cuts, model::TakeInventory(graph, bytes, kElementBytes), std::move(chosen), {},
      {},        {}};
  report.stages = StageRows(graph, cuts, partition, bytes, report.inventory);
  if (flags.chunks) {
    PENSTOCK_TRY(ChooseHops(flags, graph, cuts, partition, report));
  }
  if (flags.common.json) {
    PrintJson(ReportJson(report));
  } else {
    PrintReport(report);
  }
  return {};
}

}  // namespace

void AddInspect(Verb& app, int& status) {
  auto flags = std::make_shared<Flags>();
  Verb* verb = app.AddVerb("inspect",
                           "What a model weighs, and what a cut of it moves (reads headers only)");
  verb->AddOption("MODEL", flags->model,
                  "A .gguf file, a folder in Hugging Face layout, a config.json, or a name from "
                  "configs/models")
      ->TypeName("MODEL")
      ->Required();
  verb->AddOption("--stages", flags->stages, "Number of pipeline stages (1 to layers + 2)")
      ->TypeName("N");
  verb->AddOption("--cut", flags->cut,
                  "New stages start at these layers (0 is the embedding), as 10,20")
      ->TypeName("LIST");
  verb->AddOption("--balance", flags->balance,
                  "What --stages makes equal: time, memory or layers (default: time)")
      ->TypeName("WHAT");
  verb->AddOption("--chunks", flags->chunks,
                  "Stages on each rank; shows what each hop between ranks carries")
      ->TypeName("V");
  verb->AddFlag("--training", flags->training,
                "As `train` cuts it: with the heads and layers of its further losses");
  verb->AddOption("--placement", flags->placement,
                  "Where the chunks lie: loop or v (default: loop)")
      ->TypeName("WHERE");
  AddCommonFlags(*verb, flags->common);
  verb->Examples({"penstock inspect llama-3.1-8b --stages 4",
                  "penstock inspect model.gguf --cut 10,20 --json"});
  verb->Callback([verb, flags, &status] {
    const Result<> result = Inspect(*flags);
    status = result.ok() ? 0 : Fail(*verb, result.error());
  });
}

}  // namespace penstock::cli
