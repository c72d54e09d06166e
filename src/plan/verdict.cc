#include "plan/verdict.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/units.h"
#include "plan/inference.h"
#include "plan/memory.h"
#include "plan/training.h"
#include "plan/would_fit.h"

namespace penstock::plan {
namespace {

// Layouts to compare again when a constant changes: the best with and without stages, and those
// that only just did not fit.
std::vector<Layout> Contenders(const SearchResult& result) {
  std::vector<Layout> out;
  int with = 0;
  int without = 0;
  const auto add = [&](const Layout& layout, int most) {
    int& count = layout.pp > 1 ? with : without;
    if (count < most) {
      ++count;
      out.push_back(layout);
      out.back().cut.clear();
    }
  };
  for (const Plan& plan : result.plans) {
    add(plan.layout, 6);
  }
  for (const Rejected& rejected : result.rejected) {
    if (rejected.plan.memory.peak() > 0) {
      add(rejected.plan.layout, 10);
    }
  }
  return out;
}

// The best of the contenders under another machine or workload.
std::optional<Plan> BestOf(const Context& context, const std::vector<Layout>& layouts) {
  std::vector<Plan> plans;
  InferencePricer inference(context);
  TrainingPricer training(context);
  for (const Layout& layout : layouts) {
    Plan plan;
    plan.layout = layout;
    bool good = false;
    if (context.workload->mode == Mode::kTraining) {
      good = Impossible(context, plan.layout).empty() && training.Price(plan);
    } else {
      plan.layout.micro_batch = 0;
      plan.layout.prefill_chunk_tokens = 0;
      good = inference.Price(plan);
    }
    if (good) {
      plans.push_back(std::move(plan));
    }
  }
  SortPlans(plans);
  if (plans.empty()) {
    return std::nullopt;
  }
  return plans.front();
}

struct Knob {
  std::string name;
  std::string unit;
  double value = 0;
  std::function<void(hw::System&, Workload&, double)> set;
};

std::vector<Knob> Knobs(const Context& context) {
  const hw::System& s = *context.system;
  std::vector<Knob> knobs;
  knobs.push_back({"memory per device", "bytes", s.device.memory_bytes,
                   [](hw::System& system, Workload&, double v) {
                     const double kept =
                         system.device.memory_reserve_bytes / system.device.memory_bytes;
                     system.device.memory_bytes = v;
                     system.device.memory_reserve_bytes = v * kept;
                   }});
  if (!s.engine) {  // whose measured times hold their memory's rate
    knobs.push_back(
        {"memory bandwidth", "bytes/s", s.device.memory_bandwidth,
         [](hw::System& system, Workload&, double v) { system.device.memory_bandwidth = v; }});
  }
  for (size_t l = 0; l < s.links.size(); ++l) {
    knobs.push_back({"bandwidth of " + s.links[l].name, "bytes/s", s.links[l].bandwidth,
                     [l](hw::System& system, Workload&, double v) {
                       system.links[l].bandwidth = v;
                       system.links[l].message_s = {};
                       system.links[l].all_reduce_s.clear();
                     }});
    if (context.workload->mode == Mode::kInference) {
      knobs.push_back({"latency of collectives over " + s.links[l].name, "s",
                       s.links[l].collective_latency_s,
                       [l](hw::System& system, Workload&, double v) {
                         const double old = system.links[l].collective_latency_s;
                         system.links[l].collective_latency_s = v;
                         if (old > 0) {
                           system.links[l].collective_step_latency_s *= v / old;
                         }
                         system.links[l].all_reduce_s.clear();
                       }});
    }
  }
  const InferenceWorkload& w = context.workload->inference;
  if (context.workload->mode == Mode::kTraining) {
    const auto batch = static_cast<double>(context.workload->training.global_batch);
    // In powers of two of today's, so that it still divides over replicas.
    knobs.push_back(
        {"global batch", "sequences", batch, [batch](hw::System&, Workload& work, double v) {
           const double times = std::exp2(std::round(std::log2(v / batch)));
           work.training.global_batch = std::max<int64_t>(1, static_cast<int64_t>(batch * times));
         }});
    return knobs;
  }
  if (w.arrivals()) {
    knobs.push_back(
        {"arrivals", "requests/s", w.requests_per_s,
         [](hw::System&, Workload& work, double v) { work.inference.requests_per_s = v; }});
  } else {
    knobs.push_back({"sequences", "", w.sequences, [](hw::System&, Workload& work, double v) {
                       work.inference.sequences = std::max(1.0, std::round(v));
                     }});
  }
  return knobs;
}

std::string Kind(const Plan& plan) {
  if (plan.layout.pp > 1) {
    return fmt::format("pipelining ({})", LayoutText(plan.layout));
  }
  return fmt::format("no pipelining ({})", LayoutText(plan.layout));
}

// Nearest factor, up to 16 either way, at which the best plan changes between with and without.
void FindSensitivity(const Context& context, const SearchResult& result, Verdict& verdict) {
  const std::vector<Layout> contenders = Contenders(result);
  if (contenders.empty() || !verdict.best) {
    return;
  }
  for (const Knob& knob : Knobs(context)) {
    const auto best_at = [&](double factor) {
      hw::System system = *context.system;
      Workload workload = *context.workload;
      knob.set(system, workload, knob.value * factor);
      const Context changed{context.model, &system, &workload};
      return BestOf(changed, contenders);
    };
    const std::optional<Plan> now = best_at(1);
    if (!now) {
      continue;
    }
    std::optional<Sensitivity> nearest;
    for (const bool up : {true, false}) {
      double inside = 1;
      for (const double step : {1.25, 1.6, 2.0, 3.0, 4.0, 8.0, 16.0}) {
        const double factor = up ? step : 1 / step;
        const std::optional<Plan> there = best_at(factor);
        if (there && (there->layout.pp > 1) == (now->layout.pp > 1)) {
          inside = factor;
          continue;
        }
        if (!there) {
          break;  // nothing fits there: the verdict does not turn, it ends
        }
        double outside = factor;
        std::optional<Plan> then = there;
        for (int i = 0; i < 10; ++i) {
          const double middle = std::sqrt(inside * outside);
          const std::optional<Plan> m = best_at(middle);
          if (m && (m->layout.pp > 1) == (now->layout.pp > 1)) {
            inside = middle;
          } else {
            outside = middle;
            then = m ? m : then;
          }
        }
        const double distance = std::abs(std::log(outside));
        if (!nearest || distance < std::abs(std::log(nearest->flips_at / knob.value))) {
          nearest =
              Sensitivity{knob.name, knob.unit, knob.value, knob.value * outside, Kind(*then)};
        }
        break;
      }
    }
    if (nearest) {
      verdict.sensitivity.push_back(*nearest);
    }
  }
  std::sort(verdict.sensitivity.begin(), verdict.sensitivity.end(),
            [](const Sensitivity& a, const Sensitivity& b) {
              return std::abs(std::log(a.flips_at / a.value)) <
                     std::abs(std::log(b.flips_at / b.value));
            });
}

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
  out.pipeline_bytes = groups * whole.weights * tp + whole.kv * tp;
  out.tensor_bytes = whole.weights * tp + whole.kv * tp;
  const double rate = context.system->device.memory_bandwidth * c.memory_efficiency *
                      static_cast<double>(out.devices);
  out.pipeline_memory_s = out.pipeline_bytes / rate;
  out.tensor_memory_s = out.tensor_bytes / rate;
  const double rows = std::max(1.0, live / groups);
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

// Arithmetic and bytes of the products of the whole model for `rows` rows: (compute, memory).
std::pair<double, double> ProductTimes(const Context& context, const Layout& layout, double rows) {
  cost::StepShape shape;
  shape.rows = rows;
  shape.head_rows = rows;
  shape.decode = true;  // no sequences: no state is read
  cost::LayerTime time;
  for (const int32_t c : context.model->class_of) {
    cost::LayerProfile layer = context.model->classes[static_cast<size_t>(c)];
    layer.attention.clear();
    layer.states.clear();
    layer.whole_row_elements = 0;
    layer.split_row_elements = 0;
    time += cost::ForwardTime(layer, shape, layout.sharding(), layout.formats(), context.machine());
  }
  return {time.compute_s, time.memory_s};
}

std::optional<double> BreakEvenRows(const Context& context, const Layout& layout) {
  const auto computes = [&](double rows) {
    const auto [compute, memory] = ProductTimes(context, layout, rows);
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

// The flip of the knob that says how much work there is, and what it means for arrivals.
void FindBreakEven(const Context& context, const Plan& best, const Plan* staged, Verdict& verdict) {
  BreakEven& out = verdict.break_even;
  out.batch = BreakEvenRows(context, best.layout);
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

void ExplainBreakEven(const Context& context, const Plan* staged, Verdict& v) {
  const BreakEven& e = v.break_even;
  const bool serving = context.workload->mode == Mode::kInference;
  if (serving) {
    v.lines.push_back(
        e.batch ? fmt::format("Break-even batch: with {:.0f} or more rows per read of the weights "
                              "the products are bound by arithmetic, below by reading.",
                              *e.batch)
                : std::string("Break-even batch: none; reading the weights takes longer than the "
                              "arithmetic at any number of rows."));
  }
  std::string traffic = "Break-even traffic: ";
  if (e.sequences && serving) {
    traffic += fmt::format("with {:.0f} sequences alive ({:.3g} requests/s) the answer turns",
                           *e.sequences, e.requests_per_s.value_or(0));
  } else if (e.sequences) {
    traffic += fmt::format("with {:.0f} sequences per step the answer turns", *e.sequences);
  } else {
    traffic += "within a sixteenth to sixteen times this work the answer stays";
  }
  if (e.full_groups > 0 && serving) {
    traffic += fmt::format("; {} stages are all busy from {:.0f} groups ({:.0f} sequences) on",
                           staged->layout.pp, e.full_groups, e.full_sequences);
  }
  v.lines.push_back(traffic + ".");
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
    lines.push_back(
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
  lines.push_back("Stages never make a token come sooner: a lap visits all of them.");
  const InferenceWorkload& w = context.workload->inference;
  if (w.max_tpot_s > 0 || w.max_ttft_s > 0) {
    for (const Rejected& r : result.rejected) {
      if (r.why.find("over the target") != std::string::npos &&
          r.plan.tokens_per_s > 1.02 * best.tokens_per_s) {
        v.bound_by = "latency target";
        lines.push_back(fmt::format("{} would give {:.0f} tokens/s but {}.",
                                    LayoutText(r.plan.layout), r.plan.tokens_per_s, r.why));
        break;
      }
    }
  }
}

void ExplainStep(Verdict& v) {
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
}

std::string NearestText(const Rejected& r) {
  return fmt::format("{} ({}): {}", LayoutText(r.plan.layout),
                     Counted(r.plan.layout.devices(), "device"), r.why);
}

std::string Money(const Plan& plan) {
  return plan.cost_per_million_tokens > 0
             ? fmt::format(", {:.3g} USD per million tokens", plan.cost_per_million_tokens)
             : "";
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
      const std::string& why = result.rejected.front().why;
      v.bound_by = why.find("target") != std::string::npos    ? "latency target"
                   : why.find("prefill") != std::string::npos ? "compute"
                                                              : "capacity";
      v.reason += "Nearest: " + NearestText(result.rejected.front());
      if (v.bound_by == "capacity") {
        v.lines = WouldFit(context, options, result.rejected.front());
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
  if (v.without) {
    v.gain = best.tokens_per_s / v.without->tokens_per_s;
  } else {
    v.bound_by = "capacity";
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
    ExplainStep(v);
  }
  const int64_t unused = options.devices - best.layout.devices();
  if (v.pipeline && !v.without) {
    v.reason =
        fmt::format("Pipeline: without stages nothing fits. Best is {} with {:.0f} tokens/s{}.",
                    LayoutText(best.layout), best.tokens_per_s, Money(best));
  } else if (v.pipeline) {
    v.reason = fmt::format(
        "Pipeline: {} gives {:.0f} tokens/s, {:.2f} times the best without stages ({}, {:.0f} "
        "tokens/s){}.",
        LayoutText(best.layout), best.tokens_per_s, *v.gain, LayoutText(v.without->layout),
        v.without->tokens_per_s, Money(best));
  } else if (staged == nullptr) {
    v.reason =
        fmt::format("Do not pipeline: {} gives {:.0f} tokens/s{}; no layout with stages fits.",
                    LayoutText(best.layout), best.tokens_per_s, Money(best));
  } else {
    const std::string instead = best.layout.dp > 1 && best.layout.tp == 1 ? "replicate" : "use";
    v.reason = fmt::format(
        "Do not pipeline: {} {} for {:.0f} tokens/s{}; the best with stages ({}) gives {:.2f} "
        "times "
        "that.",
        instead, LayoutText(best.layout), best.tokens_per_s, Money(best),
        LayoutText(staged->layout), staged->tokens_per_s / best.tokens_per_s);
  }
  if (unused > 0) {
    v.reason +=
        fmt::format(" {} of {} devices are enough.", best.layout.devices(), options.devices);
  }
  if (staged != nullptr) {
    v.crossing = PriceCrossing(context, staged->layout);
  }
  if (v.crossing) {
    v.lines.push_back(CrossingText(*v.crossing));
  }
  FindSensitivity(context, result, v);
  FindBreakEven(context, best, staged, v);
  ExplainBreakEven(context, staged, v);
  return v;
}

}  // namespace penstock::plan
