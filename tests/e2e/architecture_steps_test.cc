// Twenty steps of training of every variation of the decoder, as a user starts them: the weights
// are those of one stage, bit for bit, for every schedule, cut and start.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/json.h"
#include "schedule/registry.h"
#include "support/process.h"

namespace penstock::testing {
namespace {

namespace fs = std::filesystem;

const std::string kBinary = std::string(PENSTOCK_BINARY_DIR) + "/penstock";
const std::string kSource = PENSTOCK_SOURCE_DIR;

std::vector<std::string> Architectures() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(kSource + "/tests/golden/models")) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("arch-")) {
      names.push_back(name);
    }
  }
  std::ranges::sort(names);
  return names;
}

using Assignments = std::vector<std::string>;

class ArchitectureSteps : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    std::ofstream text(Path("text.txt"));
    for (int i = 0; i < 400; ++i) {
      text << "line " << i * 7919 % 1000 << " of a text that repeats itself\n";
    }
    const std::string golden = kSource + "/tests/golden/models/" + GetParam() + "/config.json";
    Json config = ReadJsonFile(golden).value();
    config["vocab_size"] = 257;  // of the byte tokenizer
    config["eos_token_id"] = 256;
    layers_ = config["num_hidden_layers"].get<int>();
    std::ofstream(Path("config.json")) << DumpJson(config);
  }

  std::string Path(const std::string& name) const { return folder_.path() + "/" + name; }

  std::string Train(const Assignments& more, int processes = 0) const {
    std::vector<std::string> command;
    if (processes > 0) {
      command = {"mpirun", "--allow-run-as-root",    "--oversubscribe", "--bind-to", "none",
                 "-n",     std::to_string(processes)};
    }
    for (const std::string& word :
         {kBinary, std::string("train"), kSource + "/configs/train/tiny.toml",
          std::string("--json"), std::string("--threads"), std::string("1"),
          std::string("--set")}) {
      command.push_back(word);
    }
    for (const std::string& assignment :
         {"model.config=" + Path("config.json"), "data.path=" + Path("text.txt"),
          "data.tokenizer=" + kSource + "/configs/train/tiny",
          std::string("data.sequence_tokens=12"), std::string("pipeline.micro_batch=1"),
          std::string("train.steps=20"), std::string("optimizer.warmup_steps=2"),
          "train.folder=" + Path("run"), std::string("train.checkpoint_every=0"),
          "train.log=" + Path("log")}) {
      command.push_back(assignment);
    }
    command.insert(command.end(), more.begin(), more.end());
    const Finished run = RunCommand(command, "", {"PENSTOCK_CACHE=" + Path("cache")});
    const auto json = ParseJson(run.out, "train");
    if (run.status != 0 || !json.ok() || !json.value().contains("last") ||
        json.value()["last"].is_null()) {
      return fmt::format("status {}: {}", run.status, run.err);
    }
    return json.value()["last"]["weights_sha256"].get<std::string>();
  }

  TemporaryFolder folder_;
  int layers_ = 0;
};

TEST_P(ArchitectureSteps, SchedulesCutsAndProcessesGiveTheWeightsOfOneStage) {
  const std::string one = Train({"pipeline.stages=1"});
  ASSERT_EQ(one.size(), 64U) << one;
  // Neighbours are near, others far: long values go over ranks between.
  std::ofstream links(Path("links.toml"));
  links << "[[stage]]\nf_s = 1\n[[link]]\nlatency_s = 1\n";
  for (int r = 0; r < 3; ++r) {
    links << "[[link]]\nfrom = " << r << "\nto = " << r + 1 << "\nlatency_s = 0.1\n";
  }
  links.close();
  const Assignments runs[] = {
      {"pipeline.schedule=1f1b", "pipeline.stages=4", "pipeline.links=" + Path("links.toml")},
      {"pipeline.schedule=1f1b", "pipeline.stages=3", "pipeline.cut=[2, 3]"},
      {"pipeline.schedule=zb-v"},
      {"pipeline.schedule=interleaved-1f1b", "pipeline.chunks=3"},
      {"pipeline.schedule=dualpipe-v", "train.recompute=full"},
  };
  for (const Assignments& run : runs) {
    EXPECT_EQ(Train(run), one) << run[0];
  }
  EXPECT_EQ(Train({"pipeline.schedule=zb-h1"}, 2), one) << "processes";
  EXPECT_NE(Train({"pipeline.stages=2", "pipeline.links=" + Path("links.toml")})
                .find("a link from rank 1 to 2, wanted ranks 0 to 1"),
            std::string::npos);
}

TEST_P(ArchitectureSteps, SlowEveryScheduleCutAndNumberOfRanksGivesTheWeightsOfOneStage) {
  const std::string one = Train({"pipeline.stages=1"});
  ASSERT_EQ(one.size(), 64U) << one;
  const std::string lanes = Train({"pipeline.stages=1", "pipeline.lanes=2"});
  for (const schedule::GeneratorInfo& info : schedule::Generators()) {
    const std::string name(info.name);
    // Without a backward pass, or (slices) with sums in another order.
    if (name == "forward" || name == "decode-ring" || name == "sliced-1f1b") {
      continue;
    }
    const bool two = name == "dualpipe" || name == "chimera";
    for (int p = 1; p <= 4; ++p) {
      if (two && p % 2 != 0) {
        continue;
      }
      const Assignments run = {"pipeline.schedule=" + name, "pipeline.stages=" + std::to_string(p)};
      EXPECT_EQ(Train(run), two ? lanes : one) << name << " " << p;
    }
  }
  // Every place, inside blocks too, and empty stages.
  for (int at = 1; at <= layers_; ++at) {
    EXPECT_EQ(Train({fmt::format("pipeline.cut=[{}]", at)}), one) << at;
    EXPECT_EQ(Train({"pipeline.stages=4", "pipeline.schedule=zb-h2",
                     fmt::format("pipeline.cut=[{}, {}, {}]", at, at, layers_ + 1)}),
              one)
        << at;
  }
  for (const int p : {2, 3, 4}) {
    for (const char* name : {"1f1b", "zb-v"}) {
      EXPECT_EQ(
          Train({"pipeline.schedule=" + std::string(name), "pipeline.stages=" + std::to_string(p)},
                p),
          one)
          << name << " " << p << " processes";
    }
  }
}

std::string TestName(const ::testing::TestParamInfo<std::string>& name) {
  std::string text = name.param;
  std::ranges::replace(text, '-', '_');
  return text;
}

INSTANTIATE_TEST_SUITE_P(All, ArchitectureSteps, ::testing::ValuesIn(Architectures()), TestName);

}  // namespace
}  // namespace penstock::testing
