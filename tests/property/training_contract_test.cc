// The numerics contract over whole runs: after 20 steps of AdamW the losses, the norms of the
// gradient, the moments and the weights are bit for bit those of one stage with the same
// micro-batches, lanes and slices; for every schedule, number of ranks, chunks and threads, with
// tied weights, dropout, recomputation and clipping.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "base/file.h"
#include "schedule/registry.h"
#include "support/byte_model.h"
#include "support/model_maker.h"
#include "support/process.h"
#include "train/checkpoint.h"
#include "train/run.h"

namespace penstock::testing {
namespace {

namespace fs = std::filesystem;

constexpr int kSteps = 20;
constexpr int kMicroBatches = 8;

// All that must not depend on the layout.
struct Trained {
  std::vector<double> losses;
  std::vector<double> norms;
  std::vector<bool> clipped;
  std::string weights;
  std::map<std::string, std::vector<float>> moments;

  bool operator==(const Trained&) const = default;
};

// A model of six units (embedding, four layers, head), tied, over bytes.
class Contract : public ::testing::Test {
 protected:
  void SetUp() override {
    testing::WriteByteModel(Path("model"), 24, 40);
    std::string text;
    for (int i = 0; i < 400; ++i) {
      text += "line " + std::to_string(i * 7919 % 1000) + "\n";
    }
    WriteText(Path("text"), text);
    config_.model.config = Path("model/config.json");
    config_.data.paths = {Path("text")};
    config_.data.sequence_tokens = 12;
    config_.pipeline.micro_batches = kMicroBatches;
    config_.optimizer.lr = 0.01;
    config_.optimizer.warmup_steps = 3;
    config_.optimizer.clip_norm = 0.9;  // some steps are above it, some below
    config_.train.steps = kSteps;
    config_.train.dropout = 0.1;
    ::setenv("PENSTOCK_CACHE", Path("cache").c_str(), 1);
  }

  std::string Path(const std::string& name) const { return folder_.path() + "/" + name; }

  // `moments`: also those of the optimizer, by way of a checkpoint.
  Trained Train(train::TrainConfig config, int threads = 1, bool moments = false) const {
    if (moments) {
      config.train.folder = Path("run");
      config.train.checkpoint_every = kSteps;
    }
    train::TrainOptions options;
    options.threads = threads;
    options.memory_bytes = int64_t{1} << 30;
    Trained run;
    train::TrainHooks hooks;
    hooks.events.on_line = [&](const train::StepLine& line) -> Result<> {
      run.losses.push_back(line.loss);
      run.norms.push_back(line.grad_norm);
      run.clipped.push_back(line.clipped);
      run.weights = line.weights_sha256;
      return {};
    };
    const auto outcome = train::RunTraining(config, options, nullptr, hooks);
    EXPECT_TRUE(outcome.ok()) << Text(config) << ": "
                              << (outcome.ok() ? "" : outcome.error().message);
    EXPECT_EQ(run.losses.size(), size_t{kSteps});
    if (moments && outcome.ok()) {
      ReadMoments(outcome->report.checkpoint, run);
    }
    return run;
  }

  static void ReadMoments(const std::string& path, Trained& run) {
    const auto checkpoint = train::Checkpoint::Open(path, true);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
    for (const std::string& name : checkpoint->Names()) {
      size_t elements = 1;
      for (const int64_t n : *checkpoint->Shape(name)) {
        elements *= static_cast<size_t>(n);
      }
      for (const char* kind : {"exp_avg", "exp_avg_sq"}) {
        std::vector<float>& values = run.moments[name + "." + kind];
        values.resize(elements);
        EXPECT_TRUE(checkpoint->Moment(name, kind, 0, values).ok()) << name;
      }
    }
  }

  // The same job on one stage, with the lanes and slices that the schedule has.
  const Trained& Reference(const train::TrainConfig& config, int64_t lanes, int64_t slices,
                           bool moments = false) {
    const std::string key = fmt::format("{} {} {} {}", lanes, slices, config.train.bf16, moments);
    auto [it, fresh] = references_.try_emplace(key);
    if (fresh) {
      train::TrainConfig one = config;
      one.pipeline = {};
      one.pipeline.schedule = slices > 1 ? "sliced-1f1b" : "1f1b";
      one.pipeline.micro_batches = config.pipeline.micro_batches * config.pipeline.replicas;
      one.pipeline.lanes = lanes > 1 ? lanes : 0;
      one.pipeline.slices = slices > 1 ? slices : 0;
      one.train.recompute = train::Recompute::kNone;
      it->second = Train(one, 1, moments);
      const auto clipped = std::count(it->second.clipped.begin(), it->second.clipped.end(), true);
      EXPECT_GT(clipped, 0);
      EXPECT_LT(clipped, kSteps);
    }
    return it->second;
  }

  static std::string Text(const train::TrainConfig& c) {
    return fmt::format("{} p={} v={} bf16={} recompute={} replicas={} barrier={}",
                       c.pipeline.schedule, c.pipeline.stages, c.pipeline.chunks, c.train.bf16,
                       static_cast<int>(c.train.recompute), c.pipeline.replicas,
                       c.pipeline.barrier);
  }

  // Every schedule with a backward pass for which `wanted(p, v)`. Recomputation and threads go
  // round, so that all meet all over the grid.
  template <class Wanted>
  void CheckEverySchedule(bool bf16, const Wanted& wanted) {
    int runs = 0;
    for (const schedule::GeneratorInfo& info : schedule::Generators()) {
      bool any = !info.backward;
      for (int p = 1; p <= 4; ++p) {
        for (int v = 1; v <= 2; ++v) {
          const auto made = schedule::Generate(info.name, {p, kMicroBatches, v, 0});
          if (!info.backward || !made.ok() || !wanted(info, p, v)) {
            continue;  // another number of chunks or ranks than the schedule takes
          }
          any = true;
          train::TrainConfig config = config_;
          config.pipeline.schedule = std::string(info.name);
          config.pipeline.stages = p;
          config.pipeline.chunks = v;
          config.train.bf16 = bf16;
          config.train.recompute = static_cast<train::Recompute>(runs % 3);
          const int threads = 1 + runs / 3 % 2;
          ++runs;
          const Trained& one = Reference(config, made->placement.num_directions(), made->slices);
          EXPECT_TRUE(Train(config, threads) == one) << Text(config) << " threads=" << threads;
        }
      }
      EXPECT_TRUE(any) << info.name << " was not run at all";
    }
    RecordProperty("runs", runs);
  }

  train::TrainConfig config_;
  TemporaryFolder folder_;
  std::map<std::string, Trained> references_;
};

// The widest layout that has no more than four ranks, of each schedule.
bool Widest(const schedule::GeneratorInfo& info, int p, int v) {
  for (int q = 4; q >= 1; --q) {
    for (int w = 2; w >= 1; --w) {
      if (schedule::Generate(info.name, {q, kMicroBatches, w, 0}).ok()) {
        return p == q && v == w;
      }
    }
  }
  return false;
}

TEST_F(Contract, TwentyStepsOfEveryScheduleGiveTheBitsOfOneStage) {
  CheckEverySchedule(false, Widest);
}

TEST_F(Contract, TwentyStepsInBf16GiveTheBitsOfOneStage) {
  CheckEverySchedule(true, [](const schedule::GeneratorInfo& info, int p, int v) {
    return p == 2 && (v == 2 || !schedule::Generate(info.name, {2, kMicroBatches, 2, 0}).ok());
  });
}

TEST_F(Contract, SlowEveryScheduleRanksAndChunks) {
  CheckEverySchedule(false, [](const auto&, int, int) { return true; });
  CheckEverySchedule(true, [](const auto&, int, int) { return true; });
}

TEST_F(Contract, MomentsReplicasAndStepsWithoutABarrierToo) {
  train::TrainConfig config = config_;
  config.pipeline.stages = 3;
  config.pipeline.schedule = "zb-v";
  config.pipeline.barrier = false;  // rolls back: steps are clipped
  EXPECT_TRUE(Train(config, 1, true) == Reference(config, 1, 1, true)) << Text(config);
  config.pipeline.stages = 2;
  config.pipeline.schedule = "interleaved-zb";
  config.pipeline.barrier = true;
  config.pipeline.replicas = 2;
  config.pipeline.micro_batches = kMicroBatches / 2;
  EXPECT_TRUE(Train(config, 2, true) == Reference(config, 2, 1, true)) << Text(config);
}

// One process per rank: the same runs through the command.
class ContractMpi : public Contract {
 protected:
  void CheckProcesses(const std::string& schedule, int p, bool bf16) {
    const auto made = schedule::Generate(schedule, {p, kMicroBatches, 0, 0});
    ASSERT_TRUE(made.ok()) << made.error().message;
    train::TrainConfig config = config_;
    config.train.bf16 = bf16;
    const Trained& one = Reference(config, made->placement.num_directions(), made->slices);
    WriteText(Path("config.toml"),
              fmt::format(R"([model]
config = "model/config.json"
[data]
path = "text"
sequence_tokens = 12
[pipeline]
stages = {}
schedule = "{}"
micro_batches = {}
[optimizer]
lr = 0.01
warmup_steps = 3
clip_norm = 0.9
[train]
steps = {}
dropout = 0.1
dtype = "{}"
recompute = "selective"
)",
                          p, schedule, kMicroBatches, kSteps, bf16 ? "bf16" : "f32"));
    const std::vector<std::string> command = PenstockCommand(
        {"train", Path("config.toml"), "--log", Path("log"), "--threads", "1", "--json"}, p);
    const Finished finished = RunCommand(command);
    ASSERT_EQ(finished.status, 0) << Describe(command) << "\n" << finished.err;
    Trained run;
    std::istringstream log(ReadFile(Path("log")).value());
    for (std::string line; std::getline(log, line);) {
      const Json json = ParseJson(line, "log").value();
      run.losses.push_back(json["loss"].get<double>());
      run.norms.push_back(json["grad_norm"].get<double>());
      run.clipped.push_back(json["clipped"].get<bool>());
      run.weights = json.value("weights_sha256", "");
    }
    EXPECT_TRUE(run == one) << schedule << " p=" << p << " bf16=" << bf16;
  }
};

TEST_F(ContractMpi, ProcessesGiveTheBitsOfOneStage) {
  CheckProcesses("zb-v", 3, false);  // the tied embedding and head are on one rank
  CheckProcesses("1f1b", 2, true);   // ... on two
}

TEST_F(ContractMpi, SlowEverySchedule) {
  for (const schedule::GeneratorInfo& info : schedule::Generators()) {
    for (const int p : {2, 3, 4}) {
      if (info.backward && schedule::Generate(info.name, {p, kMicroBatches, 0, 0}).ok()) {
        CheckProcesses(std::string(info.name), p, p == 2);
      }
    }
  }
}

}  // namespace
}  // namespace penstock::testing
