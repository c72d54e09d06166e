// sim, optimize and trace as a user runs them.

#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "base/json.h"
#include "support/model_maker.h"
#include "support/process.h"

namespace penstock {
namespace {

using penstock::testing::Finished;
using penstock::testing::RunPenstock;
using penstock::testing::TemporaryFolder;

Json JsonOf(const Finished& finished) {
  EXPECT_EQ(finished.status, 0) << finished.err;
  auto json = ParseJson(finished.out, "stdout");
  EXPECT_TRUE(json.ok()) << finished.out;
  return json.ok() ? std::move(json).value() : Json::object();
}

void Write(const std::string& path, const std::string& text) {
  std::ofstream(path) << text;
}

TEST(SimVerb, PrintsTheKeysOfTheContract) {
  const Json json = JsonOf(RunPenstock({"sim", "1f1b", "-p", "4", "-m", "8", "--cost",
                                        "F=1,I=1,W=1,C=0", "--steps", "3", "--json"}));
  EXPECT_DOUBLE_EQ(json["makespan_s"].get<double>(), 33);
  for (const char* key : {"period_s", "bubble_ratio", "lower_bound_s", "period_lower_bound_s"})
    EXPECT_TRUE(json[key].is_number()) << key;
  ASSERT_EQ(json["ranks"].size(), 4U);
  for (const Json& rank : json["ranks"]) {
    double sum = rank["busy_s"];
    for (const auto& [key, value] : rank["bubble"].items()) {
      EXPECT_TRUE(key.ends_with("_s"));
      sum += value.get<double>();
    }
    EXPECT_NEAR(sum, 33, 1e-9);
    EXPECT_TRUE(rank.contains("peak_activations"));
  }
  EXPECT_EQ(json["schedule"]["name"], "1f1b");
  EXPECT_EQ(json["schedule"]["p"], 4);
  EXPECT_EQ(json["schedule"]["m"], 8);
  EXPECT_EQ(json["schedule"]["v"], 1);
}

TEST(SimVerb, ComparesAllAndAdvises) {
  const Json json = JsonOf(
      RunPenstock({"sim", "--all", "-p", "8", "-m", "32", "--activation-limit", "8", "--json"}));
  EXPECT_EQ(json["rows"].size(), 17U);
  EXPECT_TRUE(json["advice"].get<std::string>().starts_with("Take zb-v"));
  const Finished text = RunPenstock({"sim", "--all", "-p", "2", "-m", "2"});
  EXPECT_EQ(text.status, 0);
  EXPECT_NE(text.out.find("Take "), std::string::npos);
  EXPECT_EQ(text.out.find('\x1b'), std::string::npos);
}

TEST(SimVerb, RefusesWhatItCanNotTake) {
  const std::vector<std::vector<std::string>> wrong = {
      {"sim"},
      {"sim", "1f1b"},
      {"sim", "1f1b", "-p", "4"},
      {"sim", "1f1b", "-p", "0", "-m", "4"},
      {"sim", "1f1b", "-p", "-1", "-m", "4"},
      {"sim", "1f1b", "-p", "4", "-m", "x"},
      {"sim", "1f1b", "-p", "1000000000", "-m", "1000000000"},
      {"sim", "1fb1", "-p", "4", "-m", "4"},
      {"sim", "--all", "1f1b", "-p", "4", "-m", "4"},
      {"sim", "--all", "-p", "4", "-m", "4", "--draw"},
      {"sim", "--all", "-p", "4", "-m", "4", "--svg", "/tmp/x.svg"},
      {"sim", "--all", "-p", "4", "-m", "4", "--steps", "3"},
      {"sim", "--all", "-p", "4", "-m", "4", "--transport", "rendezvous"},
      {"sim", "1f1b", "-p", "4", "-m", "4", "--from", "2"},
      {"sim", "1f1b", "-p", "4", "-m", "4", "--cost", "F=-1"},
      {"sim", "1f1b", "-p", "4", "-m", "4", "--costs", "/no/such/file.toml"},
      {"sim", "1f1b", "-p", "4", "-m", "4", "--transport", "pigeon"},
      {"sim", "1f1b", "-p", "4", "-m", "4", "--credits", "0"},
      {"sim", "1f1b", "-p", "4", "-m", "4", "--activation-limit", "1,2"},
      {"sim", "1f1b", "-p", "4", "-m", "4", "--steps", "0"},
      {"sim", "1f1b", "-p", "4", "-m", "4", "--draw", "--from", "5", "--to", "2"},
      {"sim", "1f1b", "-p", "4", "-m", "4", "--draw", "--from", "500"},
      {"optimize", "-p", "4", "-m", "4"},
      {"optimize", "-p", "4", "-m", "4", "--cost", "F=1", "--activation-limit", "0.1"},
      {"trace"},
      {"trace", "diff", "/no/such/a.json", "/no/such/b.json"},
  };
  for (const auto& arguments : wrong) {
    const Finished finished = RunPenstock(arguments);
    EXPECT_EQ(finished.status, 2) << penstock::testing::Describe(arguments);
    EXPECT_TRUE(finished.out.empty()) << finished.out;
    EXPECT_FALSE(finished.err.empty());
  }
}

TEST(SimVerb, ListsTheActionsOfTheCriticalPath) {
  const Finished text = RunPenstock({"sim", "1f1b", "-p", "2", "-m", "2", "--critical-path"});
  EXPECT_EQ(text.status, 0) << text.err;
  EXPECT_NE(text.out.find("\ncritical path: 3 F 3.00 s, 3 B 6.00 s, 2 hops 0.00 s\n"
                          "rank 0: 0F0 > rank 1: 1F0 1B0 1F1 1B1 > rank 0: 0B1\n"),
            std::string::npos)
      << text.out;
}

// Of a file without SENDs too: what its edges would send, and what ranks would hold of them.
TEST(SimVerb, SaysWhatLongValuesCost) {
  const TemporaryFolder folder;
  const std::string file = folder.path() + "/s";
  std::string text = RunPenstock({"schedule", "zb-v", "-p", "2", "-m", "2"}).out;
  text.replace(text.find("rank 0"), 0,
               "edge a value 0 -> 1 2 3 bytes 1000\nedge b value 1 -> 2 3 bytes 1000\n"
               "edge c value 2 -> 3 bytes 1000\n");
  Write(file, text);
  const Finished run = RunPenstock({"sim", file});
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_NE(run.out.find("sent between ranks per micro-batch: 3.00 kB forward"), std::string::npos)
      << run.out;
  EXPECT_NE(run.out.find("held at once, at most, per rank: "), std::string::npos) << run.out;
  const Json traffic = JsonOf(RunPenstock({"sim", file, "--json"}))["traffic"];
  const Json lowered = JsonOf(RunPenstock({"sim", file, "--lowered", "--json"}))["traffic"];
  EXPECT_EQ(traffic, lowered);
  EXPECT_EQ(traffic["forward_bytes"], 3000);  // p(p-1)/2 + (v-1)p(p-1) blocks
  EXPECT_EQ(traffic["peak_value_bytes"].size(), 2U);
  const Finished picture = RunPenstock({"schedule", file, "--format", "svg"});
  EXPECT_NE(picture.out.find("held at once"), std::string::npos);
  EXPECT_NE(picture.out.find("rank 0 to 1, stage 0 to 1"), std::string::npos);
  const Finished grid = RunPenstock({"sim", file, "--draw"});
  EXPECT_NE(grid.out.find("0 to 1          0 to 1               1.00 kB     1.00 kB  a\n"),
            std::string::npos)
      << grid.out;
}

TEST(SimVerb, RefusesAnIllegalFileWithOne) {
  const TemporaryFolder folder;
  const std::string file = folder.path() + "/broken.csv";
  Write(file, "0B0,0F0\n");
  EXPECT_EQ(RunPenstock({"sim", file}).status, 1);
  Write(file, "0F0,nonsense\n");
  EXPECT_EQ(RunPenstock({"sim", file}).status, 2);
}

TEST(SimVerb, TakesCostsOfUnevenStages) {
  const TemporaryFolder folder;
  const std::string costs = folder.path() + "/costs.toml";
  Write(costs,
        "[link]\nlatency_s = 0.5\n[[stage]]\nf_s = 1\nactivation_bytes = 100\n"
        "[[stage]]\nf_s = 3\nactivation_bytes = 50\n");
  const Json json =
      JsonOf(RunPenstock({"sim", "forward", "-p", "2", "-m", "4", "--costs", costs, "--json"}));
  EXPECT_DOUBLE_EQ(json["makespan_s"].get<double>(), 1 + 0.5 + 12);
  EXPECT_NEAR(json["period_s"].get<double>(), 12, 1e-9);
  EXPECT_EQ(json["ranks"][0]["peak_activation_bytes"], 100);
  Write(costs, "[[stage]]\nf_s = 1\nactivation_byte = 3\n");
  const Finished finished = RunPenstock({"sim", "forward", "-p", "1", "-m", "4", "--costs", costs});
  EXPECT_EQ(finished.status, 2);
  EXPECT_NE(finished.err.find("activation_byte"), std::string::npos);
}

TEST(OptimizeVerb, WritesALegalScheduleWithinTheLimit) {
  const TemporaryFolder folder;
  const std::string file = folder.path() + "/best.schedule";
  const Json json = JsonOf(
      RunPenstock({"optimize", "-p", "4", "-m", "8", "--cost", "F=1,I=1.2,W=0.7,C=0.1",
                   "--activation-limit", "4", "--evaluations", "2000", "-o", file, "--json"}));
  EXPECT_GE(json["gap"].get<double>(), 0);
  const Finished check = RunPenstock({"check", file, "--activation-limit", "4"});
  EXPECT_EQ(check.status, 0) << check.err;
  const Json again =
      JsonOf(RunPenstock({"sim", file, "--cost", "F=1,I=1.2,W=0.7,C=0.1", "--json"}));
  EXPECT_NEAR(again["makespan_s"].get<double>(), json["makespan_s"].get<double>(), 1e-9);
}

TEST(TraceVerb, ComparesTwoSimulationsAndGivesCostsBack) {
  const TemporaryFolder folder;
  const std::string planned = folder.path() + "/planned.json";
  const std::string slower = folder.path() + "/slower.json";
  const std::string costs = folder.path() + "/costs.toml";
  ASSERT_EQ(RunPenstock({"sim", "forward", "-p", "2", "-m", "3", "--trace", planned}).status, 0);
  ASSERT_EQ(RunPenstock(
                {"sim", "forward", "-p", "2", "-m", "3", "--cost", "F=2,C=0.5", "--trace", slower})
                .status,
            0);
  const Json diff = JsonOf(RunPenstock({"trace", "diff", planned, slower, "--json"}));
  EXPECT_EQ(diff["actions"].size(), 6U);
  for (const Json& kind : diff["kinds"])
    EXPECT_NEAR(kind["ratio"].get<double>(), 2, 1e-9);
  EXPECT_EQ(RunPenstock({"trace", "show", slower}).status, 0);
  ASSERT_EQ(RunPenstock({"trace", "costs", slower, "-o", costs}).status, 0);
  const Json again =
      JsonOf(RunPenstock({"sim", "forward", "-p", "2", "-m", "3", "--costs", costs, "--json"}));
  EXPECT_NEAR(again["makespan_s"].get<double>(), 8.5, 1e-9);
}

// What ran, and the same laps of a decode ring simulated with its action times: they are laid over
// each other action by action, and each rank's time is accounted for on both sides.
TEST(TraceVerb, LaysASimulationOverWhatRan) {
  const TemporaryFolder folder;
  const penstock::testing::LlamaShape shape;
  const std::string model = folder.path() + "/model";
  penstock::testing::WriteModel(model, penstock::testing::LlamaConfig(shape),
                                penstock::testing::RandomLlama(shape, 5));
  const std::string measured = folder.path() + "/measured.json";
  const std::string planned = folder.path() + "/planned.json";
  const std::string costs = folder.path() + "/costs.toml";
  const Finished run = RunPenstock({"run",          "-m",       model,     "--tokens", "1,2,3",
                                    "--tokens",     "4,5",      "-n",      "8",        "--greedy",
                                    "--ignore-eos", "--stages", "2",       "--groups", "2",
                                    "--threads",    "1",        "--trace", measured,   "--json"});
  ASSERT_EQ(run.status, 0) << run.err;
  ASSERT_EQ(RunPenstock({"trace", "costs", measured, "-o", costs}).status, 0);
  ASSERT_EQ(RunPenstock({"sim", "decode-ring", "-p", "2", "-m", "2", "--costs", costs, "--steps",
                         "8", "--trace", planned})
                .status,
            0);
  const Json diff = JsonOf(RunPenstock({"trace", "diff", planned, measured, "--json"}));
  EXPECT_EQ(diff["planned"]["steps"], 8);
  EXPECT_EQ(diff["measured"]["steps"], 8);
  std::set<std::string> actions;
  for (const Json& action : diff["actions"]) {
    EXPECT_EQ(action["count"], 8);
    EXPECT_GT(action["planned_s"].get<double>(), 0);
    EXPECT_GT(action["measured_s"].get<double>(), 0);
    actions.insert(action["action"].get<std::string>());
  }
  EXPECT_EQ(actions, (std::set<std::string>{"0F0", "0F1", "1F0", "1F1"}));
  EXPECT_EQ(diff["only_planned"], Json::array());
  for (const char* side : {"planned", "measured"}) {
    for (const Json& rank : diff[side]["ranks"]) {
      double idle = 0;
      for (const auto& [key, value] : rank["bubble"].items())
        idle += value.get<double>();
      EXPECT_NEAR(idle, rank["idle_s"].get<double>(), 1e-9) << side;
      EXPECT_NEAR(idle + rank["busy_s"].get<double>(), diff[side]["step_s"].get<double>(), 1e-9)
          << side;
    }
  }
}

}  // namespace
}  // namespace penstock
