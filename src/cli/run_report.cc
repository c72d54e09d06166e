#include "cli/run_report.h"

#include <algorithm>

#include "base/json.h"
#include "base/units.h"
#include "trace/bubble.h"

namespace penstock::cli {
namespace {

Json RateJson(int64_t tokens, double seconds) {
  Json json;
  json["tokens"] = tokens;
  json["seconds_s"] = seconds;
  json["tokens_per_s"] = seconds > 0 ? Json(static_cast<double>(tokens) / seconds) : Json(nullptr);
  return json;
}

trace::RankAccount AccountFor(const serve::RunReport& report, size_t rank) {
  return trace::AccountOf(report.ranks[rank].timeline.totals, report.begin_s, report.end_s);
}

double BubbleRatio(const serve::RunReport& report) {
  double idle = 0;
  for (size_t rank = 0; rank < report.ranks.size(); ++rank) {
    idle += AccountFor(report, rank).idle_s;
  }
  const double all = (report.end_s - report.begin_s) * static_cast<double>(report.ranks.size());
  return all > 0 ? idle / all : 0.0;
}

std::string LayersText(const runtime::StageRange& range) {
  if (range.empty()) {
    return "none";
  }
  return range.first_layer + 1 == range.last_layer
             ? fmt::format("{}", range.first_layer)
             : fmt::format("{}-{}", range.first_layer, range.last_layer - 1);
}

// "12.3 MB", or "12.3 / 12.4 MB" when measured and planned differ in what is shown.
std::string Pair(int64_t measured, int64_t planned) {
  const std::string a = FormatBytes(static_cast<double>(measured));
  const std::string b = FormatBytes(static_cast<double>(planned));
  return a == b ? a : a + " (" + b + ")";
}

using Row = std::vector<std::string>;

// Columns aligned to the right, but for the first.
std::string Aligned(const std::vector<Row>& rows) {
  std::vector<size_t> widths(rows[0].size(), 0);
  for (const Row& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  std::string text;
  for (const Row& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      text += i == 0 ? fmt::format("  {:<{}}", row[i], widths[i])
                     : fmt::format("  {:>{}}", row[i], widths[i]);
    }
    text += "\n";
  }
  return text;
}

std::string RateText(int64_t tokens, double seconds) {
  if (seconds <= 0) {
    return Counted(tokens, "token");
  }
  return fmt::format("{} token{} in {}, {:.1f} tokens/s", FormatCount(tokens),
                     tokens == 1 ? "" : "s", FormatSeconds(seconds),
                     static_cast<double>(tokens) / seconds);
}

}  // namespace

Json MemoryJson(const MemoryFigures& figures) {
  Json json;
  json["weights_bytes"] = figures[MemoryCategory::kWeights];
  json["kv_bytes"] = figures[MemoryCategory::kKv];
  json["activations_bytes"] = figures[MemoryCategory::kActivations];
  json["workspace_bytes"] = figures[MemoryCategory::kWorkspace];
  json["messages_bytes"] = figures[MemoryCategory::kMessages];
  json["peak_bytes"] = figures.total;
  return json;
}

void AddRunJson(Json& json, const serve::Engine& engine, const serve::RunReport& report,
                const Rates& rates, const Foretold& foretold) {
  json["stages"] = Json::array();
  for (size_t rank = 0; rank < report.ranks.size(); ++rank) {
    const trace::RankAccount account = AccountFor(report, rank);
    const runtime::StageRange& range = engine.setup().stages[rank].range;
    Json stage;
    stage["rank"] = rank;
    stage["first_layer"] = range.first_layer;
    stage["last_layer"] = range.last_layer - 1;
    stage["memory"] = MemoryJson(report.ranks[rank].memory);
    stage["planned_memory"] = MemoryJson(engine.setup().memory[rank].figures);
    stage["busy_s"] = account.busy_s;
    stage["idle_s"] = account.idle_s;
    stage["bubble"] = trace::BubbleJson(account.bubble);
    stage["bytes_sent"] = report.ranks[rank].counters.bytes_sent;
    json["stages"].push_back(std::move(stage));
  }
  json["cut_links"] = engine.links_from().empty() ? Json(nullptr) : Json(engine.links_from());
  json["groups"] = engine.setup().groups;
  json["prefill"] = RateJson(rates.prefill_tokens, rates.prefill_s);
  json["decode"] = RateJson(rates.decode_tokens, rates.decode_s);
  json["ttft_s"] = rates.ttft_s;
  json["tpot_s"] = rates.tpot_s ? Json(*rates.tpot_s) : Json(nullptr);
  json["bubble_ratio"] = BubbleRatio(report);
  json["planned"] = ForetoldJson(foretold);
  json["device"] = engine.device();
  json["weights"] = engine.setup().rule.Summary();
}

Json OutputJson(const Output& output) {
  Json json;
  json["prompt_tokens"] = output.prompt_tokens;
  json["tokens"] = output.tokens;
  json["text"] = output.text;
  json["finish_reason"] = output.finish_reason;
  if (!output.logprobs.empty()) {
    json["logprobs"] = Json::array();
    for (const serve::Sampled& sampled : output.logprobs) {
      Json entry = {{"token", sampled.token}, {"logprob", sampled.logprob}, {"top", Json::array()}};
      for (const serve::TokenLogprob& top : sampled.top) {
        entry["top"].push_back({{"token", top.token}, {"logprob", top.logprob}});
      }
      json["logprobs"].push_back(std::move(entry));
    }
  }
  return json;
}

trace::Timeline TimelineOf(const serve::RunReport& report, const std::string& name) {
  std::vector<trace::RankTimeline> parts;
  for (const serve::RankReport& rank : report.ranks) {
    parts.push_back(rank.timeline);
  }
  trace::Timeline timeline = trace::MergeRanks(name, std::move(parts));
  timeline.measured = true;
  timeline.begin_s = report.begin_s;
  timeline.end_s = report.end_s;
  if (!report.ranks.empty()) {
    timeline.instruction_set = report.ranks[0].instruction_set;
    timeline.threads_per_rank = report.ranks[0].threads;
  }
  return timeline;
}

std::string RunTable(const serve::Engine& engine, const serve::RunReport& report,
                     const Rates& rates, const Foretold& foretold, bool colour) {
  const char* dim = colour ? "\x1b[2m" : "";
  const char* bold = colour ? "\x1b[1m" : "";
  const char* plain = colour ? "\x1b[0m" : "";
  std::vector<Row> memory = {
      {"stage", "layers", "weights", "KV", "activations", "workspace", "messages", "peak"}};
  std::vector<Row> time = {
      {"stage", "busy", "idle", "fill", "drain", "imbalance", "communication", "other"}};
  for (size_t rank = 0; rank < report.ranks.size(); ++rank) {
    const MemoryFigures& got = report.ranks[rank].memory;
    const MemoryFigures& planned = engine.setup().memory[rank].figures;
    Row row = {fmt::format("{}", rank), LayersText(engine.setup().stages[rank].range)};
    for (const MemoryCategory category :
         {MemoryCategory::kWeights, MemoryCategory::kKv, MemoryCategory::kActivations,
          MemoryCategory::kWorkspace, MemoryCategory::kMessages}) {
      row.push_back(Pair(got[category], planned[category]));
    }
    row.push_back(Pair(got.total, planned.total));
    memory.push_back(std::move(row));
    const trace::RankAccount account = AccountFor(report, rank);
    const trace::Bubble& b = account.bubble;
    Row times = {fmt::format("{}", rank)};
    for (const double seconds : {account.busy_s, account.idle_s, b.fill_s, b.drain_s, b.imbalance_s,
                                 b.communication_s, b.other_s}) {
      times.push_back(FormatSeconds(seconds));
    }
    time.push_back(std::move(times));
  }
  std::string text =
      fmt::format("{}Memory per stage{} {}(planned in brackets where it differs){}\n{}", bold,
                  plain, dim, plain, Aligned(memory));
  text += fmt::format("{}Time per stage{} {}(idle time by cause){}\n{}", bold, plain, dim, plain,
                      Aligned(time));
  const auto planned = [&](double rate) {
    return foretold.forecast && rate > 0 ? fmt::format("{} (planned {:.1f}){}", dim, rate, plain)
                                         : std::string();
  };
  const double prefill = foretold.forecast ? foretold.forecast->prefill_tokens_per_s() : 0;
  const double decode = foretold.forecast ? foretold.forecast->decode_tokens_per_s() : 0;
  text += fmt::format("{}Prefill{}  {}{}\n", bold, plain,
                      RateText(rates.prefill_tokens, rates.prefill_s), planned(prefill));
  text += fmt::format("{}Decode{}   {}{}\n", bold, plain,
                      RateText(rates.decode_tokens, rates.decode_s), planned(decode));
  text += fmt::format("{}idle {:.1f} % of {} x {}; {} in flight; weights {}; {}{}\n", dim,
                      100 * BubbleRatio(report), Counted(report.ranks.size(), "stage"),
                      FormatSeconds(report.end_s - report.begin_s),
                      Counted(engine.setup().groups, "group"), engine.setup().rule.Summary(),
                      engine.device(), plain);
  return text;
}

}  // namespace penstock::cli
