// calibrate, and what plan, run and bench make of its file.

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "support/engine_runs.h"
#include "support/process.h"

namespace penstock::testing {
namespace {

using Words = std::vector<std::string>;

Json JsonOf(const Finished& done) {
  EXPECT_EQ(done.status, 0) << done.err;
  auto json = ParseJson(done.out, "standard output");
  EXPECT_TRUE(json.ok()) << json.error().message;
  return json.ok() ? std::move(json).value() : Json();
}

// A file that was calibrated elsewhere (tests/golden/systems), for this machine's instruction set.
class Calibrated : public ::testing::Test {
 protected:
  Calibrated() {
    const Json run = JsonOf(RunPenstock({"run", "-m", TinyModelPath("llama3"), "--tokens", "1",
                                         "-n", "1", "--threads", "1", "--json"}));
    const std::string device = run["device"].get<std::string>();  // "cpu avx512 (bf16, vnni), ..."
    const std::string set = device.substr(4, device.find_first_of(" ,", 4) - 4);
    std::string text =
        ReadFile(PENSTOCK_SOURCE_DIR "/tests/golden/systems/calibrated.toml").value();
    const std::string was = "instruction_set = \"avx512\"";
    const size_t at = text.find(was);
    EXPECT_NE(at, std::string::npos);
    text.replace(at, was.size(), "instruction_set = \"" + set + "\"");
    EXPECT_TRUE(WriteFileAtomically(file_, text).ok());
  }

  Words Environment() const { return {"PENSTOCK_SYSTEM=" + file_}; }

  TemporaryFolder folder_;
  std::string file_ = folder_.path() + "/system.toml";
};

TEST(Calibrate, TheFileSaysWhatWasMeasuredWhenAndOnWhat) {
  TemporaryFolder folder;
  const std::string file = folder.path() + "/made/system.toml";
  const Json json = JsonOf(
      RunPenstock({"calibrate", "--quick", "-m", TinyModelPath("llama3"), "-o", file, "--json"}));
  EXPECT_EQ(json["system"], file);
  EXPECT_GT(json["memory_bytes_per_s"].get<double>(), 1e8);
  EXPECT_GE(json["memory_together_bytes_per_s"].get<double>(), 1e8);
  EXPECT_GT(json["message_s"].get<double>(), 0);
  EXPECT_GT(json["peak_flops_per_s"]["int8"].get<double>(), 1e8);
  const auto text = ReadFile(file);
  ASSERT_TRUE(text.ok());
  for (const char* word :
       {"provenance = \"penstock", "UTC", "instruction_set", "[[engine.product]]",
        "[[engine.attention]]", "message_s", "step_s", "hand_over_s"}) {
    EXPECT_NE(text->find(word), std::string::npos) << word;
  }
  // plan takes it.
  const Json plan = JsonOf(RunPenstock(
      {"plan", "--model", TinyModelPath("llama3"), "--system", file, "--devices", "1", "--json"}));
  EXPECT_GT(plan["plans"][0]["decode_tokens_per_s"].get<double>(), 0);
}

TEST_F(Calibrated, RunAndBenchPrintPlannedBesideMeasured) {
  const std::string model = TinyModelPath("llama3");
  const Json run = JsonOf(RunPenstock({"run", "-m", model, "--tokens", "1,2,3", "-n", "5",
                                       "--greedy", "--ignore-eos", "--threads", "1", "--json"},
                                      "", Environment()));
  EXPECT_GT(run["planned"]["prefill_tokens_per_s"].get<double>(), 0);
  EXPECT_GT(run["planned"]["decode_tokens_per_s"].get<double>(), 0);
  const Json bench = JsonOf(
      RunPenstock({"bench", "-m", model, "--stages", "2", "--threads", "1", "--prompt-tokens", "8",
                   "--generate", "4", "--sequences", "1,3", "--repeat", "1", "--json"},
                  "", Environment()));
  for (const Json& one : bench["runs"]) {
    EXPECT_GT(one["planned"]["prefill_tokens_per_s"].get<double>(), 0);
    EXPECT_GT(one["planned"]["decode_tokens_per_s"].get<double>(), 0);
  }
  // The same figures twice: they are no measurement.
  const Json again = JsonOf(RunPenstock({"run", "-m", model, "--tokens", "1,2,3", "-n", "5",
                                         "--greedy", "--ignore-eos", "--threads", "1", "--json"},
                                        "", Environment()));
  EXPECT_EQ(run["planned"], again["planned"]);
  const Json without =
      JsonOf(RunPenstock({"run", "-m", model, "--tokens", "1,2,3", "-n", "5", "--json"}, "",
                         {"PENSTOCK_SYSTEM=/nowhere/system.toml"}));
  EXPECT_TRUE(without["planned"]["prefill_tokens_per_s"].is_null());
  EXPECT_NE(without["planned"]["why"].get<std::string>().find("calibrate"), std::string::npos);
}

// Where each stage starts.
std::vector<int64_t> StartsOf(const Json& stages) {
  std::vector<int64_t> starts;
  for (const Json& stage : stages) {
    starts.push_back(stage["first_layer"].get<int64_t>());
  }
  return starts;
}

// Attention residuals: the deeper the boundary, the more crosses.
TEST_F(Calibrated, CutsWeighWhatCrossesWithItsLinks) {
  const std::string model =
      std::string(PENSTOCK_SOURCE_DIR) + "/tests/golden/models/arch-attnres-block";
  const Words nowhere = {"PENSTOCK_SYSTEM=/nowhere/system.toml"};
  const Words inspect = {"inspect", model, "--stages", "2", "--json"};
  const Words run = {"run", "-m",       model, "--tokens",  "1,2,3", "-n",
                     "2",   "--stages", "2",   "--threads", "1",     "--json"};
  const Words train = {"train",
                       PENSTOCK_SOURCE_DIR "/configs/train/tiny-attnres.toml",
                       "--json",
                       "--threads",
                       "1",
                       "--set",
                       "train.steps=1",
                       "pipeline.stages=2",
                       "pipeline.micro_batches=2",
                       "pipeline.micro_batch=1",
                       "data.sequence_tokens=16",
                       "data.path=" PENSTOCK_SOURCE_DIR "/LICENSE",
                       "train.checkpoint_every=0",
                       "train.folder=" + folder_.path() + "/run",
                       "train.log=" + folder_.path() + "/log"};
  for (const Words& command : {inspect, run, train}) {
    const Json common = JsonOf(RunPenstock(command, "", nowhere));
    EXPECT_TRUE(common["cut_links"].is_null()) << command[0];
    const Json calibrated = JsonOf(RunPenstock(command, "", Environment()));
    EXPECT_EQ(calibrated["cut_links"], file_) << command[0];
    EXPECT_EQ(StartsOf(calibrated["stages"]).size(), 2U);
  }
  // Links that take a second per kilobyte: everything is done to send less.
  std::string text = ReadFile(file_).value();
  for (const char* key : {"\nmessage_s = ", "\nmpi_message_s = "}) {
    const size_t at = text.find(key);
    ASSERT_NE(at, std::string::npos);
    text.replace(at, text.find('\n', at + 1) - at,
                 std::string(key) + "[[1, 1e-5], [1000, 1.0], [4000000, 4000.0]]");
  }
  ASSERT_TRUE(WriteFileAtomically(file_, text).ok());
  for (const Words& command : {inspect, run, train}) {
    const auto common = StartsOf(JsonOf(RunPenstock(command, "", nowhere))["stages"]);
    const auto slow = StartsOf(JsonOf(RunPenstock(command, "", Environment()))["stages"]);
    EXPECT_GT(common[1], 1) << command[0];
    EXPECT_EQ(slow[1], 1) << command[0] << ": behind the embedding, where one vector crosses";
  }
  // plan cuts as run does.
  const Json plan = JsonOf(RunPenstock({"plan", "--model", model, "--system", file_, "--devices",
                                        "2", "--fix", "pp=2,tp=1,dp=1", "--json"}));
  ASSERT_FALSE(plan["plans"].empty());
  EXPECT_EQ(plan["plans"][0]["layers_per_stage"], Json({0, 5}));
}

TEST_F(Calibrated, PlannedMemoryIsThatOfRun) {
  for (const std::string name : {"llama3", "gemma3", "qwen3_moe", "qwen2-window"}) {
    for (const int stages : {1, 2, 3}) {
      for (const char* weights : {"", "bf16", "int8"}) {
        const std::string model = TinyModelPath(name);
        const std::string precision =
            std::string(weights).empty() ? "" : ",precision=" + std::string(weights);
        const Json plan = JsonOf(RunPenstock(
            {"plan", "--model", model, "--system", file_, "--devices", std::to_string(stages),
             "--fix", "tp=1,dp=1,pp=" + std::to_string(stages) + precision, "-W", "sequences=3",
             "-W", "prompt_tokens=20", "-W", "output_tokens=7", "--json"}));
        ASSERT_FALSE(plan["plans"].empty()) << name;
        Words flags = {"bench",
                       "-m",
                       model,
                       "--stages",
                       std::to_string(stages),
                       "--threads",
                       "1",
                       "--prompt-tokens",
                       "20",
                       "--generate",
                       "7",
                       "--sequences",
                       "3",
                       "--repeat",
                       "1",
                       "--json"};
        if (*weights != '\0') {
          flags.insert(flags.end(), {"--weights", weights});
        }
        const Json bench = JsonOf(RunPenstock(flags));
        const Json& ranks = plan["plans"][0]["memory_per_rank"];
        const Json& run = bench["runs"][0]["stages"];
        ASSERT_EQ(ranks.size(), run.size());
        for (size_t r = 0; r < ranks.size(); ++r) {
          for (const char* key : {"weights_bytes", "kv_bytes", "activations_bytes",
                                  "workspace_bytes", "messages_bytes", "peak_bytes"}) {
            EXPECT_EQ(ranks[r][key], run[r]["planned_memory"][key])
                << name << " stages " << stages << " " << weights << " rank " << r << " " << key;
          }
        }
      }
    }
  }
}

TEST_F(Calibrated, LayoutsThatTheEngineDoesNotHaveAreNotPlanned) {
  const Json plan = JsonOf(RunPenstock({"plan", "--model", TinyModelPath("llama3"), "--system",
                                        file_, "--devices", "2", "-W", "sequences=4", "--json"}));
  for (const Json& one : plan["plans"]) {
    EXPECT_EQ(one["tp"], 1);
    EXPECT_GT(one["decode_tokens_per_s"].get<double>(), 0);
  }
}

TEST(Calibrate, RefusesMoreThreadsThanCores) {
  const Finished done = RunPenstock({"calibrate", "--threads", "4096", "-o", "/dev/null"});
  EXPECT_EQ(done.status, 2);
  EXPECT_NE(done.err.find("cores"), std::string::npos);
}

}  // namespace
}  // namespace penstock::testing
