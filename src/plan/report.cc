#include "plan/report.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/json.h"
#include "base/units.h"

namespace penstock::plan {
namespace {

Json Number(double value) {
  if (!std::isfinite(value)) {
    return nullptr;
  }
  return value;
}

Json Bytes(double value) {
  return static_cast<int64_t>(std::llround(value));
}

Json MemoryJson(const MemoryAccount& m) {
  Json j = {{"weights_bytes", Bytes(m.weights)},         {"kv_bytes", Bytes(m.kv)},
            {"activations_bytes", Bytes(m.activations)}, {"gradients_bytes", Bytes(m.gradients)},
            {"optimizer_bytes", Bytes(m.optimizer)},     {"workspace_bytes", Bytes(m.workspace)},
            {"messages_bytes", Bytes(m.messages)},       {"peak_bytes", Bytes(m.peak())},
            {"capacity_bytes", Bytes(m.capacity)},       {"reserve_bytes", Bytes(m.reserve)}};
  if (m.decoder_activations > 0) {
    j["decoder_activations_bytes"] = Bytes(m.decoder_activations);
  }
  return j;
}

// At most `most` of a Pareto set: evenly over it as it is sorted, and the best in each respect.
std::vector<const Plan*> Spread(const std::vector<Plan>& plans, size_t most) {
  std::set<size_t> taken;
  const auto best = [&](const auto& of) {
    const auto it = std::min_element(plans.begin(), plans.end(),
                                     [&](const Plan& a, const Plan& b) { return of(a) < of(b); });
    taken.insert(static_cast<size_t>(it - plans.begin()));
  };
  if (plans.size() > most) {
    best([](const Plan& p) { return -p.tokens_per_s; });
    best([](const Plan& p) { return p.cost_per_million_tokens; });
    best([](const Plan& p) { return p.memory.peak(); });
    best([](const Plan& p) { return p.tpot_s; });
  }
  const size_t even = std::min(plans.size(), most - taken.size());
  for (size_t i = 0; i < even; ++i) {
    taken.insert(even < 2 ? i : i * (plans.size() - 1) / (even - 1));
  }
  std::vector<const Plan*> out;
  for (const size_t i : taken) {
    out.push_back(&plans[i]);
  }
  return out;
}

std::string Wrap(const std::string& text, size_t width, const std::string& indent) {
  std::string out;
  size_t column = 0;
  size_t at = 0;
  while (at < text.size()) {
    const size_t space = text.find(' ', at);
    const std::string word = text.substr(at, space == std::string::npos ? space : space - at);
    if (column > 0 && column + 1 + word.size() > width) {
      out += "\n" + indent;
      column = indent.size();
    } else if (column > 0) {
      out += " ";
      ++column;
    }
    out += word;
    column += word.size();
    at = space == std::string::npos ? text.size() : space + 1;
  }
  return out + "\n";
}

std::string PlanRow(const Plan& p, Mode mode) {
  const Layout& l = p.layout;
  const std::string latency =
      mode == Mode::kTraining
          ? fmt::format("{:>10}", FormatSeconds(p.step_s))
          : fmt::format("{:>10} {:>10}", FormatSeconds(p.ttft_s), FormatSeconds(p.tpot_s));
  return fmt::format(
      "{:>4} {:>4} {:>4} {:>4} {:>3} {:>4} {:>7} {:>12.1f} {} {:>11} {:>6.1f} {:>7.1f} "
      "{:>9}  {}\n",
      l.tp, l.pp, l.dp, l.ep, l.cp, l.chunks, l.devices(), p.tokens_per_s, latency,
      FormatBytes(p.memory.peak()), 100 * p.bubble_ratio, 100 * p.mfu,
      p.cost_per_million_tokens > 0 ? fmt::format("{:.3g}", p.cost_per_million_tokens)
                                    : std::string("-"),
      p.bound_by);
}

std::string PlanTable(const std::vector<Plan>& plans, int top, Mode mode) {
  std::string out = fmt::format(
      "{:>4} {:>4} {:>4} {:>4} {:>3} {:>4} {:>7} {:>12} {} {:>11} {:>6} {:>7} {:>9}  {}\n", "tp",
      "pp", "dp", "ep", "cp", "v", "devices", "tokens/s",
      mode == Mode::kTraining ? fmt::format("{:>10}", "step")
                              : fmt::format("{:>10} {:>10}", "ttft", "tpot"),
      "memory", "idle %", "mfu %", "USD/1M", "bound by");
  for (size_t i = 0; i < plans.size() && static_cast<int>(i) < top; ++i) {
    out += PlanRow(plans[i], mode);
  }
  return out;
}

void AddMemoryText(const Plan& best, std::string& out) {
  out += "\nMemory of the fullest device\n";
  const auto line = [&](std::string_view name, double bytes) {
    if (bytes > 0) {
      out += fmt::format("  {:<12} {:>12}\n", name, FormatBytes(bytes));
    }
  };
  line("weights", best.memory.weights);
  line("KV", best.memory.kv);
  line("gradients", best.memory.gradients);
  line("optimizer", best.memory.optimizer);
  line("activations", best.memory.activations);
  line("workspace", best.memory.workspace);
  out +=
      fmt::format("  {:<12} {:>12} of {} ({} kept free)\n", "sum", FormatBytes(best.memory.peak()),
                  FormatBytes(best.memory.capacity), FormatBytes(best.memory.reserve));
}

}  // namespace

Json PlanJson(const Plan& p) {
  const Layout& l = p.layout;
  Json j;
  j["dp"] = l.dp;
  j["tp"] = l.tp;
  j["pp"] = l.pp;
  j["ep"] = l.ep;
  j["cp"] = l.cp;
  j["chunks"] = l.chunks;
  j["layers_per_stage"] = DecoderLayers(l.cut);
  j["micro_batch"] = l.micro_batch;
  j["micro_batches"] = l.micro_batches;
  j["schedule"] = l.schedule;
  j["recompute"] = RecomputeName(l.recompute);
  j["sequence_parallel"] = l.sequence_parallel;
  j["zero"] = l.zero;
  j["precision"] = hw::PrecisionName(l.precision);
  j["kv_precision"] = hw::PrecisionName(l.kv_precision);
  if (l.prefill_chunk_tokens > 0) {
    j["prefill_chunk_tokens"] = l.prefill_chunk_tokens;
  }
  j["devices"] = l.devices();
  j["memory"] = MemoryJson(p.memory);
  Json ranks = Json::array();
  for (const MemoryAccount& m : p.per_rank) {
    ranks.push_back(MemoryJson(m));
  }
  j["memory_per_rank"] = ranks;
  j["step_s"] = Number(p.step_s);
  j["compute_s"] = Number(p.compute_s);
  j["memory_s"] = Number(p.memory_s);
  j["operations_s"] = Number(p.operations_s);
  j["start_s"] = Number(p.start_s);
  j["exposed_s"] = Number(p.exposed_s);
  j["communication_s"] = Number(p.communication_s);
  j["gradients_exposed_s"] = Number(p.gradient_s);
  j["optimizer_s"] = Number(p.optimizer_s);
  j["bubble_s"] = Number(p.bubble_s);
  j["bubble_ratio"] = Number(p.bubble_ratio);
  j["mfu"] = Number(p.mfu);
  j["ttft_s"] = Number(p.ttft_s);
  j["tpot_s"] = Number(p.tpot_s);
  j["prefill_tokens_per_s"] = Number(p.prefill_tokens_per_s);
  j["decode_tokens_per_s"] = Number(p.decode_tokens_per_s);
  j["shares_cores"] = p.shares_cores;
  j["tokens_per_s"] = Number(p.tokens_per_s);
  j["tokens_per_s_per_device"] = Number(p.tokens_per_s_per_device);
  j["cost_per_million_tokens"] = Number(p.cost_per_million_tokens);
  j["energy_j_per_token"] = Number(p.energy_j_per_token);
  j["concurrent_sequences"] = Number(p.concurrent_sequences);
  j["bound_by"] = p.bound_by;
  j["stage_s"] = p.stage_s;
  j["hop_s"] = Number(p.hop_s);
  j["simulated"] = p.simulated;
  j["arithmetic"] = p.arithmetic;
  return j;
}

std::optional<ErrorBand> BandOf(const Context& context) {
  if (context.system->engine) {
    if (context.workload->mode == Mode::kTraining || context.model->has_experts) {
      return std::nullopt;
    }
    return ErrorBand{
        -0.14, 0.46,
        "58 rates of two dense models beside bench; with a core per stage -14 to +21 %"};
  }
  if (context.calibration().fitted_on.empty()) {
    return std::nullopt;
  }
  const bool experts = context.model->has_experts;
  if (context.workload->mode == Mode::kInference) {
    if (experts) {
      return std::nullopt;
    }
    return ErrorBand{-0.13, 0.13, "45 latencies of FasterTransformer, Megatron-530B on A100"};
  }
  if (experts) {
    return ErrorBand{-0.74, 0.23,
                     "14 step times of Grok-1 on H100 and GB200, -42 to +23 %, and one of "
                     "DeepSeek-V3 on GB200 in early software, -74 %"};
  }
  return ErrorBand{-0.16, 0.11, "67 step times of dense models on A100, H100, H200 and GB200"};
}

std::string BandText(const Context& context, const ErrorBand& band) {
  return fmt::format(
      "Predicted {} of this kind were {:+.0f} to {:+.0f} % off; {} is too good ({}).",
      context.system->engine ? "rates" : "times", 100 * band.low, 100 * band.high,
      context.system->engine ? "plus" : "minus", band.basis);
}

Json AnswerJson(const Context& context, const Answer& answer, int top) {
  const Verdict& v = answer.verdict;
  Json verdict;
  verdict["pipeline"] = v.pipeline;
  verdict["gain"] = v.gain ? Json(*v.gain) : Json(nullptr);
  verdict["reason"] = v.reason;
  verdict["bound_by"] = v.bound_by;
  verdict["best"] = v.best ? PlanJson(*v.best) : Json(nullptr);
  verdict["best_without_pipelining"] = v.without ? PlanJson(*v.without) : Json(nullptr);
  verdict["explanation"] = v.lines;
  if (context.workload->mode == Mode::kInference && v.best) {
    verdict["rho"] = Number(v.rho);
    verdict["rule_gain"] = v.rho < 1 ? Json(v.rule_gain) : Json(nullptr);
    verdict["sequences_per_weight_read"] = v.sequences_per_weight_read;
    Json shares = Json::array();
    for (const ShareByStages& s : v.shares) {
      shares.push_back(Json{{"stages", s.stages},
                            {"weights_bytes", Bytes(s.weights_bytes)},
                            {"kv_same_group_bytes", Bytes(s.kv_same_group_bytes)},
                            {"kv_same_total_bytes", Bytes(s.kv_same_total_bytes)}});
    }
    verdict["shares"] = shares;
    const StagesAgainstTensor& a = v.against;
    verdict["pipeline_bytes_per_lap"] = Bytes(a.pipeline_bytes);
    verdict["tensor_bytes_per_lap"] = Bytes(a.tensor_bytes);
    verdict["tensor_collectives_s"] = a.collectives_s;
    verdict["stages_against_tensor"] = Json{{"stages", a.stages},
                                            {"devices", a.devices},
                                            {"pipeline_bytes_per_lap", Bytes(a.pipeline_bytes)},
                                            {"tensor_bytes_per_lap", Bytes(a.tensor_bytes)},
                                            {"pipeline_memory_s", a.pipeline_memory_s},
                                            {"tensor_memory_s", a.tensor_memory_s},
                                            {"pipeline_hops_s", a.hops_s},
                                            {"tensor_collectives_s", a.collectives_s},
                                            {"tensor_collectives", a.collectives}};
  }
  if (v.best) {
    const auto maybe = [](const std::optional<double>& value) {
      return value ? Json(*value) : Json(nullptr);
    };
    const BreakEven& e = v.break_even;
    verdict["break_even"] = Json{{"batch", maybe(e.batch)},
                                 {"weights_s", Number(e.weights_s)},
                                 {"arithmetic_row_s", Number(e.arithmetic_row_s)},
                                 {"activations_row_s", Number(e.activations_row_s)},
                                 {"sequences", maybe(e.sequences)},
                                 {"requests_per_s", maybe(e.requests_per_s)},
                                 {"full_groups", e.full_groups},
                                 {"full_sequences", e.full_sequences}};
  }
  if (v.crossing) {
    Json links = Json::array();
    for (const CrossingOverLink& link : v.crossing->links) {
      links.push_back(Json{{"link", link.link},
                           {"bytes_per_s", link.bandwidth},
                           {"step_s", Number(link.step_s)},
                           {"plain_step_s", Number(link.plain_s)},
                           {"slowdown", Number(link.slowdown())}});
    }
    verdict["crossing"] =
        Json{{"what", v.crossing->what},
             {"stages", v.crossing->stages},
             {"largest_hop_bytes_per_token", Bytes(v.crossing->largest_hop_bytes)},
             {"extra_hop_bytes_per_token", Bytes(v.crossing->extra_hop_bytes)},
             {"held_bytes_per_token", Bytes(v.crossing->held_bytes)},
             {"rank_bytes", Bytes(v.crossing->rank_bytes)},
             {"saved_by_cut_bytes_per_token", v.crossing->plain_cut_bytes},
             {"links", links}};
  }
  Json sensitivity = Json::array();
  for (const Sensitivity& s : v.sensitivity) {
    sensitivity.push_back(Json{{"constant", s.constant},
                               {"unit", s.unit},
                               {"value", s.value},
                               {"flips_at", s.flips_at},
                               {"then", s.then}});
  }
  verdict["sensitivity"] = sensitivity;
  Json j;
  j["verdict"] = verdict;
  j["plans"] = Json::array();
  for (size_t i = 0; i < answer.search.plans.size() && static_cast<int>(i) < top; ++i) {
    j["plans"].push_back(PlanJson(answer.search.plans[i]));
  }
  j["pareto"] = Json::array();
  for (const Plan* plan : Spread(answer.search.pareto, 64)) {
    j["pareto"].push_back(PlanJson(*plan));
  }
  j["rejected"] = Json::array();
  for (const Rejected& r : answer.search.rejected) {
    Json one = PlanJson(r.plan);
    one["why"] = r.why;
    j["rejected"].push_back(one);
  }
  j["evaluated"] = answer.search.evaluated;
  j["pruned"] = answer.search.pruned;
  j["seconds_s"] = answer.search.seconds_s;
  j["simulated"] = answer.search.simulated;
  j["simulate_s"] = answer.search.simulate_s;
  if (const auto band = BandOf(context); band) {
    j["error_band"] = Json{{"low", band->low}, {"high", band->high}, {"basis", band->basis}};
  } else {
    j["error_band"] = nullptr;
  }
  j["model"] = context.model->name;
  j["parameters"] = Bytes(context.model->parameters);
  j["parameters_active"] = Bytes(context.model->parameters_active);
  j["parameters_mtp"] = Bytes(context.model->parameters + context.model->parameters_mtp);
  j["system"] = context.system->name;
  j["workload"] = context.workload->name;
  j["assumptions"] = Assumptions(context);
  return j;
}

std::vector<std::string> Assumptions(const Context& context) {
  const hw::System& s = *context.system;
  const hw::Calibration& c = context.calibration();
  std::vector<std::string> out;
  if (context.workload->mode == Mode::kInference) {
    const InferenceWorkload& w = context.workload->inference;
    out.push_back(fmt::format(
        "workload: {:.0f} prompt and {:.0f} output tokens, {}, targets: first token {}, token {}",
        w.prompt_tokens.mean, w.output_tokens.mean,
        w.arrivals() ? fmt::format("{:.3g} requests/s", w.requests_per_s)
                     : Counted(std::llround(w.sequences), "sequence") + " together",
        w.max_ttft_s > 0 ? FormatSeconds(w.max_ttft_s) : std::string("none"),
        w.max_tpot_s > 0 ? FormatSeconds(w.max_tpot_s) : std::string("none")));
  } else {
    const TrainingWorkload& w = context.workload->training;
    out.push_back(fmt::format(
        "workload: {} of {} per step, {} with {} gradients", Counted(w.global_batch, "sequence"),
        Counted(w.sequence_tokens, "token"), w.optimizer, w.fp32_gradients ? "32-bit" : "16-bit"));
  }
  out.push_back(fmt::format("{}: {} ({})", s.name, s.device.name, s.device.source));
  out.push_back(
      fmt::format("kept free per device: {}", FormatBytes(s.device.memory_reserve_bytes)));
  for (const hw::LinkLevel& link : s.links) {
    out.push_back(
        fmt::format("{}{}: {}/s, {} ({})", link.name,
                    link.span > 0 ? fmt::format(" ({})", Counted(link.span, "device")) : "",
                    FormatBytes(link.bandwidth), FormatSeconds(link.latency_s), link.source));
  }
  out.push_back(
      fmt::format("reached rates ({}): matrix products {:.0f} % of the peak, memory {:.0f} %",
                  c.source.empty() ? "defaults" : c.source, 100 * c.matrix_efficiency.At(1000),
                  100 * c.memory_efficiency));
  if (context.workload->mode == Mode::kTraining && !s.engine) {
    out.push_back(
        c.fused_attention()
            ? "attention is fused: no scores are kept, recompute=none and selective are the same"
            : "attention is not fused: without recomputation all scores are kept");
  }
  if (s.price_usd_per_device_hour > 0) {
    out.push_back(fmt::format("price: {:.3g} USD per device-hour ({})", s.price_usd_per_device_hour,
                              s.price_source));
  }
  out.push_back(
      "embedding, head, router and norms stay at 16 bits when weights are narrower; experts are "
      "chosen evenly");
  return out;
}

std::string AnswerText(const Context& context, const Answer& answer, int top, int width) {
  const Verdict& v = answer.verdict;
  const auto columns = static_cast<size_t>(std::max(40, width));
  const Mode mode = context.workload->mode;
  std::string out = fmt::format("{} on {} ({})\n\n", context.model->name, context.system->name,
                                mode == Mode::kTraining ? "training" : "inference");
  out += Wrap(v.reason, columns, "");
  out += fmt::format("Bound by: {}.\n", v.bound_by);
  for (const std::string& line : v.lines) {
    out += Wrap(line, columns, "");
  }
  if (!answer.search.plans.empty()) {
    out += "\n" + PlanTable(answer.search.plans, top, mode);
    const Plan& best = answer.search.plans.front();
    AddMemoryText(best, out);
    out += "\nArithmetic of the first\n";
    for (const std::string& line : best.arithmetic) {
      out += "  " + Wrap(line, columns, "    ");
    }
  }
  if (!v.shares.empty()) {
    out += fmt::format("\n{:>7} {:>14} {:>22} {:>22}\n", "stages", "weights", "KV, same per group",
                       "KV, same in all");
    for (const ShareByStages& s : v.shares) {
      out += fmt::format("{:>7} {:>14} {:>22} {:>22}\n", s.stages, FormatBytes(s.weights_bytes),
                         FormatBytes(s.kv_same_group_bytes), FormatBytes(s.kv_same_total_bytes));
    }
  }
  if (!v.sensitivity.empty()) {
    out += "\nWhat would turn the verdict\n";
    for (const Sensitivity& s : v.sensitivity) {
      out += "  " + Wrap(SensitivityText(s), columns, "    ");
    }
  }
  if (!answer.search.rejected.empty()) {
    out += "\nRejected, nearest first\n";
    std::set<std::pair<int64_t, int64_t>> shown;  // replicas change little
    for (const Rejected& r : answer.search.rejected) {
      if (shown.size() >= 6 || !shown.emplace(r.plan.layout.tp, r.plan.layout.pp).second) {
        continue;
      }
      out += "  " + Wrap(fmt::format("{}: {}", LayoutText(r.plan.layout), r.why), columns, "    ");
    }
  }
  if (const auto band = BandOf(context); band) {
    out += "\n" + Wrap(BandText(context, *band), columns, "");
  } else {
    out += "\nNo measurement of this kind was compared on this system: take times as estimates.\n";
  }
  out += "\nAssumed\n";
  for (const std::string& line : Assumptions(context)) {
    out += "  " + Wrap(line, columns, "    ");
  }
  out += fmt::format("\n{} layouts in {}, {} pruned by a bound, {} simulated in {}.\n",
                     answer.search.evaluated, FormatSeconds(answer.search.seconds_s),
                     answer.search.pruned, answer.search.simulated,
                     FormatSeconds(answer.search.simulate_s));
  return out;
}

}  // namespace penstock::plan
