#include "plan/verdict.h"

#include <algorithm>
#include <cmath>

#include "base/units.h"
#include "plan/inference.h"
#include "plan/memory.h"
#include "plan/training.h"
#include "plan/would_fit.h"

namespace penstock::plan {
namespace {

// Weights and KV per device of the best plan's group, over the number of stages.
void FindShares(const Context& context, const Plan& plan, Verdict& verdict) {
  const InferenceWorkload& w = context.workload->inference;
  Layout layout = plan.layout;
  layout.pp = 1;
  layout.cut = {context.model->num_layers()};
  const double live =
      std::max(1.0, plan.concurrent_sequences / static_cast<double>(plan.layout.dp));
  const double tokens = std::ceil(w.prompt_tokens.mean + w.output_tokens.mean);
  const MemoryAccount whole = InferenceMemory(context, layout, live, tokens, 0)[0];
  const double group = live / static_cast<double>(std::max<int64_t>(1, plan.layout.micro_batches));
  for (int64_t p = 1; p <= 16 && p <= context.model->decoder_layers(); p *= 2) {
    const auto stages = static_cast<double>(p);
    verdict.shares.push_back(
        {p, whole.weights / stages, whole.kv / live * group, whole.kv / stages});
  }
  const double usable = whole.capacity - whole.reserve;
  verdict.rho = whole.weights / usable;
  verdict.rule_stages = std::max<int64_t>(2, plan.layout.pp);
  verdict.rule_gain =
      verdict.rho < 1 ? ReplicaRule(verdict.rho, static_cast<double>(verdict.rule_stages)) : 0;
  verdict.sequences_per_weight_read = static_cast<double>(plan.layout.micro_batch);
}

// Bytes of weights that one device of the layout reads for `rows` rows: of the embedding only rows,
// of the experts those that are chosen.
double WeightsRead(const Context& context, const Layout& layout, double rows) {
  double bytes = 0;
  std::vector<double> classes;
  for (cost::LayerProfile layer : context.model->classes) {
    layer.embedding_parameters = 0;
    layer.embedding_stored_bytes = 0;
    if (layer.experts.experts > 0) {
      const double groups = static_cast<double>(layout.ep) / static_cast<double>(layout.tp);
      layer.experts.parameters *= cost::ExpertsTouched(layer.experts.experts, layer.experts.chosen,
                                                       rows * std::max(1.0, groups)) /
                                  layer.experts.experts;
    }
    classes.push_back(cost::WeightBytesPerDevice(layer, layout.sharding(), layout.formats()));
  }
  for (const int32_t c : context.model->class_of) {
    bytes += classes[static_cast<size_t>(c)];
  }
  return bytes;
}

// `plan` is the best with stages, or the best of all (then two stages are compared).
void CompareWithTensor(const Context& context, const Plan& plan, Verdict& verdict) {
  const InferenceWorkload& w = context.workload->inference;
  const hw::Calibration& c = context.calibration();
  Layout layout = plan.layout;
  StagesAgainstTensor& out = verdict.against;
  out.stages = std::max<int64_t>(2, layout.pp);
  out.devices = out.stages * layout.tp;
  layout.pp = 1;
  layout.cut = {context.model->num_layers()};
  const double live =
      std::max(1.0, plan.concurrent_sequences / static_cast<double>(plan.layout.dp));
  const double tokens = w.prompt_tokens.mean + w.output_tokens.mean / 2;
  const MemoryAccount whole = InferenceMemory(context, layout, live, tokens, 0)[0];
  const auto tp = static_cast<double>(layout.tp);
  const double groups = plan.layout.pp > 1 ? static_cast<double>(plan.layout.micro_batches)
                                           : static_cast<double>(out.stages);
  const double rows = std::max(1.0, live / groups);
  out.pipeline_bytes = groups * WeightsRead(context, layout, rows) * tp + whole.kv * tp;
  out.tensor_bytes = WeightsRead(context, layout, live) * tp + whole.kv * tp;
  const double rate = context.system->device.memory_bandwidth * c.memory_efficiency *
                      static_cast<double>(out.devices);
  out.pipeline_memory_s = out.pipeline_bytes / rate;
  out.tensor_memory_s = out.tensor_bytes / rate;
  const double width = context.model->hidden;
  out.hops_s =
      static_cast<double>(out.stages - 1) *
          hw::MessageSeconds(*context.system, plan.layout.hop_distance(), rows * width * 2 / tp) +
      hw::MessageSeconds(*context.system, plan.layout.hop_distance() * (out.stages - 1), 4 * rows);
  for (int32_t l = 0; l < context.model->num_layers(); ++l) {
    const cost::LayerProfile& layer = context.model->layer(l);
    const double bytes = layer.width * 2;
    out.collectives += layer.collectives;
    out.collectives_s += layer.collectives *
                         (hw::AllReduceSeconds(*context.system, {out.devices, 1}, live * bytes) -
                          hw::AllReduceSeconds(*context.system, {plan.layout.tp, 1}, rows * bytes));
  }
  out.collectives_s = std::max(0.0, out.collectives_s);
}

// Arithmetic and bytes of the products of the whole model for `rows` rows: (compute, memory), all
// bytes or only those of the weights.
std::pair<double, double> ProductTimes(const Context& context, const Layout& layout, double rows,
                                       bool only_weights) {
  cost::StepShape shape;
  shape.rows = rows;
  shape.head_rows = rows;
  shape.decode = true;  // no sequences: no state is read
  cost::Formats formats = layout.formats();
  formats.activation_bytes = only_weights ? 0 : formats.activation_bytes;
  cost::LayerTime time;
  for (const int32_t c : context.model->class_of) {
    cost::LayerProfile layer = context.model->classes[static_cast<size_t>(c)];
    layer.attention.clear();
    layer.states.clear();
    layer.whole_row_elements = 0;
    layer.split_row_elements = 0;
    time += cost::ForwardTime(layer, shape, layout.sharding(), formats, context.machine());
  }
  return {time.compute_s, time.memory_s};
}

std::optional<double> BreakEvenRows(const Context& context, const Layout& layout) {
  const auto computes = [&](double rows) {
    const auto [compute, memory] = ProductTimes(context, layout, rows, false);
    return compute >= memory;
  };
  constexpr double kMost = 1 << 20;
  if (!computes(kMost)) {
    return std::nullopt;
  }
  double low = 1;
  double high = kMost;
  if (computes(low)) {
    return low;
  }
  while (high - low > 1) {
    const double middle = std::floor((low + high) / 2);
    (computes(middle) ? high : low) = middle;
  }
  return high;
}

void FindBreakEvenBatch(const Context& context, const Layout& layout, BreakEven& out) {
  out.batch = BreakEvenRows(context, layout);
  if (out.batch) {
    const auto [compute, memory] = ProductTimes(context, layout, *out.batch, false);
    out.weights_s = ProductTimes(context, layout, *out.batch, true).second;
    out.arithmetic_row_s = compute / *out.batch;
    out.activations_row_s = (memory - out.weights_s) / *out.batch;
  }
}

// The flip of the knob that says how much work there is, and what it means for arrivals.
void FindBreakEven(const Context& context, const Plan& best, const Plan* staged, Verdict& verdict) {
  BreakEven& out = verdict.break_even;
  FindBreakEvenBatch(context, best.layout, out);
  for (const Sensitivity& s : verdict.sensitivity) {
    if (s.constant == "sequences" || s.constant == "global batch") {
      out.sequences = s.flips_at;
    } else if (s.constant == "arrivals") {
      out.requests_per_s = s.flips_at;
    }
  }
  const InferenceWorkload& w = context.workload->inference;
  if (context.workload->mode == Mode::kInference) {
    // Little's law, between the two.
    const double stay = best.ttft_s + w.output_tokens.mean * best.tpot_s;
    if (out.sequences && stay > 0) {
      out.requests_per_s = *out.sequences / stay;
    } else if (out.requests_per_s) {
      out.sequences = *out.requests_per_s * stay;
    }
  }
  if (staged != nullptr && !staged->stage_s.empty()) {
    double sum = staged->hop_s;
    double slowest = 0;
    for (const double s : staged->stage_s) {
      sum += s;
      slowest = std::max(slowest, s);
    }
    out.full_groups = slowest > 0 ? std::ceil(sum / slowest - 1e-9) : 0;
    out.full_sequences = out.full_groups * static_cast<double>(staged->layout.micro_batch) *
                         static_cast<double>(staged->layout.dp);
  }
}

std::string BatchText(const BreakEven& e) {
  std::string text = fmt::format(
      "Break-even batch: with {:.0f} or more rows per read of the weights the products are bound "
      "by "
      "arithmetic, below by reading",
      *e.batch);
  if (*e.batch <= 1) {
    return text + ".";
  }
  return text + (e.activations_row_s > 0
                     ? fmt::format(": weights {} / (arithmetic {} - activations {} per row).",
                                   FormatSeconds(e.weights_s), FormatSeconds(e.arithmetic_row_s),
                                   FormatSeconds(e.activations_row_s))
                     : fmt::format(": weights {} / arithmetic {} per row.",
                                   FormatSeconds(e.weights_s), FormatSeconds(e.arithmetic_row_s)));
}

void ExplainBreakEven(const Context& context, const Plan* staged, Verdict& v) {
  const BreakEven& e = v.break_even;
  const bool serving = context.workload->mode == Mode::kInference;
  if (serving) {
    v.lines.push_back(e.batch ? BatchText(e)
                              : std::string("Break-even batch: none; reading the weights takes "
                                            "longer than the arithmetic at any number of rows."));
  }
  std::string traffic = serving ? "Break-even traffic: " : "Break-even batch: ";
  if (e.sequences && serving) {
    traffic += fmt::format("with {:.0f} sequences alive ({:.3g} requests/s) the answer turns",
                           *e.sequences, e.requests_per_s.value_or(0));
  } else if (e.sequences) {
    traffic += fmt::format("with {:.0f} sequences per step the answer turns", *e.sequences);
  } else {
    traffic += "no turn was found from a sixteenth to sixteen times this work";
  }
  if (e.full_groups > 0 && serving) {
    traffic += fmt::format("; {} stages are all busy from {:.0f} groups ({:.0f} sequences) on",
                           staged->layout.pp, e.full_groups, e.full_sequences);
  }
  v.lines.push_back(traffic + ".");
}

std::string Rate(double tokens_per_s) {
  return tokens_per_s >= 100 ? fmt::format("{:.0f}", tokens_per_s)
                             : fmt::format("{:.3g}", tokens_per_s);
}

void ExplainServing(const Context& context, const SearchResult& result, Verdict& v) {
  const Plan& best = *v.best;
  auto& lines = v.lines;
  lines.push_back(fmt::format(
      "Weights are {} of one device's usable memory without stages; KV per device stays {} "
      "whatever "
      "the number of stages when each group keeps its sequences, since all groups are in flight.",
      v.rho < 10 ? fmt::format("{:.0f} %", 100 * v.rho) : fmt::format("{:.1f} times", v.rho),
      v.shares.empty() ? "" : FormatBytes(v.shares[0].kv_same_group_bytes)));
  lines.push_back(v.sequences_per_weight_read == 1
                      ? "Each sequence has a read of the weights to itself."
                      : fmt::format("{:.0f} sequences share one read of the weights.",
                                    v.sequences_per_weight_read));
  if (v.rho < 1) {
    lines.push_back(
        fmt::format("Against {} replicas, {} stages can gain at most "
                    "(1-rho/p)/((1-rho)(1+rho-rho/p)) = {:.3g}x "
                    "in decode, with rho = {:.3f}.",
                    v.rule_stages, v.rule_stages, v.rule_gain, v.rho));
  } else {
    lines.emplace_back(
        "The weights of one group exceed its memory: stages, more tensor parallelism or narrower "
        "weights are needed before anything else counts.");
  }
  const StagesAgainstTensor& a = v.against;
  lines.push_back(fmt::format(
      "{} devices as {} stages read {} per lap ({}) and hop for {}; as tensor parallelism they "
      "would read {} ({}) and spend {} more on {:.0f} collectives.",
      a.devices, a.stages, FormatBytes(a.pipeline_bytes), FormatSeconds(a.pipeline_memory_s),
      FormatSeconds(a.hops_s), FormatBytes(a.tensor_bytes), FormatSeconds(a.tensor_memory_s),
      FormatSeconds(a.collectives_s), a.collectives));
  lines.emplace_back("Stages never make a token come sooner: a lap visits all of them.");
  const InferenceWorkload& w = context.workload->inference;
  if (w.max_tpot_s > 0 || w.max_ttft_s > 0) {
    const Rejected* faster = nullptr;
    for (const Rejected& r : result.rejected) {
      if (r.why.find("over the target") != std::string::npos &&
          r.plan.tokens_per_s >
              (faster != nullptr ? faster->plan.tokens_per_s : 1.02 * best.tokens_per_s)) {
        faster = &r;
      }
    }
    if (faster != nullptr) {
      v.bound_by = "latency target";
      lines.push_back(fmt::format("{} would give {} tokens/s but {}.",
                                  LayoutText(faster->plan.layout), Rate(faster->plan.tokens_per_s),
                                  faster->why));
    }
  }
}

void ExplainStep(const Context& context, Verdict& v) {
  const Plan& best = *v.best;
  v.lines.push_back(fmt::format(
      "Stages divide weights, gradients and optimizer by p; activations of the first stage do not "
      "fall, since p micro-batches are in flight there. Here: {} + {} + {} and {} of activations "
      "on "
      "the fullest device.",
      FormatBytes(best.memory.weights), FormatBytes(best.memory.gradients),
      FormatBytes(best.memory.optimizer), FormatBytes(best.memory.activations)));
  v.lines.push_back(fmt::format("{} leaves {:.1f} % of the step idle with {} micro-batches.",
                                best.layout.schedule, 100 * best.bubble_ratio,
                                best.layout.micro_batches));
  if (context.model->has_experts) {
    v.lines.emplace_back(
        "Take these times as the least: experts are counted as evenly chosen and as efficient as "
        "dense layers, and measured software took up to 1.7 times as long (Grok-1), early software "
        "3.4 times (DeepSeek-V3).");
  }
}

std::string NearestText(const Rejected& r) {
  const int64_t devices = r.plan.layout.devices();
  return LayoutText(r.plan.layout) + (devices > 1 ? fmt::format(" ({} devices)", devices) : "") +
         ": " + r.why;
}

std::string Money(const Plan& plan) {
  return plan.cost_per_million_tokens > 0
             ? fmt::format(", {:.3g} USD per million tokens", plan.cost_per_million_tokens)
             : "";
}

}  // namespace

namespace {

// What --fix leaves has stages in any case.
bool AsksForStages(const Fixed& fixed) {
  const std::string schedule = fixed.schedule.value_or("");
  const bool chunked = schedule.starts_with("interleaved") || schedule == "looped-bfs" ||
                       schedule == "zb-v" || schedule == "v-half" || schedule == "v-min" ||
                       schedule == "dualpipe-v";
  return fixed.pp.value_or(1) > 1 || fixed.chunks.value_or(1) > 1 || fixed.layers.size() > 1 ||
         (chunked && !fixed.chunks);
}

// Why nothing without stages is a plan: what `bound_by` says of it.
std::string ObstacleWithout(const SearchResult& result) {
  if (!result.nearest_without || !result.nearest_without->plan.memory.fits()) {
    return "capacity";
  }
  return result.nearest_without->why.find("target") != std::string::npos ? "latency target"
                                                                         : "compute";
}

}  // namespace

double ReplicaRule(double rho, double stages) {
  return (1 - rho / stages) / ((1 - rho) * (1 + rho - rho / stages));
}

Verdict Judge(const Context& context, const SearchOptions& options, const SearchResult& result) {
  Verdict v;
  if (result.plans.empty()) {
    v.bound_by = "capacity";
    v.reason = "Nothing fits. ";
    if (!result.rejected.empty()) {
      const Rejected& nearest = result.rejected.front();
      const std::string& why = nearest.why;
      const bool possible = nearest.plan.memory.peak() > 0;
      v.bound_by = why.find("target") != std::string::npos                   ? "latency target"
                   : why.find("prefill") != std::string::npos                ? "compute"
                   : possible || why.find("devices of") != std::string::npos ? "capacity"
                                                                             : "layout";
      v.reason = v.bound_by == "latency target" ? "Nothing meets the targets. "
                 : v.bound_by == "compute"      ? "Nothing keeps up with the arrivals. "
                 : v.bound_by == "layout"       ? "No such layout is possible. "
                                                : v.reason;
      v.reason += "Nearest: " + NearestText(nearest);
      if (v.bound_by != "layout") {
        v.lines = WouldFit(context, options, nearest);
      }
    }
    return v;
  }
  v.best = result.plans.front();
  for (const Plan& plan : result.plans) {
    if (plan.layout.pp == 1 && (!v.without || plan.tokens_per_s > v.without->tokens_per_s)) {
      v.without = plan;
    }
  }
  const Plan& best = *v.best;
  v.pipeline = best.layout.pp > 1;
  v.bound_by = best.bound_by;
  if (!v.pipeline) {
    v.without = best;
  }
  const bool asked_stages = AsksForStages(options.fixed);
  const std::string obstacle = asked_stages ? "" : ObstacleWithout(result);
  if (v.without) {
    v.gain = best.tokens_per_s / v.without->tokens_per_s;
  } else if (!obstacle.empty()) {
    v.bound_by = obstacle;
  }
  const Plan* staged = nullptr;
  for (const Plan& plan : result.plans) {
    if (plan.layout.pp > 1) {
      staged = &plan;
      break;
    }
  }
  if (context.workload->mode == Mode::kInference) {
    FindShares(context, best, v);
    CompareWithTensor(context, staged != nullptr ? *staged : best, v);
    ExplainServing(context, result, v);
  } else {
    ExplainStep(context, v);
  }
  const int64_t unused = options.devices - best.layout.devices();
  const Fixed& fixed = options.fixed;
  if (v.pipeline && !v.without) {
    v.reason =
        fmt::format("Pipeline: {}. Best is {} with {} tokens/s{}.",
                    asked_stages ? "--fix leaves no layout without stages to compare with"
                    : obstacle == "latency target" ? "without stages nothing meets the targets"
                    : obstacle == "capacity"       ? "without stages nothing fits"
                                             : "without stages nothing keeps up with the arrivals",
                    LayoutText(best.layout), Rate(best.tokens_per_s), Money(best));
  } else if (v.pipeline) {
    v.reason = fmt::format(
        "Pipeline: {} gives {} tokens/s, {:.2f} times the best without stages ({}, {} "
        "tokens/s){}.",
        LayoutText(best.layout), Rate(best.tokens_per_s), *v.gain, LayoutText(v.without->layout),
        Rate(v.without->tokens_per_s), Money(best));
  } else if (staged == nullptr) {
    v.reason = fmt::format("Do not pipeline: {} gives {} tokens/s{}; no layout with stages {}.",
                           LayoutText(best.layout), Rate(best.tokens_per_s), Money(best),
                           fixed.pp == 1 || fixed.layers.size() == 1 || options.devices == 1
                               ? "was possible"
                           : context.workload->mode == Mode::kInference &&
                                   (context.workload->inference.max_tpot_s > 0 ||
                                    context.workload->inference.max_ttft_s > 0)
                               ? "fits or meets the targets"
                               : "fits");
  } else {
    const std::string instead = best.layout.dp > 1 && best.layout.tp == 1 ? "replicate" : "use";
    v.reason = fmt::format(
        "Do not pipeline: {} {} for {} tokens/s{}; the best with stages ({}) gives {:.2f} times "
        "that.",
        instead, LayoutText(best.layout), Rate(best.tokens_per_s), Money(best),
        LayoutText(staged->layout), staged->tokens_per_s / best.tokens_per_s);
  }
  if (unused > 0) {
    v.reason += fmt::format(" {} of {} devices {} enough.", best.layout.devices(), options.devices,
                            best.layout.devices() == 1 ? "is" : "are");
  }
  if (staged != nullptr) {
    v.crossing = PriceCrossing(context, staged->layout);
  }
  if (v.crossing) {
    v.lines.push_back(CrossingText(*v.crossing));
  }
  v.sensitivity = FindSensitivity(context, options, result);
  FindBreakEven(context, best, staged, v);
  ExplainBreakEven(context, staged, v);
  return v;
}

}  // namespace penstock::plan
