// penstock trace: timelines of runs and simulations.

#include <fmt/core.h>

#include <memory>
#include <string>

#include "base/file.h"
#include "base/json.h"
#include "cli/verb.h"
#include "cli/verbs.h"
#include "cost/cost_model.h"
#include "sim/costs_from_trace.h"
#include "trace/chrome.h"
#include "trace/compare.h"
#include "trace/critical_path.h"
#include "trace/picture.h"

namespace penstock::cli {
namespace {

struct DiffFlags {
  CommonFlags common;
  std::string planned;
  std::string measured;
  int actions = 10;
};

Result<> Diff(const DiffFlags& flags) {
  PENSTOCK_TRY_ASSIGN(const trace::Timeline planned, trace::ReadChromeTraceFile(flags.planned));
  PENSTOCK_TRY_ASSIGN(const trace::Timeline measured, trace::ReadChromeTraceFile(flags.measured));
  const trace::Comparison comparison = trace::Compare(planned, measured);
  if (flags.common.json) {
    PrintJson(trace::ComparisonJson(comparison));
  } else {
    fmt::print("{}", trace::ComparisonText(comparison, flags.actions));
  }
  return {};
}

struct ShowFlags {
  CommonFlags common;
  std::string file;
  double from_s = 0;
  double to_s = -1;
};

Result<> Show(const ShowFlags& flags) {
  PENSTOCK_TRY_ASSIGN(const trace::Timeline timeline, trace::ReadChromeTraceFile(flags.file));
  const trace::Account account = trace::AccountOf(timeline);
  const std::vector<trace::PathStep> path = trace::CriticalPath(timeline);
  if (flags.common.json) {
    Json ranks = Json::array();
    for (const trace::RankAccount& rank : account.ranks) {
      ranks.push_back(Json{{"busy_s", rank.busy_s},
                           {"idle_s", rank.idle_s},
                           {"bubble", trace::BubbleJson(rank.bubble)}});
    }
    PrintJson(Json{{"name", timeline.name},
                   {"measured", timeline.measured},
                   {"instruction_set", timeline.instruction_set},
                   {"span_s", account.span_s},
                   {"bubble_ratio", account.bubble_ratio},
                   {"ranks", std::move(ranks)},
                   {"critical_path", trace::CriticalPathJson(timeline, path)}});
    return {};
  }
  trace::GridOptions options;
  options.width = TerminalWidth();
  options.colour = ColourOnStdout();
  options.from_s = flags.from_s;
  options.to_s = flags.to_s;
  PENSTOCK_TRY_ASSIGN(const std::string grid, trace::TextGrid(timeline, nullptr, options));
  fmt::print("{}", grid);
  fmt::print("\nidle {:.1f} %\ncritical path: {}\n", 100 * account.bubble_ratio,
             trace::CriticalPathSummary(path));
  return {};
}

struct CostsFlags {
  CommonFlags common;
  std::string file;
  std::string output;
};

Result<> Costs(const CostsFlags& flags) {
  PENSTOCK_TRY_ASSIGN(const trace::Timeline timeline, trace::ReadChromeTraceFile(flags.file));
  PENSTOCK_TRY_ASSIGN(const cost::CostModel costs, sim::CostsFromTimeline(timeline));
  const std::string text = cost::FormatCostFile(costs, "Measured: " + timeline.name);
  if (!flags.output.empty())
    PENSTOCK_TRY(WriteFileAtomically(flags.output, text));
  if (flags.common.json) {
    Json stages = Json::array();
    for (const cost::StageCost& stage : costs.stages) {
      stages.push_back(Json{{"f_s", stage.f_s},
                            {"i_s", stage.i_s},
                            {"w_s", stage.w_s},
                            {"activation_bytes", stage.activation_bytes}});
    }
    PrintJson(Json{{"stages", std::move(stages)}, {"latency_s", costs.link.latency_s}});
  } else if (flags.output.empty()) {
    fmt::print("{}", text);
  }
  return {};
}

void AddCosts(Verb& trace, int& status) {
  Verb* verb = trace.AddVerb("costs", "A costs file from what a run measured");
  auto flags = std::make_shared<CostsFlags>();
  AddCommonFlags(*verb, flags->common);
  verb->AddOption("file", flags->file, "Trace of a run")->Required()->TypeName("FILE");
  verb->AddOption("-o,--output", flags->output, "Write to this file")->TypeName("FILE");
  verb->Examples({"penstock trace costs measured.json -o costs.toml"});
  verb->Callback([flags, verb, &status] {
    const Result<> result = Costs(*flags);
    status = result.ok() ? 0 : Fail(*verb, result.error());
  });
}

void AddDiff(Verb& trace, int& status) {
  Verb* verb = trace.AddVerb("diff", "Foretold beside measured, action by action");
  auto flags = std::make_shared<DiffFlags>();
  AddCommonFlags(*verb, flags->common);
  verb->AddOption("planned", flags->planned, "Trace of a simulation")
      ->Required()
      ->TypeName("PLANNED");
  verb->AddOption("measured", flags->measured, "Trace of a run")->Required()->TypeName("MEASURED");
  verb->AddOption("--actions", flags->actions, "Rows of single actions, those that differ most")
      ->TypeName("N")
      ->NotNegative()
      ->ShowDefault();
  verb->Examples({"penstock sim forward -p 2 -m 4 --costs costs.toml --trace planned.json",
                  "penstock trace diff planned.json measured.json"});
  verb->Callback([flags, verb, &status] {
    const Result<> result = Diff(*flags);
    status = result.ok() ? 0 : Fail(*verb, result.error());
  });
}

void AddShow(Verb& trace, int& status) {
  Verb* verb = trace.AddVerb("show", "Draw a trace and account for its idle time");
  auto flags = std::make_shared<ShowFlags>();
  AddCommonFlags(*verb, flags->common);
  verb->AddOption("file", flags->file, "Trace of a run or a simulation")
      ->Required()
      ->TypeName("FILE");
  verb->AddOption("--from", flags->from_s, "First second (default: the first)")
      ->TypeName("S")
      ->NotNegative();
  verb->AddOption("--to", flags->to_s, "Last second (default: the last)")
      ->TypeName("S")
      ->NotNegative();
  verb->Examples({"penstock run -m model.gguf -p Hello --stages 2 --trace measured.json",
                  "penstock trace show measured.json"});
  verb->Callback([flags, verb, &status] {
    const Result<> result = Show(*flags);
    status = result.ok() ? 0 : Fail(*verb, result.error());
  });
}

}  // namespace

void AddTrace(Verb& app, int& status) {
  Verb* verb = app.AddVerb("trace", "Compare and draw timelines");
  verb->RequireVerb();
  verb->Examples({"penstock trace show measured.json",
                  "penstock trace diff planned.json measured.json",
                  "penstock trace costs measured.json -o costs.toml"});
  AddDiff(*verb, status);
  AddShow(*verb, status);
  AddCosts(*verb, status);
}

}  // namespace penstock::cli
