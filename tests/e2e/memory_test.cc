// Memory: the plan's figures beside the measured peaks, and both beside the process.

#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "base/json.h"
#include "support/engine_runs.h"
#include "support/model_maker.h"
#include "support/process.h"

namespace penstock::testing {
namespace {

using Words = std::vector<std::string>;

constexpr const char* kCategories[] = {"weights_bytes",   "kv_bytes",       "activations_bytes",
                                       "workspace_bytes", "messages_bytes", "peak_bytes"};

Json RunJson(const std::string& model, const Words& flags, int ranks = 0) {
  Words arguments = {"run", "-m", model, "--json", "--threads", "1", "--ignore-eos", "--greedy"};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  const Finished done = RunCommand(PenstockCommand(arguments, ranks));
  EXPECT_EQ(done.status, 0) << Describe(arguments) << "\n" << done.err;
  auto json = ParseJson(done.out, "standard output");
  EXPECT_TRUE(json.ok()) << json.error().message;
  return json.ok() ? std::move(json).value() : Json();
}

// Every category of every stage within 2 % of its plan; a plan is never exceeded.
void ExpectPlanned(const Json& json) {
  ASSERT_TRUE(json["stages"].is_array());
  for (const Json& stage : json["stages"]) {
    for (const char* category : kCategories) {
      const auto planned = stage["planned_memory"][category].get<double>();
      const auto measured = stage["memory"][category].get<double>();
      EXPECT_NEAR(measured, planned, 0.02 * planned) << category << " of " << stage.dump();
      EXPECT_LE(measured, planned) << category << " of " << stage.dump();
    }
  }
}

Words Prompts(int count) {
  Words flags;
  for (int i = 0; i < count; ++i) {
    std::string ids = std::to_string(i + 1);
    for (int j = 0; j < 7 * i; ++j) {
      ids += "," + std::to_string(j % 90);
    }
    flags.insert(flags.end(), {"--tokens", ids});
  }
  return flags;
}

TEST(Memory, MeasuredPeaksAreTheFiguresOfThePlan) {
  const std::vector<Words> layouts = {
      {},
      {"--stages", "3"},
      {"--stages", "5", "--groups", "2", "--weights", "int8"},
      {"--cut", "2,2", "--groups", "8", "--weights", "f32", "--prefill-chunk", "5"},
      {"--stages", "2", "--kv", "f32", "--weights", "int4", "--context", "100"},
      {"--stages", "2", "--repeat-penalty", "1.2", "--logprobs", "5"},
  };
  for (const std::string name : {"llama3", "gemma3", "qwen3_moe", "phi3", "qwen2-window"}) {
    for (const Words& layout : layouts) {
      Words flags = Prompts(4);
      flags.insert(flags.end(), {"-n", "9"});
      flags.insert(flags.end(), layout.begin(), layout.end());
      SCOPED_TRACE(name + " " + Describe(layout));
      ExpectPlanned(RunJson(TinyModelPath(name), flags));
    }
  }
}

TEST(Memory, MeasuredPeaksOfProcessesAreTheFiguresOfThePlan) {
  for (const int ranks : {1, 2, 3}) {
    SCOPED_TRACE(ranks);
    Words flags = Prompts(3);
    flags.insert(flags.end(), {"-n", "5", "--groups", "2"});
    ExpectPlanned(RunJson(TinyModelPath("llama3"), flags, ranks));
  }
}

TEST(Memory, WeightsPerStageFallWithStagesAndKeysAndValuesDoNot) {
  // Four sequences in each group, as many groups as stages.
  const TemporaryFolder folder;
  LlamaShape shape;
  shape.layers = 12;
  WriteModel(folder.path(), LlamaConfig(shape), RandomLlama(shape, 1));
  const auto run = [&](int stages) {
    Words flags = {"--stages", std::to_string(stages), "--context", "64", "-n", "4"};
    for (int i = 0; i < 4 * stages; ++i) {
      flags.insert(flags.end(), {"--tokens", "1,2,3"});
    }
    return RunJson(folder.path(), flags);
  };
  const auto most = [](const Json& json, const char* category) {
    int64_t bytes = 0;
    for (const Json& stage : json["stages"]) {
      bytes = std::max(bytes, stage["memory"][category].get<int64_t>());
    }
    return static_cast<double>(bytes);
  };
  const Json one = run(1);
  for (const int stages : {2, 3, 4}) {
    const Json cut = run(stages);
    EXPECT_LT(most(cut, "weights_bytes"), 1.3 * most(one, "weights_bytes") / stages) << stages;
    EXPECT_GE(most(cut, "kv_bytes"), most(one, "kv_bytes")) << stages;
  }
}

// Resident bytes of this process.
int64_t Resident() {
  std::ifstream file("/proc/self/statm");
  int64_t size = 0;
  int64_t resident = 0;
  file >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

// Decision: resident size minus that before the model was opened, within 5 % + 16 MB of the peaks.
void ExpectResident(int64_t stages, runtime::WeightChoice weights) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers keep memory of their own";
#endif
  // What earlier tests of this process took has gone back to the system.
  mallopt(M_MMAP_THRESHOLD, 128 << 10);
  malloc_trim(0);
  const int64_t before = Resident();
  auto bundle = serve::OpenBundle(SmolLm2Path());
  ASSERT_TRUE(bundle.ok()) << bundle.error().message;
  serve::RunOptions options;
  options.stages = stages;
  options.threads = 1;
  options.weights = weights;
  serve::RunDemand demand;
  demand.positions = 256;
  demand.longest_prompt = 200;
  auto engine = serve::Engine::Start(bundle.value(), options, demand, nullptr, nullptr);
  ASSERT_TRUE(engine.ok()) << engine.error().message;
  const std::vector<int32_t> prompt(200, 330);
  ASSERT_TRUE(engine.value()->Admit(prompt, 20, {}).ok());
  bool more = true;
  int64_t peak = 0;
  while (more) {
    auto step = engine.value()->Advance([](const serve::RowResult&) { return false; });
    ASSERT_TRUE(step.ok()) << step.error().message;
    more = step.value();
    peak = std::max(peak, Resident());
  }
  int64_t planned = 0;
  for (const serve::RankMemory& memory : engine.value()->setup().memory) {
    planned += memory.figures.total;
  }
  EXPECT_NEAR(static_cast<double>(peak - before), static_cast<double>(planned),
              0.05 * static_cast<double>(planned) + 16e6)
      << "before " << before << ", peak " << peak;
  EXPECT_TRUE(engine.value()->Stop().ok());
}

TEST(ResidentMemory, OfOneStageIsThePlan) {
  ExpectResident(1, runtime::WeightChoice::kAuto);
}

TEST(ResidentMemory, OfTwoStagesIsThePlan) {
  ExpectResident(2, runtime::WeightChoice::kAuto);
}

TEST(ResidentMemory, OfTwoStagesInBf16IsThePlan) {
  ExpectResident(2, runtime::WeightChoice::kBF16);
}

}  // namespace
}  // namespace penstock::testing
