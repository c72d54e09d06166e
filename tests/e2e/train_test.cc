// Whole training runs as a user starts them: the same weights by every schedule and start, going on
// after any end, damage and full disks.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <thread>

#include "base/file.h"
#include "base/json.h"
#include "support/process.h"

namespace penstock::testing {
namespace {

namespace fs = std::filesystem;

const std::string kBinary = std::string(PENSTOCK_BINARY_DIR) + "/penstock";
const std::string kConfig = std::string(PENSTOCK_SOURCE_DIR) + "/configs/train/tiny.toml";

class TrainTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string text;
    for (int i = 0; i < 1200; ++i) {
      text += "line " + std::to_string(i * 7919 % 1000) + " of a text that repeats itself\n";
    }
    std::ofstream(Path("text.txt")) << text;
  }

  std::string Path(const std::string& name) const { return folder_.path() + "/" + name; }

  // A run small enough to be tried many times; `more` are assignments.
  std::vector<std::string> Command(const std::vector<std::string>& more) const {
    std::vector<std::string> command = {kBinary,     "train", kConfig, "--json",
                                        "--threads", "1",     "--set"};
    for (const std::string& assignment :
         {"data.path=" + Path("text.txt"), std::string("data.sequence_tokens=32"),
          std::string("pipeline.micro_batch=1"), std::string("train.steps=20"),
          std::string("optimizer.warmup_steps=3"), "train.folder=" + Path("run"),
          std::string("train.checkpoint_every=0"), "train.log=" + Path("log"),
          std::string("train.dropout=0.1")}) {
      command.push_back(assignment);
    }
    command.insert(command.end(), more.begin(), more.end());
    return command;
  }

  Finished Train(const std::vector<std::string>& more,
                 const std::vector<std::string>& environment = {}) const {
    std::vector<std::string> all = environment;
    all.push_back("PENSTOCK_CACHE=" + Path("cache"));
    return RunCommand(Command(more), "", all);
  }

  // The digest of a run that ended well, else its error.
  static std::string Digest(const Finished& finished) {
    const auto json = ParseJson(finished.out, "train");
    if (finished.status != 0 || !json.ok() || !json.value().contains("last") ||
        json.value()["last"].is_null()) {
      return fmt::format("status {}: {}", finished.status, finished.err);
    }
    return json.value()["last"]["weights_sha256"].get<std::string>();
  }

  std::vector<Json> Log() const {
    std::vector<Json> lines;
    std::ifstream file(Path("log"));
    for (std::string line; std::getline(file, line);) {
      lines.push_back(ParseJson(line, "log").value());
    }
    return lines;
  }

  TemporaryFolder folder_;
};

TEST_F(TrainTest, EveryScheduleGivesTheWeightsOfOneStage) {
  const std::string one = Digest(Train({"pipeline.stages=1"}));
  ASSERT_EQ(one.size(), 64U) << one;
  const std::vector<std::vector<std::string>> runs = {
      {"pipeline.schedule=gpipe"},
      {"pipeline.schedule=1f1b", "pipeline.stages=3"},
      {"pipeline.schedule=interleaved-1f1b"},
      {"pipeline.schedule=zb-h1", "pipeline.stages=4"},
      {"pipeline.schedule=zb-v", "pipeline.stages=3"},
      {"pipeline.schedule=v-min"},
      {"pipeline.schedule=zb-h2", "pipeline.barrier=false"},
      {"pipeline.schedule=1f1b", "train.recompute=full"},
      {"pipeline.schedule=dualpipe-v", "train.recompute=selective"},
  };
  for (const auto& run : runs) {
    EXPECT_EQ(Digest(Train(run)), one) << run[0];
  }
}

TEST_F(TrainTest, LossesAndNormsAreTheSameNumbersForEveryCut) {
  ASSERT_EQ(Train({"pipeline.stages=1"}).status, 0);
  const std::vector<Json> one = Log();
  ASSERT_EQ(Train({"pipeline.stages=3", "pipeline.schedule=zb-v"}).status, 0);
  const std::vector<Json> three = Log();
  ASSERT_EQ(one.size(), 20U);
  ASSERT_EQ(three.size(), 20U);
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_EQ(one[i]["loss"].get<double>(), three[i]["loss"].get<double>()) << i;
    EXPECT_EQ(one[i]["grad_norm"].get<double>(), three[i]["grad_norm"].get<double>()) << i;
    for (const char* key : {"tokens_per_s", "step_s", "bubble_ratio", "planned_step_s"}) {
      EXPECT_TRUE(three[i][key].is_number()) << key;
    }
  }
  EXPECT_LT(one.back()["loss"].get<double>(), one.front()["loss"].get<double>() - 0.3);
}

TEST_F(TrainTest, ReplicasGiveTheWeightsOfAsManyLanes) {
  const std::string lanes = Digest(Train({"pipeline.stages=1", "pipeline.lanes=2"}));
  ASSERT_EQ(lanes.size(), 64U) << lanes;
  EXPECT_EQ(Digest(Train({"pipeline.stages=1", "pipeline.replicas=2", "pipeline.micro_batches=4"})),
            lanes);
  EXPECT_EQ(Digest(Train({"pipeline.replicas=2", "pipeline.micro_batches=4",
                          "pipeline.schedule=zb-h1", "pipeline.zero1=false"})),
            lanes);
  EXPECT_EQ(Digest(Train({"pipeline.schedule=dualpipe"})), lanes);
}

TEST_F(TrainTest, ProcessesGiveTheWeightsOfThreads) {
  const std::vector<std::string> set = {"pipeline.schedule=zb-v", "train.checkpoint_every=7"};
  const std::string threads = Digest(Train(set));
  ASSERT_EQ(threads.size(), 64U) << threads;
  std::vector<std::string> command = {
      "mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "2"};
  const std::vector<std::string> run = Command(set);
  command.insert(command.end(), run.begin(), run.end());
  EXPECT_EQ(Digest(RunCommand(command, "", {"PENSTOCK_CACHE=" + Path("cache")})), threads);
}

TEST_F(TrainTest, ThePlanOfMemoryIsWhatIsTaken) {
  // Without a barrier the old weights and moments are kept as well.
  for (const char* schedule : {"1f1b", "zb-v", "v-min", "gpipe", "dualpipe", "zb-h1"}) {
    const bool barrier = std::string(schedule) != "zb-h1";
    const Finished run = Train({std::string("pipeline.schedule=") + schedule, "train.steps=3",
                                fmt::format("pipeline.barrier={}", barrier)});
    ASSERT_EQ(run.status, 0) << run.err;
    const Json json = ParseJson(run.out, "train").value();
    for (const Json& stage : json["stages"]) {
      for (const auto& [key, planned] : stage["planned_memory"].items()) {
        const auto want = planned.get<double>();
        EXPECT_NEAR(stage["memory"][key].get<double>(), want, 0.02 * want + 64)
            << schedule << " " << key;
      }
    }
  }
}

TEST_F(TrainTest, ClippedRunsWithoutABarrierRollBackToTheSameBits) {
  const std::vector<std::string> limit = {"optimizer.clip_norm=2.5"};
  const std::string with = Digest(Train(limit));
  ASSERT_EQ(with.size(), 64U) << with;
  const Finished without = Train({"optimizer.clip_norm=2.5", "pipeline.barrier=false"});
  EXPECT_EQ(Digest(without), with);
  EXPECT_GT(ParseJson(without.out, "train").value()["rolled_back"].get<int>(), 0);
  EXPECT_NE(without.err.find("waits for the norm"), std::string::npos) << without.err;
}

TEST_F(TrainTest, AnotherCutGoesOnWhereOneWasInterrupted) {
  const std::string whole = Digest(Train({"pipeline.stages=1"}));
  ASSERT_EQ(Train({"train.checkpoint_every=5", "train.steps=20"}).status, 0);
  // As if it had been killed after step 10.
  fs::remove_all(Path("run/step-00000020"));
  ASSERT_EQ(Train({"train.checkpoint_every=5", "train.keep=9"}).status, 0);
  fs::remove_all(Path("run/step-00000015"));
  fs::remove_all(Path("run/step-00000020"));
  std::vector<std::string> command =
      Command({"train.checkpoint_every=5", "pipeline.stages=3", "pipeline.schedule=zb-v"});
  command.insert(command.begin() + 3, "--resume");
  const Finished resumed = RunCommand(command, "", {"PENSTOCK_CACHE=" + Path("cache")});
  EXPECT_EQ(Digest(resumed), whole);
  const std::vector<Json> log = Log();
  ASSERT_EQ(log.size(), 20U);
  for (size_t i = 0; i < log.size(); ++i) {
    EXPECT_EQ(log[i]["step"].get<size_t>(), i + 1);
  }
  // Once more: nothing is left to do.
  const Finished again = RunCommand(command, "", {"PENSTOCK_CACHE=" + Path("cache")});
  EXPECT_EQ(again.status, 0);
  EXPECT_NE(again.err.find("nothing is changed"), std::string::npos) << again.err;
  EXPECT_EQ(Log().size(), 20U);
  // As processes, with two threads each.
  fs::remove_all(Path("run/step-00000015"));
  fs::remove_all(Path("run/step-00000020"));
  command = Command({"train.checkpoint_every=5", "pipeline.schedule=zb-h2"});
  command.insert(command.begin() + 3, "--resume");
  *std::next(std::find(command.begin(), command.end(), "--threads")) = "2";
  command.insert(command.begin(), {"mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to",
                                   "none", "-n", "2"});
  EXPECT_EQ(Digest(RunCommand(command, "", {"PENSTOCK_CACHE=" + Path("cache")})), whole);
}

TEST_F(TrainTest, DamagedAndForeignCheckpointsAreNamed) {
  const std::vector<std::string> set = {"train.checkpoint_every=4", "train.steps=8",
                                        "train.keep=3"};
  const std::string whole = Digest(Train(set));
  ASSERT_EQ(whole.size(), 64U) << whole;
  std::vector<std::string> resume = Command(set);
  resume.insert(resume.begin() + 3, "--resume");
  const std::string file = Path("run/step-00000008/model-00001-of-00002.safetensors");
  std::string bytes = ReadFile(file).value();
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 16);
  std::ofstream(file, std::ios::binary) << bytes;
  const Finished resumed = RunCommand(resume, "", {"PENSTOCK_CACHE=" + Path("cache")});
  EXPECT_EQ(Digest(resumed), whole);
  EXPECT_NE(resumed.err.find(file), std::string::npos) << resumed.err;

  resume.push_back("train.seed=77");
  const Finished foreign = RunCommand(resume, "", {"PENSTOCK_CACHE=" + Path("cache")});
  EXPECT_EQ(foreign.status, 2);
  EXPECT_NE(foreign.err.find("train.seed"), std::string::npos) << foreign.err;

  for (const char* step : {"run/step-00000004", "run/step-00000008"}) {
    fs::resize_file(Path(step) + "/checkpoint.json", 10);
  }
  resume.pop_back();
  const Finished none = RunCommand(resume, "", {"PENSTOCK_CACHE=" + Path("cache")});
  EXPECT_EQ(none.status, 2);
  EXPECT_NE(none.err.find("checkpoint.json"), std::string::npos) << none.err;
}

TEST_F(TrainTest, AFullDiskStopsTheRunAndLeavesTheLastCheckpoint) {
  fs::create_directories(Path("small"));
  if (::mount("tmpfs", Path("small").c_str(), "tmpfs", 0, "size=16m") != 0) {
    GTEST_SKIP() << "mounting a tmpfs needs the right to mount";
  }
  // A checkpoint takes about 10 MB: the first fits, the second does not beside it.
  const Finished run =
      Train({"train.folder=" + Path("small/run"), "train.checkpoint_every=2", "train.steps=8"});
  EXPECT_EQ(run.status, 3) << run.err;
  EXPECT_NE(run.err.find("No space left"), std::string::npos) << run.err;
  EXPECT_NE(run.err.find("step-00000002"), std::string::npos) << run.err;
  std::vector<std::string> eval = Command({"train.folder=" + Path("small/run")});
  eval[1] = "eval";
  eval.erase(std::find(eval.begin(), eval.end(), "train.checkpoint_every=0"));
  const Finished evaluated = RunCommand(eval, "", {"PENSTOCK_CACHE=" + Path("cache")});
  EXPECT_EQ(evaluated.status, 0) << evaluated.err;
  EXPECT_NE(evaluated.out.find("step-00000002"), std::string::npos) << evaluated.out;
  ::umount2(Path("small").c_str(), MNT_DETACH);
}

TEST_F(TrainTest, ALossThatIsNotANumberStopsTheRun) {
  ASSERT_EQ(Train({"train.checkpoint_every=1", "train.steps=2"}).status, 0);
  // Step 3 makes weights that no step can be run with: they must not become the newest checkpoint.
  std::vector<std::string> command =
      Command({"train.checkpoint_every=1", "train.steps=9", "optimizer.lr=1e18",
               "optimizer.warmup_steps=0", "pipeline.stages=3"});
  command.insert(command.begin() + 3, "--resume");
  const Finished run = RunCommand(command, "", {"PENSTOCK_CACHE=" + Path("cache")});
  EXPECT_EQ(run.status, 3) << run.err;
  EXPECT_NE(run.err.find("step"), std::string::npos) << run.err;
  EXPECT_NE(run.err.find("step-00000002"), std::string::npos) << run.err;
  EXPECT_TRUE(FileExists(Path("run/step-00000002")));
  EXPECT_FALSE(FileExists(Path("run/step-00000003")));
  std::vector<std::string> mended = Command({"train.checkpoint_every=1", "train.steps=3"});
  mended.insert(mended.begin() + 3, "--resume");
  EXPECT_EQ(Digest(RunCommand(mended, "", {"PENSTOCK_CACHE=" + Path("cache")})).size(), 64U);
}

// However long the next step takes, and whatever becomes of it.
TEST_F(TrainTest, ACheckpointIsThereAsSoonAsItIsWritten) {
  Running run(Command({"train.checkpoint_every=2", "train.steps=9"}), "",
              {"PENSTOCK_CACHE=" + Path("cache"), "PENSTOCK_FAULT=0:F3:stall"});
  for (int i = 0; i < 400 && !FileExists(Path("run/step-00000002")); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  run.Signal(SIGKILL);
  (void)run.Wait(30);
  EXPECT_TRUE(FileExists(Path("run/step-00000002/checkpoint.json")));
  EXPECT_EQ(Log().size(), 2U);
}

TEST_F(TrainTest, AnInterruptedRunWritesACheckpointAndEndsWell) {
  Running run(Command({"train.checkpoint_every=1000", "train.steps=100000"}), "",
              {"PENSTOCK_CACHE=" + Path("cache")});
  for (int i = 0; i < 600 && Log().size() < 3; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  run.Signal(SIGINT);
  const auto finished = run.Wait(60);
  ASSERT_TRUE(finished.has_value());
  EXPECT_EQ(finished->status, 0) << finished->err;
  const Json json = ParseJson(finished->out, "train").value();
  EXPECT_EQ(json["finish_reason"], "interrupted");
  EXPECT_TRUE(FileExists(json["checkpoint"].get<std::string>() + "/checkpoint.json"));
  EXPECT_EQ(Log().back()["step"], json["last"]["step"]);
}

// While a long text is made into tokens, which nobody asks whether to stop.
TEST_F(TrainTest, CtrlCBeforeTheFirstStepEndsTheRunWithinASecond) {
  std::ofstream text(Path("long.txt"));
  for (int i = 0; i < 3'000'000; ++i) {
    text << "line " << i << " of a text\n";
  }
  text.close();
  Running run(Command({"data.path=" + Path("long.txt"), "train.checkpoint_every=1"}), "",
              {"PENSTOCK_CACHE=" + Path("cache")});
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  run.Signal(SIGINT);
  const auto finished = run.Wait(10);
  ASSERT_TRUE(finished.has_value());
  EXPECT_EQ(finished->status, 0) << finished->err;
  EXPECT_NE(finished->err.find("before the first step"), std::string::npos) << finished->err;
  EXPECT_EQ(ParseJson(finished->out, "train").value()["finish_reason"], "interrupted");
  EXPECT_FALSE(FileExists(Path("run/step-00000001")));
}

// Kills runs at random moments, as another layout each time, until one gets to the end.
int KillAndGoOn(const std::function<std::vector<std::string>(int)>& command, int kills,
                double longest_s, const std::vector<std::string>& environment,
                const std::function<void()>& start_again, Finished& last) {
  std::mt19937 random(1234);
  int killed = 0;
  for (int attempt = 0; attempt < kills * 4 + 50; ++attempt) {
    Running run(command(attempt), "", environment);
    const double wait =
        killed < kills ? std::uniform_real_distribution<>(0.05, longest_s)(random) : 300;
    auto finished = run.Wait(wait);
    if (finished.has_value()) {
      last = *finished;
      if (killed >= kills || last.status != 0) {
        return killed;
      }
      start_again();  // it was faster than the kills
      continue;
    }
    run.Signal(SIGKILL);
    (void)run.Wait(30);
    ++killed;
  }
  return killed;
}

void KillTest(const std::string& folder,
              const std::function<std::vector<std::string>(const std::vector<std::string>&)>& make,
              const std::string& whole, int kills, int steps) {
  const std::vector<std::vector<std::string>> layouts = {
      {"pipeline.stages=1"},
      {"pipeline.stages=2", "pipeline.schedule=zb-v"},
      {"pipeline.stages=3", "pipeline.schedule=1f1b", "pipeline.barrier=false"},
      {"pipeline.stages=2", "pipeline.schedule=v-min"},
  };
  const auto command = [&](int attempt) {
    std::vector<std::string> set = {"train.checkpoint_every=1",
                                    fmt::format("train.steps={}", steps)};
    const auto& layout = layouts[static_cast<size_t>(attempt) % layouts.size()];
    set.insert(set.end(), layout.begin(), layout.end());
    std::vector<std::string> all = make(set);
    all.insert(all.begin() + 3, "--resume");
    *std::next(std::find(all.begin(), all.end(), "--threads")) = attempt % 3 == 0 ? "2" : "1";
    return all;
  };
  const auto check = [&] {
    const std::string log = ReadFile(folder + "/log").value();
    EXPECT_NE(log.find(whole), std::string::npos)
        << log.substr(log.size() > 600 ? log.size() - 600 : 0);
  };
  const auto again = [&] {
    check();
    fs::remove_all(folder + "/run");
  };
  Finished last;
  const int killed =
      KillAndGoOn(command, kills, 1.5, {"PENSTOCK_CACHE=" + folder + "/cache"}, again, last);
  EXPECT_EQ(last.status, 0) << last.err;
  check();
  EXPECT_GE(killed, kills);
}

TEST_F(TrainTest, KilledRunsGoOnToTheSameBits) {
  const std::string whole = Digest(Train({"train.steps=30"}));
  ASSERT_EQ(whole.size(), 64U) << whole;
  KillTest(
      folder_.path(), [this](const auto& set) { return Command(set); }, whole, 6, 30);
}

TEST_F(TrainTest, SlowOneHundredKilledRunsGoOnToTheSameBits) {
  const std::string whole = Digest(Train({"train.steps=300"}));
  ASSERT_EQ(whole.size(), 64U) << whole;
  KillTest(
      folder_.path(), [this](const auto& set) { return Command(set); }, whole, 100, 300);
}

}  // namespace
}  // namespace penstock::testing
