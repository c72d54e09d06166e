// Kimi K3, Kimi Linear and DeepSeek-V3 trained for 20 steps from nothing: the weights are those of
// one stage, bit for bit, for every schedule, cut, transport and way of sending.

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "schedule/registry.h"
#include "support/process.h"

namespace penstock::testing {
namespace {

constexpr int kMicroBatches = 4;
const std::string kSource = PENSTOCK_SOURCE_DIR;

class KimiTrain : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    std::string text;
    for (int i = 0; i < 300; ++i) {
      text += "line " + std::to_string(i * 7919 % 1000) + " of a text that repeats itself\n";
    }
    std::ofstream(Path("text.txt")) << text;
    // The small model of the goldens, over bytes.
    auto config = ReadJsonFile(kSource + "/tests/golden/models/" + GetParam() + "/config.json");
    ASSERT_TRUE(config.ok()) << config.error().message;
    Json& sizes =
        config.value().contains("text_config") ? config.value()["text_config"] : config.value();
    sizes["vocab_size"] = 257;
    sizes["num_nextn_predict_layers"] = 0;
    std::ofstream(Path("config.json")) << config.value().dump();
    std::ofstream(Path("train.toml"))
        << "[model]\nconfig = \"config.json\"\nseed = 3\n"
        << "[data]\npath = \"text.txt\"\ntokenizer = \"" << kSource
        << "/configs/train/tiny\"\nsequence_tokens = 40\n"
        << "[pipeline]\nmicro_batches = " << kMicroBatches << "\nmicro_batch = 1\n"
        << "[optimizer]\nlr = 3e-3\nwarmup_steps = 3\nclip_norm = 1.0\n"
        << "[train]\nsteps = 20\nseed = 1\ndtype = \"f32\"\ncheckpoint_every = 0\n";
  }

  std::string Path(const std::string& name) const { return folder_.path() + "/" + name; }

  // The digest of the weights, else what went wrong.
  std::string Train(const std::vector<std::string>& more, int mpi_ranks = 0,
                    const std::vector<std::string>& flags = {}) const {
    std::vector<std::string> arguments = {"train", Path("train.toml"), "--json", "--threads", "1",
                                          "--set"};
    arguments.push_back("train.folder=" + Path("run"));
    arguments.push_back("train.log=" + Path("log"));
    arguments.insert(arguments.end(), more.begin(), more.end());
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const Finished finished =
        RunCommand(PenstockCommand(arguments, mpi_ranks), "", {"PENSTOCK_CACHE=" + Path("cache")});
    const auto json = ParseJson(finished.out, "train");
    if (finished.status != 0 || !json.ok() || json.value()["last"].is_null()) {
      return "status " + std::to_string(finished.status) + ": " + finished.err;
    }
    last_ = json.value()["last"];
    return last_["weights_sha256"].get<std::string>();
  }

  TemporaryFolder folder_;
  mutable Json last_;
};

TEST_P(KimiTrain, TwentyStepsGiveTheWeightsOfOneStage) {
  const std::string one = Train({"pipeline.stages=1"});
  ASSERT_EQ(one.size(), 64U) << one;
  EXPECT_LT(last_["loss"].get<double>(), 4.5);  // ln 257 = 5.5 at the start
  for (const std::vector<std::string>& run : std::vector<std::vector<std::string>>{
           {"pipeline.schedule=1f1b", "pipeline.stages=3"},
           {"pipeline.schedule=interleaved-1f1b", "pipeline.stages=2", "pipeline.chunks=3"},
           {"pipeline.schedule=zb-v", "pipeline.stages=2"},
           {"pipeline.schedule=zb-h1", "pipeline.stages=4", "pipeline.communication=naive"},
           {"pipeline.schedule=zb-v", "pipeline.stages=3", "pipeline.communication=naive",
            "train.recompute=full"}}) {
    EXPECT_EQ(Train(run), one) << run[0] << " " << run[1];
  }
  EXPECT_EQ(Train({"pipeline.schedule=zb-h1", "pipeline.stages=2"}, 2), one) << "MPI";
}

// A bank vector is given free where its last reader on the rank has it behind it, and the trace
// says which and where.
TEST_P(KimiTrain, TheTraceShowsWhereVectorsAreReleased) {
  if (GetParam() != "kimi_k3") {
    return;  // no bank
  }
  const std::string one = Train({"pipeline.stages=2", "pipeline.chunks=2", "train.steps=2",
                                 "pipeline.schedule=interleaved-1f1b"},
                                0, {"--trace", Path("trace.json")});
  ASSERT_EQ(one.size(), 64U) << one;
  const auto trace = ReadJsonFile(Path("trace.json"));
  ASSERT_TRUE(trace.ok()) << trace.error().message;
  EXPECT_EQ(trace.value()["otherData"]["values"][0], "embedding");
  std::map<std::string, int> released;
  for (const Json& event : trace.value()["traceEvents"]) {
    const std::string name = event.value("name", "");
    const size_t at = name.find("FREE");
    if (at != std::string::npos) {
      ++released[name.substr(name.find(':') + 1)];
    }
  }
  EXPECT_GE(released.size(), 2U);
  // Of each micro-batch of two steps, on each rank that had the embedding.
  EXPECT_EQ(released["embedding"] % (2 * kMicroBatches), 0);
  EXPECT_GT(released["embedding"], 0);
}

TEST_P(KimiTrain, SequencesInSlicesAreRefusedWithTheLayer) {
  const std::string got = Train({"pipeline.schedule=sliced-1f1b", "pipeline.slices=2"});
  EXPECT_NE(got.find("status 2"), std::string::npos) << got;
  EXPECT_NE(got.find("whole sequences in training, got 2 slices"), std::string::npos) << got;
  EXPECT_NE(got.find("layer"), std::string::npos) << got;
  EXPECT_NE(got.find("nearest schedule that cuts none is 1f1b"), std::string::npos) << got;
}

// Every schedule that trains, 1 to 4 ranks, 1 to 4 chunks where the schedule has them: up to 16
// stages for the 6 to 11 units of these models, so that some are empty.
TEST_P(KimiTrain, SlowEveryScheduleAndCut) {
  std::map<int, std::string> references;  // by lanes
  const auto reference = [&](int lanes) {
    std::string& one = references[lanes];
    if (one.empty()) {
      one = Train({"pipeline.stages=1", "pipeline.lanes=" + std::to_string(lanes)});
    }
    return one;
  };
  int runs = 0;
  for (const schedule::GeneratorInfo& info : schedule::Generators()) {
    int had = 0;
    for (int v = 1; info.backward && v <= 4; ++v) {
      for (int p = 1; p <= 4; ++p) {
        const auto made = schedule::Generate(info.name, {p, kMicroBatches, v, 0});
        if (!made.ok() || made->slices > 1) {
          continue;  // what it does not take, and what these models refuse
        }
        const std::string one = reference(made->placement.num_directions());
        ASSERT_EQ(one.size(), 64U) << one;
        const std::vector<std::string> flags = {"pipeline.schedule=" + std::string(info.name),
                                                "pipeline.chunks=" + std::to_string(v),
                                                "pipeline.stages=" + std::to_string(p)};
        const std::string text = flags[0] + " " + flags[1] + " " + flags[2];
        EXPECT_EQ(Train(flags), one) << text;
        if (p % 2 == 0) {
          std::vector<std::string> naive = flags;
          naive.emplace_back("pipeline.communication=naive");
          EXPECT_EQ(Train(naive), one) << text << " naive";
        }
        if (p > 1 && (had == 0 || had == v)) {
          had = v;
          EXPECT_EQ(Train(flags, p), one) << text << " MPI";
        }
        ++runs;
      }
    }
  }
  EXPECT_GT(runs, 80);
}

INSTANTIATE_TEST_SUITE_P(Families, KimiTrain,
                         ::testing::Values("kimi_k3", "kimi_linear", "deepseek_v3"),
                         [](const auto& name) { return name.param; });

}  // namespace
}  // namespace penstock::testing
