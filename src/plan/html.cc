#include "plan/html.h"

#include <algorithm>
#include <cmath>

#include "base/markup.h"
#include "base/units.h"
#include "plan/inference.h"
#include "plan/memory.h"
#include "plan/svg_plot.h"
#include "plan/training.h"
#include "schedule/registry.h"
#include "sim/simulate.h"
#include "trace/picture.h"

namespace penstock::plan {
namespace {

constexpr std::string_view kStyle = R"(
:root{color-scheme:light dark;--bg:#fbfbf9;--fg:#1b1f24;--soft:#5b636d;--line:#d9dcd8;--card:#fff;
--a:#2f6f9f;--b:#d98032;--c:#5b9a57;--d:#8a63a8;--e:#b9504f;--f:#7a828b;--limit:#b3261e}
@media(prefers-color-scheme:dark){:root{--bg:#14171a;--fg:#e6e8ea;--soft:#a0a8b0;--line:#30363c;
--card:#1b1f24;--a:#6aaedd;--b:#f0a35e;--c:#86c982;--d:#b995d6;--e:#e58583;--f:#9aa3ac;--limit:#ff8a80}}
*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--fg);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:1080px;margin:0 auto;padding:24px 16px 64px}
h1{font-size:1.25rem;font-weight:600;margin:0 0 4px;color:var(--soft)}
h2{font-size:1.1rem;margin:32px 0 8px}.verdict{font-size:1.35rem;line-height:1.4;margin:8px 0 12px}
.soft{color:var(--soft)}.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr));gap:16px}
figure{margin:0;padding:12px;background:var(--card);border:1px solid var(--line);border-radius:8px}
figcaption{font-weight:600;margin-bottom:6px}svg{width:100%;height:auto;display:block}
.t{font-size:12px;fill:var(--soft)}.strong{fill:var(--fg);font-weight:600}.g{stroke:var(--line);stroke-width:1}
.limit{stroke:var(--limit);stroke-width:2;stroke-dasharray:6 4}.line{fill:none!important;stroke-width:2.5}
.s1{fill:var(--a);stroke:var(--a)}.s2{fill:var(--b);stroke:var(--b)}.s3{fill:var(--c);stroke:var(--c)}
.s4{fill:var(--d);stroke:var(--d)}.s5{fill:var(--e);stroke:var(--e)}.s6{fill:var(--f);stroke:var(--f)}
rect.s1,rect.s2,rect.s3,rect.s4,rect.s5,rect.s6{stroke:none}
.best{stroke:var(--fg);stroke-width:2.5}.wide{overflow-x:auto}.timeline{margin-top:16px}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:.9rem}
th,td{text-align:right;padding:4px 6px;border-bottom:1px solid var(--line);white-space:nowrap}
th:last-child,td:last-child{text-align:left}tr.first td{font-weight:600}
details{border-bottom:1px solid var(--line);padding:6px 0}summary{cursor:pointer}
li{margin:2px 0}.timeline img{max-width:none}
)";

// An image of its own, so that the page's styles and the picture's do not meet.
std::string UrlEncoded(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '%' || c == '#' || c == '"' || c == '<' || c == '>' || c == '\n') {
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out;
}

std::string Tokens(double v) {
  return v >= 100 ? FormatCount(std::llround(v)) : fmt::format("{:.3g}", v);
}

// The best plan's layout with p stages, its cut anew.
std::vector<MemoryAccount> Accounts(const Context& context, const Plan& best,
                                    const std::vector<int64_t>& stages) {
  std::vector<MemoryAccount> out;
  InferencePricer inference(context);
  TrainingPricer training(context);
  for (const int64_t p : stages) {
    Plan plan;
    plan.layout = best.layout;
    plan.layout.pp = p;
    plan.layout.cut.clear();
    plan.layout.chunks = p == 1 ? 1 : best.layout.chunks;
    if (plan.layout.stages() > context.model->num_layers()) {
      plan.layout.chunks = 1;
    }
    if (plan.layout.chunks == 1 && context.workload->mode == Mode::kTraining) {
      plan.layout.schedule = "1f1b";
    }
    if (context.workload->mode == Mode::kTraining) {
      training.Price(plan);
    } else {
      // The same sequences in each group in flight.
      const double group = static_cast<double>(std::max<int64_t>(1, best.layout.micro_batch));
      Workload workload = *context.workload;
      workload.inference.requests_per_s = 0;
      workload.inference.sequences =
          group * static_cast<double>(p) * static_cast<double>(best.layout.dp);
      const Context same{context.model, context.system, &workload};
      InferencePricer pricer(same);
      plan.layout.micro_batches = p;
      plan.layout.micro_batch = static_cast<int64_t>(group);
      pricer.Price(plan);
    }
    out.push_back(plan.memory);
  }
  return out;
}

std::string MemoryPlot(const Context& context, const Plan& best) {
  std::vector<int64_t> stages;
  for (int64_t p = 1; p <= 16 && p <= context.model->decoder_layers(); p *= 2) {
    stages.push_back(p);
  }
  if (best.layout.pp > 1 &&
      std::find(stages.begin(), stages.end(), best.layout.pp) == stages.end()) {
    stages.push_back(best.layout.pp);
    std::sort(stages.begin(), stages.end());
  }
  const std::vector<MemoryAccount> accounts = Accounts(context, best, stages);
  StackedBars plot;
  const bool training = context.workload->mode == Mode::kTraining;
  plot.title = training ? "Memory of the fullest device by number of stages"
                        : "Memory of the fullest device by number of stages, the same sequences in "
                          "each group in flight";
  plot.x_title = "pipeline stages (devices grow with them)";
  for (const int64_t p : stages) {
    plot.labels.push_back(fmt::format("{}", p));
  }
  const auto series = [&](const std::string& name, const std::string& css,
                          double MemoryAccount::*part) {
    Series s{name, css, {}};
    double sum = 0;
    for (const MemoryAccount& m : accounts) {
      s.values.push_back(m.*part);
      sum += m.*part;
    }
    if (sum > 0) {
      plot.series.push_back(std::move(s));
    }
  };
  series("weights", "s1", &MemoryAccount::weights);
  series("KV", "s2", &MemoryAccount::kv);
  series("gradients", "s3", &MemoryAccount::gradients);
  series("optimizer", "s4", &MemoryAccount::optimizer);
  series("activations", "s5", &MemoryAccount::activations);
  series("workspace", "s6", &MemoryAccount::workspace);
  plot.limit = best.memory.capacity - best.memory.reserve;
  plot.limit_name = "usable " + FormatBytes(plot.limit);
  plot.format = [](double v) { return FormatBytes(v); };
  return DrawStackedBars(plot);
}

// Compute, weight and KV time of one decode step of one replica, over its sequences.
std::string StepPlot(const Context& context, const Plan& best) {
  LinePlot plot;
  plot.title = "Time of a decode step of one replica by its sequences";
  plot.x_title = "sequences of one replica";
  plot.y_title = "seconds";
  Line compute{"compute", "s5", {}, {}};
  Line weights{"weights from memory", "s1", {}, {}};
  Line kv{"KV from memory", "s2", {}, {}};
  Line all{"step", "s6", {}, {}};
  const InferenceWorkload& w = context.workload->inference;
  const Layout& l = best.layout;
  const cost::Formats formats{l.precision, l.kv_precision};
  const hw::Calibration& c = context.calibration();
  const double devices = static_cast<double>(l.pp);
  const double bandwidth = context.system->device.memory_bandwidth * c.memory_efficiency;
  const double tokens = w.prompt_tokens.mean + w.output_tokens.mean / 2;
  const cost::Machine machine = context.machine();
  for (double b = 1; b <= 4096; b *= 2) {
    cost::StepShape shape;
    shape.rows = shape.sequences = shape.head_rows = b;
    shape.context = shape.state_tokens = tokens;
    shape.decode = true;
    cost::LayerTime sum;
    double kv_bytes = 0;
    for (int32_t u = 0; u < context.model->num_layers(); ++u) {
      sum += cost::ForwardTime(context.model->layer(u), shape, l.sharding(), formats, machine);
      kv_bytes += StateBytesPerDevice(context.model->layer(u), l, b, tokens);
    }
    for (Line* line : {&compute, &weights, &kv, &all}) {
      line->x.push_back(b);
    }
    compute.y.push_back(sum.compute_s / devices);
    kv.y.push_back(kv_bytes / bandwidth / devices);
    weights.y.push_back((sum.memory_s - kv_bytes / bandwidth) / devices);
    all.y.push_back(sum.total_s(c) / devices);
  }
  plot.lines = {all, compute, weights, kv};
  plot.mark_x =
      std::max(1.0, best.concurrent_sequences / static_cast<double>(std::max<int64_t>(1, l.dp)));
  plot.mark_name = "here";
  plot.format_x = [](double v) { return fmt::format("{:.0f}", v); };
  plot.format_y = [](double v) { return FormatSeconds(v); };
  return DrawLines(plot);
}

std::string ParetoPlot(const Context& context, const Answer& answer) {
  PointPlot plot;
  const bool training = context.workload->mode == Mode::kTraining;
  // In training time per step and throughput are one figure; devices are what it is bought with.
  plot.title =
      training ? "Plans: throughput against devices" : "Plans: throughput against time per token";
  plot.x_title = training ? "devices" : "time per token";
  plot.y_title = "tokens/s";
  const auto add = [&](const Plan& p, bool best) {
    const auto devices = static_cast<double>(p.layout.devices());
    plot.points.push_back({training ? devices : p.tpot_s, p.tokens_per_s,
                           p.layout.pp > 1 ? "s2" : "s1",
                           fmt::format("{} ({}): {:.0f} tokens/s, {}", LayoutText(p.layout),
                                       Counted(p.layout.devices(), "device"), p.tokens_per_s,
                                       FormatSeconds(training ? p.step_s : p.tpot_s)),
                           best});
  };
  for (const Plan& p : answer.search.pareto) {
    add(p, false);
  }
  for (size_t i = answer.search.plans.size(); i-- > 0;) {
    add(answer.search.plans[i], i == 0);
  }
  plot.legend = {{"s1", "without stages"}, {"s2", "with stages"}};
  plot.format_x = [training](double v) {
    return training ? fmt::format("{:.0f}", v) : FormatSeconds(v);
  };
  plot.format_y = Tokens;
  return DrawPoints(plot);
}

// The schedule of the best plan with stages, at its own stage times; few micro-batches, to be seen.
std::string TimelinePlot(const Context& context, const Answer& answer) {
  const auto staged = std::find_if(answer.search.plans.begin(), answer.search.plans.end(),
                                   [](const Plan& p) { return p.layout.pp > 1; });
  if (staged == answer.search.plans.end()) {
    return "";
  }
  Layout layout = staged->layout;
  // At most some two thousand cells: a picture, not a record.
  const int64_t most = std::max<int64_t>(layout.pp, 900 / layout.stages());
  layout.micro_batches = std::min({layout.micro_batches, 2 * layout.pp + 2, most});
  const auto schedule = ScheduleOf(layout);
  if (!schedule.ok()) {
    return "";
  }
  cost::CostModel costs;
  if (context.workload->mode == Mode::kTraining) {
    TrainingPricer pricer(context);
    for (const StageStep& s : pricer.Stages(layout)) {
      costs.stages.push_back({.f_s = s.f_s, .i_s = s.i_s, .w_s = s.w_s});
    }
  } else {
    for (const double s : staged->stage_s) {
      costs.stages.push_back({.f_s = s});
    }
  }
  costs.link.latency_s = staged->hop_s / static_cast<double>(std::max<int64_t>(1, layout.pp));
  sim::SimOptions options;
  options.timeline = true;
  options.period = false;
  const auto result = sim::Simulate(schedule.value(), costs, options);
  if (!result.ok() || !result->timeline) {
    return "";
  }
  trace::SvgOptions picture;
  picture.memory = false;
  const auto cells = static_cast<double>(layout.micro_batches * layout.chunks);
  picture.cell_width = std::clamp(600 / (cells + static_cast<double>(layout.pp)), 9.0, 60.0);
  const auto svg = trace::Svg(*result->timeline, &schedule.value(), picture);
  if (!svg.ok()) {
    return "";
  }
  return fmt::format(
      "<figure class=\"timeline\" data-plot=\"timeline\"><figcaption>{} of the best plan with "
      "stages "
      "({}), {} micro-batches shown</figcaption><div class=\"wide\"><img alt=\"timeline\" "
      "src=\"data:image/svg+xml,{}\"></div></figure>\n",
      EscapeMarkup(layout.schedule), EscapeMarkup(LayoutText(layout)), layout.micro_batches,
      UrlEncoded(svg.value()));
}

std::string PlansTable(const Context& context, const Answer& answer) {
  const bool training = context.workload->mode == Mode::kTraining;
  std::string out =
      "<div class=\"wide\"><table "
      "id=\"plans\"><thead><tr><th>tp</th><th>pp</th><th>dp</th><th>ep</th>"
      "<th>cp</th><th>chunks</th><th>devices</th><th>tokens/s</th>";
  out += training ? "<th>step</th>" : "<th>first token</th><th>per token</th>";
  out +=
      "<th>memory</th><th>idle</th><th>MFU</th><th>USD per 1M</th><th>bound "
      "by</th></tr></thead><tbody>";
  for (size_t i = 0; i < answer.search.plans.size() && i < 10; ++i) {
    const Plan& p = answer.search.plans[i];
    const Layout& l = p.layout;
    out += fmt::format(
        "<tr{}><td>{}</td><td "
        "data-stages=\"{}\">{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>"
        "<td>{}</td><td>{:.1f}</td>",
        i == 0 ? " class=\"first\"" : "", l.tp, l.pp, l.pp, l.dp, l.ep, l.cp, l.chunks, l.devices(),
        p.tokens_per_s);
    out += training ? fmt::format("<td>{}</td>", FormatSeconds(p.step_s))
                    : fmt::format("<td>{}</td><td>{}</td>", FormatSeconds(p.ttft_s),
                                  FormatSeconds(p.tpot_s));
    out +=
        fmt::format("<td>{}</td><td>{:.1f} %</td><td>{:.1f} %</td><td>{:.3g}</td><td>{}</td></tr>",
                    FormatBytes(p.memory.peak()), 100 * p.bubble_ratio, 100 * p.mfu,
                    p.cost_per_million_tokens, EscapeMarkup(p.bound_by));
  }
  return out + "</tbody></table></div>\n";
}

std::string Details(const Answer& answer) {
  std::string out;
  for (size_t i = 0; i < answer.search.plans.size() && i < 10; ++i) {
    const Plan& p = answer.search.plans[i];
    out += fmt::format("<details{}><summary>{} ({})</summary><ul>", i == 0 ? " open" : "",
                       EscapeMarkup(LayoutText(p.layout)), Counted(p.layout.devices(), "device"));
    for (const std::string& line : p.arithmetic) {
      out += "<li>" + EscapeMarkup(line) + "</li>";
    }
    out += fmt::format("<li>decoder layers per stage: {}</li></ul></details>\n",
                       fmt::join(DecoderLayers(p.layout.cut), " / "));
  }
  return out;
}

std::string List(const std::vector<std::string>& lines) {
  std::string out = "<ul>";
  for (const std::string& line : lines) {
    out += "<li>" + EscapeMarkup(line) + "</li>";
  }
  return out + "</ul>\n";
}

}  // namespace

std::string AnswerHtml(const Context& context, const Answer& answer) {
  const Verdict& v = answer.verdict;
  const bool training = context.workload->mode == Mode::kTraining;
  std::string out = fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">"
      "<title>{} on {}</title><style>{}</style></head><body><main>\n",
      EscapeMarkup(context.model->name), EscapeMarkup(context.system->name), kStyle);
  out += fmt::format("<h1>{} on {}, {}</h1>\n", EscapeMarkup(context.model->name),
                     EscapeMarkup(context.system->title), training ? "training" : "inference");
  out += fmt::format(
      "<p class=\"verdict\" id=\"verdict\" data-verdict=\"{}\" data-stages=\"{}\" "
      "data-capacity-bytes=\"{:.0f}\">{}</p>\n",
      !v.best ? "nothing fits" : (v.pipeline ? "pipeline" : "do not pipeline"),
      v.best ? v.best->layout.pp : 0, context.system->device.memory_bytes, EscapeMarkup(v.reason));
  out += fmt::format("<p class=\"soft\">Bound by: {}.</p>\n", EscapeMarkup(v.bound_by));
  out += List(v.lines);
  if (v.best) {
    out += "<div class=\"plots\">\n" + MemoryPlot(context, *v.best);
    out += training ? "" : StepPlot(context, *v.best);
    out += ParetoPlot(context, answer) + "</div>\n";
    out += TimelinePlot(context, answer);
    out += "<h2>Plans</h2>\n" + PlansTable(context, answer);
    out += "<h2>Arithmetic</h2>\n" + Details(answer);
  }
  if (!v.sensitivity.empty()) {
    out += "<h2>What would turn the verdict</h2>\n<ul>";
    for (const Sensitivity& s : v.sensitivity) {
      out += "<li>" + EscapeMarkup(SensitivityText(s)) + "</li>";
    }
    out += "</ul>\n";
  }
  if (!answer.search.rejected.empty()) {
    out += "<h2>Rejected, nearest first</h2>\n<details><summary>" +
           fmt::format("{} layouts</summary><ul>", answer.search.rejected.size());
    for (const Rejected& r : answer.search.rejected) {
      out += fmt::format("<li>{}: {}</li>", EscapeMarkup(LayoutText(r.plan.layout)),
                         EscapeMarkup(r.why));
    }
    out += "</ul></details>\n";
  }
  const auto band = BandOf(context);
  out +=
      "<h2>How sure</h2>\n<p>" +
      EscapeMarkup(band ? BandText(context, *band)
                        : "No measurement of this kind was compared on this system: take times as "
                          "estimates. Memory is counted from the tensors.") +
      "</p>\n";
  out += "<h2>Assumed</h2>\n" + List(Assumptions(context));
  return out + "</main></body></html>\n";
}

}  // namespace penstock::plan
