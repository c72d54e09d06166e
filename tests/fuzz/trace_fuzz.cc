// Traces, costs files and simulated schedules, as a stranger may hand them in. The first byte
// chooses (t, c, s). Whatever is accepted is worked on as the verbs do.

#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "cost/cost_model.h"
#include "schedule/text/text.h"
#include "sim/costs_from_trace.h"
#include "sim/simulate.h"
#include "trace/chrome.h"
#include "trace/compare.h"
#include "trace/critical_path.h"
#include "trace/picture.h"

namespace penstock {
namespace {

void Trace(std::string_view text) {
  const auto timeline = trace::ReadChromeTrace(text, "fuzz");
  if (!timeline.ok())
    return;
  std::string written;
  trace::WriteChromeTrace(timeline.value(),
                          [&written](std::string_view piece) { written += piece; });
  PENSTOCK_CHECK(trace::ReadChromeTrace(written, "again").ok(), "what was written can be read");
  for (const trace::RankAccount& rank : trace::AccountOf(timeline.value()).ranks)
    PENSTOCK_CHECK(rank.idle_s >= 0, "no negative idle time");
  trace::ComparisonText(trace::Compare(timeline.value(), timeline.value()));
  trace::CriticalPath(timeline.value());
  const auto grid = trace::TextGrid(timeline.value(), nullptr, {});
  PENSTOCK_CHECK(!grid.ok() || !grid->empty(), "a grid that is drawn has lines");
  const auto svg = trace::Svg(timeline.value(), nullptr, {});
  const auto costs = sim::CostsFromTimeline(timeline.value());
  if (costs.ok())
    cost::FormatCostFile(costs.value());
}

void Costs(std::string_view text) {
  const auto file = cost::ParseCostFile(text, "fuzz");
  if (!file.ok())
    return;
  const auto again = cost::ParseCostFile(cost::FormatCostFile(file->model), "again");
  PENSTOCK_CHECK(again.ok(), "what was written can be read");
  PENSTOCK_CHECK(again->model.stages == file->model.stages, "the same stages");
}

void Simulated(std::string_view text) {
  const auto read = schedule::ParseSchedule(text, "fuzz");
  if (!read.ok() || read->schedule.num_stages() > 512)
    return;
  const schedule::Schedule& schedule = read->schedule;
  const cost::CostModel costs =
      cost::MakeUniformCost({1, 1.2, 0.7, -1, 0.1}, schedule.num_stages(), schedule.chunks());
  for (const auto kind : {schedule::TransportKind::kPosted, schedule::TransportKind::kCredits,
                          schedule::TransportKind::kRendezvous}) {
    sim::SimOptions options;
    options.transport.kind = kind;
    options.timeline = true;
    const auto result = sim::Simulate(schedule, costs, options);
    if (!result.ok())
      continue;
    for (const sim::RankResult& rank : result->ranks) {
      const double sum = rank.bubble.Sum() + rank.busy_s;
      PENSTOCK_CHECK(sum >= result->makespan_s - 1e-6 && sum <= result->makespan_s + 1e-6,
                     "the account sums to the idle time");
    }
  }
}

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0)
    return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] == 't') {
    penstock::Trace(text);
  } else if (data[0] == 'c') {
    penstock::Costs(text);
  } else if (data[0] == 's') {
    penstock::Simulated(text);
  }
  return 0;
}
