// Closed-form configurations per second of one core: the search without simulation, pruned ones not
// counted. Run: penstock_plan_bench (preset bench).

#include <benchmark/benchmark.h>

#include <cstdlib>

#include "base/config_path.h"
#include "base/json.h"
#include "model/config.h"
#include "plan/search.h"

namespace penstock::plan {
namespace {

void SearchBench(benchmark::State& state, const char* model_name, const char* system_name,
                 const char* mode) {
  const auto json = ReadJsonFile(FindConfig("models", "json", model_name).value());
  const auto built = model::BuildModel(json.value(), model_name);
  const auto model = cost::BuildProfile(built.value().graph, model_name, "");
  const auto system = hw::ReadSystem(system_name);
  const auto workload = ReadWorkload(mode, mode, {});
  if (!model.ok() || !system.ok() || !workload.ok()) {
    state.SkipWithError("configs not found");
    return;
  }
  const Context context{&model.value(), &system.value(), &workload.value()};
  SearchOptions options;
  options.devices = 512;
  options.simulate = false;
  int64_t evaluated = 0;
  for (auto _ : state) {
    const auto result = Search(context, options);
    evaluated += result.value().evaluated;
  }
  state.counters["configurations"] =
      benchmark::Counter(static_cast<double>(evaluated), benchmark::Counter::kIsRate);
}

BENCHMARK_CAPTURE(SearchBench, training_70b_512, "llama-3.1-70b", "dgx-h100", "training");
BENCHMARK_CAPTURE(SearchBench, training_deepseek_512, "deepseek-v3", "dgx-h200", "training");
BENCHMARK_CAPTURE(SearchBench, inference_70b_512, "llama-3.1-70b", "dgx-h100", "inference");
BENCHMARK_CAPTURE(SearchBench, inference_deepseek_512, "deepseek-v3", "dgx-h200", "inference");

}  // namespace
}  // namespace penstock::plan

BENCHMARK_MAIN();
