// Actions per second of the simulator on one core: one isolated step, and a step of a run back to
// back. docs/performance.md has the figures.

#include <benchmark/benchmark.h>

#include "cost/cost_model.h"
#include "schedule/registry.h"
#include "sim/simulate.h"

namespace {

using penstock::cost::CostModel;
using penstock::schedule::Schedule;

Schedule Make(const char* name, int ranks, int micro_batches, int chunks) {
  auto schedule = penstock::schedule::Generate(name, {ranks, micro_batches, chunks, 0});
  PENSTOCK_CHECK(schedule.ok(), "the generator refused");
  return std::move(schedule).value();
}

void Run(benchmark::State& state, const char* name, int ranks, int micro_batches, int chunks,
         bool period, bool timeline) {
  const Schedule schedule = Make(name, ranks, micro_batches, chunks);
  const CostModel costs = penstock::cost::MakeUniformCost({1, 1.2, 0.7, -1, 0.1},
                                                          schedule.num_stages(), schedule.chunks());
  penstock::sim::SimOptions options;
  options.period = period;
  options.timeline = timeline;
  for (auto _ : state) {
    auto result = penstock::sim::Simulate(schedule, costs, options);
    PENSTOCK_CHECK(result.ok(), "the simulation failed");
    benchmark::DoNotOptimize(result->makespan_s);
  }
  state.counters["actions"] = static_cast<double>(schedule.CountActions());
  state.counters["actions/s"] =
      benchmark::Counter(static_cast<double>(schedule.CountActions() * state.iterations()),
                         benchmark::Counter::kIsRate);
}

BENCHMARK_CAPTURE(Run, one_step / 1f1b / p8 / m32, "1f1b", 8, 32, 0, false, false);
BENCHMARK_CAPTURE(Run, one_step / interleaved / p8 / m512 / v4, "interleaved-1f1b", 8, 512, 4,
                  false, false);
BENCHMARK_CAPTURE(Run, one_step / interleaved_zb / p64 / m1024 / v4, "interleaved-zb", 64, 1024, 4,
                  false, false)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(Run, one_step / interleaved_zb / p64 / m4096 / v4, "interleaved-zb", 64, 4096, 4,
                  false, false)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(Run, with_timeline / interleaved_zb / p64 / m1024 / v4, "interleaved-zb", 64,
                  1024, 4, false, true)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(Run, with_period / interleaved_zb / p64 / m4096 / v4, "interleaved-zb", 64, 4096,
                  4, true, false)
    ->Unit(benchmark::kMillisecond)
    ->Iterations(1);

}  // namespace

BENCHMARK_MAIN();
