// Stages that fail, stall or die, as threads and as processes: the run ends within the deadline
// with an error that names the stage, what it did and what was waited for. And Ctrl-C.

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/json.h"
#include "support/engine_runs.h"
#include "support/model_maker.h"
#include "support/process.h"

namespace penstock::testing {
namespace {

constexpr double kDeadline = 2;
// Start, a deadline with its grace, the end of all ranks: generous, since machines that test are
// busy. A hang is a hundred times longer.
constexpr double kLimit = 60;

// Still there, and more than an entry that nobody has asked about yet.
bool Exists(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text{std::istreambuf_iterator<char>(file), {}};
  const size_t name_end = text.rfind(')');
  return name_end != std::string::npos && text.substr(name_end + 2, 1) != "Z";
}

// The process of rank 0 that has `word` on its command line; -1: none.
pid_t RankZero(const std::string& word) {
  const auto text_of = [](const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return std::string{std::istreambuf_iterator<char>(file), {}};
  };
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string folder = entry.path().string();
    const std::string zero("\0OMPI_COMM_WORLD_RANK=0\0", 24);
    if (text_of(folder + "/cmdline").find(word) != std::string::npos &&
        text_of(folder + "/environ").find(zero) != std::string::npos) {
      return static_cast<pid_t>(std::stol(entry.path().filename().string()));
    }
  }
  return -1;
}

class Faults : public ::testing::Test {
 protected:
  // One model for all tests of the process: long enough to be disturbed while it runs.
  static void SetUpTestSuite() {
    folder_ = new TemporaryFolder;
    LlamaShape shape;
    shape.layers = 3;
    shape.kv_heads = 1;
    shape.context = 1 << 20;
    WriteModel(folder_->path() + "/endless", LlamaConfig(shape), RandomLlama(shape, 5));
  }

  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }

  static std::string Model() { return folder_->path() + "/endless"; }

  // Generates for minutes, on `stages` threads or processes.
  static std::vector<std::string> Command(int stages, bool mpi, double deadline = kDeadline,
                                          const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = {"run", "-m", Model(), "--tokens", "1,2,3", "--greedy"};
    for (const char* word : {"-n", "1000000", "--context", "1048576", "--ignore-eos", "--threads",
                             "1", "--deadline"}) {
      arguments.emplace_back(word);
    }
    arguments.push_back(std::to_string(deadline));
    if (!mpi) {
      arguments.insert(arguments.end(), {"--stages", std::to_string(stages)});
    }
    arguments.insert(arguments.end(), more.begin(), more.end());
    return PenstockCommand(arguments, mpi ? stages : 0);
  }

  // Runs with the fault; it must end with status 3 (or as given) and say all of `words`.
  static void ExpectEnd(int stages, bool mpi, const std::string& fault,
                        const std::vector<std::string>& words, int status = 3) {
    const auto command = Command(stages, mpi);
    SCOPED_TRACE("PENSTOCK_FAULT=" + fault + " " + Describe(command));
    Running run(command, "", {"PENSTOCK_FAULT=" + fault});
    const auto done = run.Wait(kLimit);
    ASSERT_TRUE(done.has_value()) << "still running after " << kLimit << " s";
    EXPECT_EQ(done->status, status) << done->err;
    EXPECT_EQ(done->out, "");
    for (const std::string& word : words) {
      EXPECT_NE(done->err.find(word), std::string::npos) << "no '" << word << "' in: " << done->err;
    }
  }

  static TemporaryFolder* folder_;
};

TemporaryFolder* Faults::folder_ = nullptr;

TEST_F(Faults, AStageThatFailsEndsTheRunWithItsName) {
  ExpectEnd(1, false, "0:F5:fail", {"stage 0", "0F", "step 5", "declared fault"});
  ExpectEnd(3, false, "0:F5:fail", {"stage 0", "0F", "step 5", "declared fault"});
  ExpectEnd(3, false, "1:RECV_F5:fail", {"stage 1", "1RECV_F", "step 5", "declared fault"});
  ExpectEnd(3, false, "1:SEND_F5:fail", {"stage 1", "1SEND_F", "step 5", "declared fault"});
  ExpectEnd(3, false, "2:F5:fail", {"stage 2", "2F", "step 5", "declared fault"});
}

TEST_F(Faults, AStageThatStallsIsNamedByWhoeverWaitsForIt) {
  ExpectEnd(3, false, "1:F5:stall",
            {"rank 2 (stage 2)", "2RECV_F", "step 5", "waited", "rank 1 is late"});
  ExpectEnd(3, false, "2:F5:stall", {"rank 0 (stage 0)", "waited", "step 5", "rank 2 is late"});
  ExpectEnd(3, false, "0:SEND_F5:stall",
            {"rank 1 (stage 1)", "1RECV_F", "step 5", "rank 0 is late"});
  ExpectEnd(3, false, "0:F5:stall", {"rank 1 (stage 1)", "waited", "rank 0 is late"});
  ExpectEnd(1, false, "0:F5:stall", {"stage 0", "0F", "step 5"});
}

TEST_F(Faults, AStageThatEndsWithoutAWordIsNamed) {
  ExpectEnd(2, false, "1:F5:die", {"rank 0 (stage 0)", "waited", "rank 1 is late"});
  ExpectEnd(3, false, "1:F5:die", {"rank 2 (stage 2)", "2RECV_F", "rank 1 is late"});
}

TEST_F(Faults, AStageThatStallsWhileLoadingIsNoticedWithinTheDeadline) {
  ExpectEnd(3, false, "2:LOAD:stall", {"rank 0", "nothing of rank 2", "loads"});
  ExpectEnd(2, false, "0:LOAD:stall", {"rank 1", "nothing of rank 0", "loads"});
  ExpectEnd(3, true, "1:LOAD:stall", {"rank 0", "nothing of rank 1", "loads"});
  ExpectEnd(2, true, "0:LOAD:stall", {"rank 1", "nothing of rank 0", "loads"});
  ExpectEnd(3, false, "1:LOAD:fail", {"stage 1", "loading", "declared fault"});
}

TEST_F(Faults, AProcessThatFailsEndsTheRunWithItsName) {
  ExpectEnd(3, true, "1:F5:fail", {"stage 1", "1F", "step 5", "declared fault"});
  ExpectEnd(3, true, "0:F5:fail", {"stage 0", "0F", "step 5", "declared fault"});
}

TEST_F(Faults, AProcessThatStallsIsNamedByWhoeverWaitsForIt) {
  ExpectEnd(3, true, "1:F5:stall",
            {"rank 2 (stage 2)", "2RECV_F", "step 5", "waited", "rank 1 is late"});
  ExpectEnd(3, true, "2:F5:stall", {"waited", "step 5", "rank 2 is late"});
}

TEST_F(Faults, AProcessThatIsKilledIsNamedByTheOthersAtOnce) {
  // mpirun ends the others a second later, with a status of its own.
  ExpectEnd(3, true, "1:F5:die",
            {"rank 2 (stage 2), action 2RECV_F", "step 5", "the process of rank 1 has ended"},
            128 + SIGKILL);
  ExpectEnd(2, true, "0:F5:die", {"rank 1 (stage 1)", "the process of rank 0 has ended"},
            128 + SIGKILL);
}

TEST_F(Faults, ASignalFromOutsideToOneOfThreeProcessesEndsAll) {
  for (const int signal : {SIGKILL, SIGSTOP}) {
    SCOPED_TRACE(signal == SIGKILL ? "SIGKILL" : "SIGSTOP");
    Running run(Command(3, true));
    std::vector<pid_t> ranks;
    for (int tries = 0; tries < 600 && ranks.size() < 3; ++tries) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      ranks = run.Children();
    }
    ASSERT_EQ(ranks.size(), 3U);
    std::this_thread::sleep_for(std::chrono::seconds(2));
    kill(ranks[1], signal);
    const auto done = run.Wait(kLimit);
    ASSERT_TRUE(done.has_value()) << "still running after " << kLimit << " s";
    EXPECT_EQ(done->status, signal == SIGKILL ? 128 + SIGKILL : 3) << done->err;
    EXPECT_NE(
        done->err.find(signal == SIGKILL ? "the process of rank " : " is late or has stopped"),
        std::string::npos)
        << done->err;
    std::this_thread::sleep_for(std::chrono::seconds(1));
    for (const pid_t rank : ranks) {
      EXPECT_FALSE(Exists(rank)) << "process " << rank << " is left";
    }
  }
}

// ---- Ranks that never come: MPI itself would wait for them without end ----

TEST_F(Faults, ARankThatStopsBeforeMpiIsUpIsNamedByTheOthers) {
  std::vector<std::string> command = Command(2, true);
  for (const char* word : {":", "-n", "1", "sh", "-c", "kill -STOP $$"}) {
    command.emplace_back(word);
  }
  Running run(command);
  const auto done = run.Wait(kLimit);
  ASSERT_TRUE(done.has_value()) << "still running after " << kLimit << " s";
  EXPECT_EQ(done->status, 3) << done->err;
  for (const char* words : {"penstock run: ", "of 3 waited ", " s for all ranks to start",
                            "missed: rank 2: its process ", " (sh) is stopped"}) {
    EXPECT_NE(done->err.find(words), std::string::npos) << words << " in: " << done->err;
  }
  EXPECT_EQ(done->err.find("rank 0: its process"), std::string::npos) << done->err;
  EXPECT_EQ(done->err.find("rank 1: its process"), std::string::npos) << done->err;
}

TEST_F(Faults, ARankThatIsAnotherProgramOrEndsBeforeMpiIsUpIsNamed) {
  for (const auto& [program, words] : {std::pair("exec sleep 100", " runs another program (sleep)"),
                                       std::pair("exit 0", "rank 0: its process has ended")}) {
    std::vector<std::string> command = Command(1, true);
    command.insert(command.begin() + 1, {"-n", "1", "sh", "-c", program, ":"});
    Running run(command);
    const auto done = run.Wait(kLimit);
    ASSERT_TRUE(done.has_value()) << "still running after " << kLimit << " s";
    EXPECT_EQ(done->status, 3) << done->err;
    EXPECT_NE(done->err.find(words), std::string::npos) << done->err;
    EXPECT_NE(done->err.find("rank 1 of 2 waited"), std::string::npos) << done->err;
  }
}

// ---- Ranks of several machines, rehearsed on one ----

TEST_F(Faults, ARankOfAnotherMachineThatEndsWithoutAWordIsMissedAfterTheDeadline) {
  // mpirun is told to leave the others alone, as when a machine is lost; it then gives no status.
  const std::string script = folder_->path() + "/machines";
  std::string line = Describe(Command(3, true));
  line = line.substr(line.find(PenstockPath()));
  WriteText(script, "#!/bin/sh\nPENSTOCK_MACHINE=m$OMPI_COMM_WORLD_RANK exec " + line + "\n");
  Running run({std::string(PENSTOCK_SOURCE_DIR) + "/scripts/mpirun", "--enable-recovery", "-n", "3",
               "sh", script},
              "", {"PENSTOCK_FAULT=1:F5:die"});
  const auto done = run.Wait(kLimit);
  ASSERT_TRUE(done.has_value()) << "still running after " << kLimit << " s";
  for (const char* words : {"rank 2 (stage 2), action 2RECV_F", "step 5", "waited 2.",
                            "rank 1 is late or has stopped"}) {
    EXPECT_NE(done->err.find(words), std::string::npos) << words << " in: " << done->err;
  }
  EXPECT_EQ(done->err.find("the process of rank"), std::string::npos) << done->err;
}

// ---- What rank 0 does before there is anything to run ----

TEST_F(Faults, RanksWaitForSlowInputAsLongAsRankZeroIsThere) {
  const std::string mpirun = std::string(PENSTOCK_SOURCE_DIR) + "/scripts/mpirun";
  const std::string path = folder_->path() + "/typed";
  WritePlayback(path, "!ab");
  const std::string penstock = " -n 2 " + PenstockPath() + " run -m " + path +
                               " --prompt-file - --greedy --threads 1 --deadline 1";
  const Finished done = RunCommand({"sh", "-c", "(sleep 4; printf '!') | " + mpirun + penstock});
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_EQ(done.out, "ab\n");

  Running run({"sh", "-c", "sleep 50 | " + mpirun + penstock + " & exec sleep 60"});
  std::this_thread::sleep_for(std::chrono::seconds(3));
  const pid_t first = RankZero(path);
  ASSERT_GT(first, 0);
  kill(first, SIGSTOP);
  std::string err;
  for (int tries = 0; tries < 600 && err.find("heard nothing of rank 0") == std::string::npos;
       ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    err = run.Errors();
  }
  EXPECT_NE(err.find("rank 1 has heard nothing of rank 0 for 1.0 s"), std::string::npos) << err;
  for (int tries = 0; tries < 200 && Exists(first); ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  EXPECT_FALSE(Exists(first));
}

TEST_F(Faults, AFaultThatCannotBeReadIsRefused) {
  for (const char* fault : {"1:F5", "x:F5:stall", "1:G5:stall", "1:F5:sleep", "1:LOAD5:stall"}) {
    const Finished done =
        RunCommand(Command(2, false), "", {std::string("PENSTOCK_FAULT=") + fault});
    EXPECT_EQ(done.status, 2) << fault;
    EXPECT_NE(done.err.find("PENSTOCK_FAULT"), std::string::npos) << done.err;
    EXPECT_EQ(done.out, "");
  }
}

TEST_F(Faults, AWorkerWhoseModelCannotBeReadEndsTheRunSoon) {
  // Rank 1 looks at another path, which does not exist.
  const std::string script = folder_->path() + "/other";
  WriteText(script, "#!/bin/sh\nif [ \"$OMPI_COMM_WORLD_RANK\" = 1 ]; then model=" +
                        folder_->path() + "/absent; else model=" + Model() + "; fi\nexec " +
                        PenstockPath() + " run -m \"$model\" --tokens 1,2 -n 4 --threads 1\n");
  Running run({std::string(PENSTOCK_SOURCE_DIR) + "/scripts/mpirun", "-n", "2", "sh", script});
  const auto done = run.Wait(kLimit);
  ASSERT_TRUE(done.has_value());
  EXPECT_EQ(done->status, 2);
  EXPECT_NE(done->err.find("rank 1"), std::string::npos) << done->err;
  EXPECT_NE(done->err.find("absent"), std::string::npos) << done->err;
}

// ---- Ctrl-C ----

class Interrupts : public Faults {
 protected:
  // Text for as long as one likes: the bytes of "ab" for ever.
  static std::string Endless() {
    const std::string path = folder_->path() + "/abab";
    WritePlayback(path, "!aba");
    return path;
  }
};

TEST_F(Interrupts, CtrlCPrintsWhatWasGeneratedAndEndsWell) {
  for (const int stages : {1, 3}) {
    for (const bool json : {false, true}) {
      SCOPED_TRACE(fmt::format("{} stages{}", stages, json ? ", JSON" : ""));
      const std::vector<std::string> more =
          json ? std::vector<std::string>{"--json"} : std::vector<std::string>();
      Running run(Command(stages, false, 30, more));
      std::this_thread::sleep_for(std::chrono::milliseconds(2500));
      run.Signal(SIGINT);
      const auto done = run.Wait(kLimit);
      ASSERT_TRUE(done.has_value());
      EXPECT_EQ(done->status, 0) << done->err;
      if (json) {
        const auto parsed = ParseJson(done->out, "standard output");
        ASSERT_TRUE(parsed.ok()) << parsed.error().message;
        const Json& output = parsed.value()["outputs"][0];
        EXPECT_EQ(output["finish_reason"], "interrupted");
        EXPECT_GT(output["tokens"].size(), 0U);
      } else {
        EXPECT_GT(done->out.size(), 1U);
      }
    }
  }
}

TEST_F(Interrupts, WhatWasStreamedBeforeCtrlCIsAWholePrefix) {
  Running run(PenstockCommand({"run", "-m", Endless(), "-p", "!", "-n", "500", "--greedy",
                               "--stages", "2", "--threads", "1"}));
  ASSERT_TRUE(run.WaitForOutput(40, kLimit));
  run.Signal(SIGINT);
  const auto done = run.Wait(kLimit);
  ASSERT_TRUE(done.has_value());
  EXPECT_EQ(done->status, 0) << done->err;
  const std::string text = done->out.substr(0, done->out.find('\n'));
  for (size_t i = 0; i < text.size(); ++i) {
    ASSERT_EQ(text[i], i % 2 == 0 ? 'a' : 'b') << text;
  }
}

TEST_F(Interrupts, CtrlCEndsARunOfProcessesAndKeepsTheText) {
  Running run(Command(2, true, 30));
  for (int tries = 0; tries < 600 && run.Children().size() < 2; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  const std::vector<pid_t> ranks = run.Children();
  std::this_thread::sleep_for(std::chrono::milliseconds(2500));
  run.Signal(SIGINT);
  const auto done = run.Wait(kLimit);
  ASSERT_TRUE(done.has_value());
  EXPECT_EQ(done->status, 0) << done->err;
  EXPECT_NE(done->out.find(','), std::string::npos) << done->err;
  std::this_thread::sleep_for(std::chrono::seconds(1));
  for (const pid_t rank : ranks) {
    EXPECT_FALSE(Exists(rank));
  }
}

TEST_F(Interrupts, ASecondCtrlCEndsARunOfProcessesThatDoesNotAnswer) {
  Running run(Command(2, true, 60), "", {"PENSTOCK_FAULT=1:F5:stall"});
  for (int tries = 0; tries < 600 && run.Children().size() < 2; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  const std::vector<pid_t> ranks = run.Children();
  std::this_thread::sleep_for(std::chrono::milliseconds(2500));
  run.Signal(SIGINT);
  EXPECT_FALSE(run.Wait(1.0).has_value());
  run.Signal(SIGINT);
  const auto done = run.Wait(20);
  ASSERT_TRUE(done.has_value());
  EXPECT_NE(done->status, 0);
  std::this_thread::sleep_for(std::chrono::seconds(1));
  for (const pid_t rank : ranks) {
    EXPECT_FALSE(Exists(rank));
  }
}

TEST_F(Interrupts, ASecondCtrlCEndsAtOnce) {
  // A stalled stage: the first one waits for the deadline of a minute.
  Running run(Command(2, false, 60), "", {"PENSTOCK_FAULT=1:F5:stall"});
  std::this_thread::sleep_for(std::chrono::seconds(2));
  run.Signal(SIGINT);
  EXPECT_FALSE(run.Wait(1.0).has_value());
  run.Signal(SIGINT);
  const auto done = run.Wait(10);
  ASSERT_TRUE(done.has_value());
  EXPECT_EQ(done->status, 130);
}

}  // namespace
}  // namespace penstock::testing
