// penstock inspect as a user and a script see it.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include "base/json.h"
#include "support/process.h"

namespace penstock {
namespace {

using testing::Finished;
using testing::RunPenstock;

Json Inspect(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "inspect");
  arguments.emplace_back("--json");
  const Finished run = RunPenstock(arguments);
  EXPECT_EQ(run.status, 0) << run.err;
  auto json = ParseJson(run.out, "output");
  EXPECT_TRUE(json.ok()) << run.out;
  return json.ok() ? std::move(json).value() : Json::object();
}

TEST(Inspect, NamedModelsAreCountedAtSixteenBits) {
  const Json llama = Inspect({"llama-3.1-8b"});
  EXPECT_EQ(llama["family"], "llama");
  EXPECT_EQ(llama["parameters"], 8030261248);
  EXPECT_EQ(llama["weights_bytes"], 16060522496);
  EXPECT_EQ(llama["kv_bytes_per_token"], 131072);
  EXPECT_EQ(llama["layers"], 32);
  EXPECT_EQ(llama["boundaries"].size(), 33U);
  EXPECT_EQ(llama["boundaries"][0]["after_layer"], 0);
  EXPECT_EQ(llama["boundaries"][32]["after_layer"], 32);
  EXPECT_EQ(llama["boundaries"][7]["bytes_per_token"], 8192);
  EXPECT_EQ(llama["boundaries"][7]["values"].size(), 1U);
  EXPECT_EQ(Inspect({"mixtral-8x7b"})["weights_bytes"], 2 * 46702792704);
}

TEST(Inspect, ModelsThatAreCountedOnlyHaveTheFiguresOfTheirCards) {
  const Json deepseek = Inspect({"deepseek-v3"});
  EXPECT_EQ(deepseek["kv_bytes_per_token"], 61 * 576 * 2);
  EXPECT_NEAR(deepseek["parameters"].get<double>(), 671.026e9, 1e6);
  EXPECT_NEAR(deepseek["parameters_mtp"].get<double>(), 682.6e9, 1e8);
  const Json oss = Inspect({"gpt-oss-120b"});
  EXPECT_EQ(oss["kv_bytes_per_token"], 73728);
  EXPECT_EQ(oss["windowed_layers"], 18);
  EXPECT_NEAR(oss["parameters_active"].get<double>(), 5.13e9, 1e7);
  const Json linear = Inspect({"kimi-linear-48b"});
  EXPECT_NEAR(linear["parameters"].get<double>(), 49.1e9, 1e8);
  // 26 layers of 256 experts, 8 chosen: one row reads its own, many rows nearly all.
  const double expert = 3.0 * 2304 * 1024 * 2;
  const Json& reads = linear["expert_bytes_by_rows"];
  EXPECT_EQ(reads[0]["rows"], 1);
  EXPECT_NEAR(reads[0]["bytes"].get<double>(), 26 * 8 * expert, 10);
  EXPECT_EQ(reads[1]["rows"], 16);
  EXPECT_NEAR(reads[1]["bytes"].get<double>(),
              26 * 256 * (1 - std::pow(1 - 8.0 / 256, 16)) * expert, 10);
  EXPECT_TRUE(Inspect({"llama-3.1-8b"})["expert_bytes_by_rows"].empty());
}

TEST(Inspect, HopsOfKimiK3CarryWhatTheReceiverLacks) {
  const struct {
    int ranks, chunks;
    int64_t naive, naive_peak, needed, needed_peak;  // vectors per token
  } rows[] = {{2, 1, 5, 5, 5, 5},     {2, 2, 15, 7, 8, 3},  {2, 4, 35, 8, 9, 2},
              {4, 1, 15, 7, 15, 7},   {4, 2, 35, 8, 21, 4}, {4, 4, 79, 9, 31, 3},
              {8, 1, 35, 8, 35, 8},   {8, 2, 79, 9, 55, 5}, {8, 4, 167, 9, 77, 3},
              {16, 4, 378, 9, 170, 4}};

  for (const auto& row : rows) {
    SCOPED_TRACE(std::to_string(row.ranks) + " x " + std::to_string(row.chunks));
    const Json k3 =
        Inspect({"kimi-k3", "--balance", "layers", "--placement", "loop", "--stages",
                 std::to_string(row.ranks * row.chunks), "--chunks", std::to_string(row.chunks)});
    EXPECT_NEAR(k3["parameters"].get<double>(), 2.7795e12, 1e8);
    EXPECT_NEAR(k3["parameters_active"].get<double>(), 104.2e9, 1e8);
    const int64_t vector = int64_t{2} * 7168;
    int64_t naive = 0;
    int64_t needed = 0;
    int64_t naive_peak = 0;
    int64_t needed_peak = 0;
    for (const Json& hop : k3["hops"]) {
      const auto all = hop["naive_bytes_per_token"].get<int64_t>();
      const auto lacked = hop["bytes_per_token"].get<int64_t>();
      naive += all;
      needed += lacked;
      naive_peak = std::max(naive_peak, all);
      needed_peak = std::max(needed_peak, lacked);
    }
    EXPECT_EQ(naive, row.naive * vector);
    EXPECT_EQ(naive_peak, row.naive_peak * vector);
    EXPECT_EQ(needed, row.needed * vector);
    EXPECT_EQ(needed_peak, row.needed_peak * vector);
  }
}

TEST(Inspect, EveryLayerIsInOneStageForAnyNumberOfStages) {
  const struct {
    const char* name;
    int layers;
  } models[] = {{"llama-3.1-405b", 126}, {"qwen3-235b-a22b", 94}, {"smollm2-135m", 30}};

  for (const auto& model : models) {
    for (const int stages : {1, 4, 7, 16, model.layers + 2}) {
      for (const char* balance : {"time", "memory", "layers"}) {
        const Json json =
            Inspect({model.name, "--stages", std::to_string(stages), "--balance", balance});
        ASSERT_EQ(json["stages"].size(), static_cast<size_t>(stages));
        int next = 0;
        int64_t kv = 0;
        for (const Json& stage : json["stages"]) {
          EXPECT_EQ(stage["first_layer"], next) << model.name << " " << stages << " " << balance;
          EXPECT_GE(stage["last_layer"].get<int>(), next);
          next = stage["last_layer"].get<int>() + 1;
          kv += stage["kv_bytes_per_token"].get<int64_t>();
        }
        EXPECT_EQ(next, model.layers + 2);
        EXPECT_EQ(kv, json["kv_bytes_per_token"].get<int64_t>());
      }
    }
  }
}

TEST(Inspect, EqualCutEntriesMakeEmptyStages) {
  const Json json = Inspect({"smollm2-135m", "--cut", "1,10,10,31"});
  ASSERT_EQ(json["stages"].size(), 5U);
  EXPECT_EQ(json["stages"][0]["last_layer"], 0);
  EXPECT_EQ(json["stages"][2]["first_layer"], 10);
  EXPECT_EQ(json["stages"][2]["last_layer"], 9);
  EXPECT_EQ(json["stages"][2]["weights_bytes"], 0);
  // The embedding's table is the head's too, so that both stages hold it.
  const int64_t table = 2 * 49152 * 576;
  EXPECT_EQ(json["stages"][0]["weights_bytes"], table);
  EXPECT_EQ(json["stages"][4]["weights_bytes"], table + 2 * 576);
}

TEST(Inspect, ChunksShowWhatEachHopCarries) {
  const Json loop = Inspect({"smollm2-135m", "--stages", "6", "--chunks", "3"});
  ASSERT_EQ(loop["hops"].size(), 5U);
  EXPECT_EQ(loop["hops"][1]["from_rank"], 1);
  EXPECT_EQ(loop["hops"][1]["to_rank"], 0);
  EXPECT_EQ(loop["hops"][1]["bytes_per_token"], 2 * 576);
  EXPECT_EQ(loop["hops"][1]["naive_bytes_per_token"], 2 * 576);
  EXPECT_EQ(loop["held_bytes_per_token"], Json({2 * 576, 2 * 576}));
  for (const Json& rank : loop["ranks"]) {
    EXPECT_EQ(rank["kept_bytes_per_token"], 0) << "a plain residual keeps nothing for later";
    EXPECT_EQ(rank["kept"].size(), 2U);
  }
  const Json v = Inspect({"smollm2-135m", "--stages", "6", "--chunks", "2", "--placement", "v"});
  EXPECT_EQ(v["hops"].size(), 4U) << "the turn stays on its rank";
}

// Eight stages of one layer and block each: rank r of four has blocks 1 to r + 1 when its first
// stage is done, and everything in front of its second stage when that begins.
TEST(Inspect, RanksSayWhatTheyHoldAndWhatTheyKeepBetweenTheirStages) {
  const testing::TemporaryFolder folder;
  Json config = ReadJsonFile(PENSTOCK_SOURCE_DIR "/configs/models/llama-3.1-8b.json").value();
  config["num_hidden_layers"] = 8;
  config["attention_residuals"] = {{"residual", "block"}, {"block_size", 2}};
  const std::string path = folder.path() + "/model.json";
  std::ofstream(path) << DumpJson(config);
  const Json loop = Inspect({path, "--stages", "8", "--chunks", "2", "--balance", "layers"});
  for (int r = 0; r < 4; ++r) {
    const Json& rank = loop["ranks"][static_cast<size_t>(r)];
    EXPECT_EQ(rank["stages"], Json({r, r + 4}));
    EXPECT_EQ(rank["held_bytes_per_token"], (r + 5) * 8192);
    EXPECT_EQ(rank["held_at"], Json({{"stage", r + 4}, {"when", "before"}}));
    ASSERT_EQ(rank["kept"].size(), 1U);
    EXPECT_EQ(rank["kept"][0]["from_stage"], r);
    EXPECT_EQ(rank["kept"][0]["to_stage"], r + 4);
    EXPECT_EQ(rank["kept"][0]["values"].size(), static_cast<size_t>(r + 2));
    EXPECT_EQ(rank["kept_bytes_per_token"], (r + 2) * 8192);
    // It begins its second stage with what it kept and what it is sent.
    const Json& hop = loop["hops"][static_cast<size_t>(r + 3)];
    EXPECT_EQ(hop["to_stage"], r + 4);
    EXPECT_EQ(rank["kept_bytes_per_token"].get<int>() + hop["bytes_per_token"].get<int>(),
              rank["held_bytes_per_token"].get<int>());
  }
  const Finished text =
      RunPenstock({"inspect", path, "--stages", "8", "--chunks", "2", "--balance", "layers"});
  EXPECT_NE(text.out.find("kept to the next stage"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("before stage 4"), std::string::npos) << text.out;
}

// Heads and layers that only training has.
TEST(Inspect, TrainingIsCutWithItsFurtherHeads) {
  const testing::TemporaryFolder folder;
  Json config = ReadJsonFile(PENSTOCK_SOURCE_DIR "/configs/models/llama-3.1-8b.json").value();
  config["num_nextn_predict_layers"] = 2;
  config["early_exits"] = {{"layers", {8}}, {"head", "own"}};
  const std::string path = folder.path() + "/model.json";
  std::ofstream(path) << DumpJson(config);
  const Json run = Inspect({path, "--stages", "4"});
  const Json train = Inspect({path, "--stages", "4", "--training"});
  EXPECT_EQ(run["boundaries"].size(), 33U);
  EXPECT_EQ(train["boundaries"].size(), 35U);
  // The last layer's output and the first further layer's go to the head.
  EXPECT_EQ(train["boundaries"][33]["values"].size(), 2U);
  EXPECT_GT(train["parameters"].get<int64_t>(),
            run["parameters"].get<int64_t>() + int64_t{4096} * 128256);
  EXPECT_EQ(run["stages"][3]["last_layer"], 33);
  EXPECT_EQ(train["stages"][3]["last_layer"], 35);
}

TEST(Inspect, CutsSayWhatCrossesAndWhereLessWould) {
  const testing::TemporaryFolder folder;
  Json config = ReadJsonFile(PENSTOCK_SOURCE_DIR "/configs/models/llama-3.1-8b.json").value();
  config["attention_residuals"] = {{"residual", "block"}, {"block_size", 8}};
  const std::string path = folder.path() + "/model.json";
  std::ofstream(path) << DumpJson(config);
  const Json json = Inspect({path, "--cut", "9,18,27"});
  ASSERT_EQ(json["cuts"].size(), 3U);
  EXPECT_EQ(json["cuts"][0]["values"], Json({"embedding", "block.1", "block.2"}));
  EXPECT_EQ(json["cuts"][1]["bytes_per_token"], 6 * 8192);
  const Json& elsewhere = json["cuts"][1]["elsewhere"];
  EXPECT_EQ(elsewhere["layer"], 17);  // the end of a block
  EXPECT_EQ(elsewhere["bytes_per_token"], 5 * 8192);
  EXPECT_NEAR(elsewhere["heavier"].get<double>(), 1.0 / 9, 0.01);
  EXPECT_TRUE(json["crossing_saved"].is_null()) << "the cut was given";
  const testing::Finished text = RunPenstock({"inspect", path, "--cut", "9,18,27"});
  EXPECT_NE(text.out.find("less crosses before"), std::string::npos) << text.out;
  EXPECT_EQ(RunPenstock({"inspect", "llama-3.1-8b", "--stages", "4"}).out.find("less crosses"),
            std::string::npos);
  // Many cuts are nearly as even, and one that stands at ends of blocks sends less.
  config["num_hidden_layers"] = 120;
  config["vocab_size"] = 1000;
  std::ofstream(path) << DumpJson(config);
  const Json deep = Inspect({path, "--stages", "9"});
  ASSERT_TRUE(deep["crossing_saved"].is_object());
  EXPECT_GE(deep["crossing_saved"]["bytes_per_token"].get<double>(), 8192);
  EXPECT_LE(deep["crossing_saved"]["heavier"].get<double>(), 0.01);
  EXPECT_EQ(deep["crossing_saved"]["cut_by_work"].size(), 8U);
}

TEST(Inspect, FilesAreCountedAsStored) {
  const std::string models = PENSTOCK_SOURCE_DIR "/tests/golden/models/";
  const Json gguf = Inspect({models + "gguf/llama3.gguf"});
  const Json folder = Inspect({models + "llama3"});
  EXPECT_EQ(gguf["family"], "llama");
  EXPECT_GT(gguf["weights_bytes"].get<int64_t>(), gguf["parameters"].get<int64_t>());
  EXPECT_GE(folder["weights_bytes"].get<int64_t>(), 2 * folder["parameters"].get<int64_t>());
}

TEST(Inspect, MistakesExitWithTwoAndSayWhatIsLegal) {
  const struct {
    std::vector<std::string> arguments;
    const char* message;
  } cases[] = {
      {{"no-such-model"}, "smollm2-135m"},
      {{"smollm-135m"}, "smollm2-135m?"},
      {{"/nowhere/model.gguf"}, "no such file"},
      {{"smollm2-135m", "--stages", "33"}, "wanted 1 to 32"},
      {{"smollm2-135m", "--stages", "0"}, "wanted 1 to 32"},
      {{"smollm2-135m", "--stages", "x"}, "--stages"},
      {{"smollm2-135m", "--cut", "20,10"}, "wanted 20 to 31"},
      {{"smollm2-135m", "--cut", "20,10"}, "the nearest legal cut is 10,20"},
      {{"smollm2-135m", "--cut", "0"}, "wanted 1 to 31"},
      {{"smollm2-135m", "--cut", "3,40"}, "the nearest legal cut is 3,31"},
      {{"smollm2-135m", "--stages", "4", "--cut", "10,20"}, "the nearest legal cut is 10,20,26"},
      {{"smollm2-135m", "--cut", "10,"}, "commas"},
      {{"smollm2-135m", "--stages", "2", "--cut", "10,20"}, "--cut"},
      {{"smollm2-135m", "--stages", "4", "--chunks", "3"}, "--chunks"},
      {{"smollm2-135m", "--stages", "6", "--chunks", "3", "--placement", "v"}, "2 chunks"},
      {{"smollm2-135m", "--stages", "4", "--placement", "v"}, "--chunks"},
      {{"smollm2-135m", "--stages", "4", "--balance", "luck"}, "time, memory or layers"},
      {{}, "MODEL"},
  };

  for (const auto& bad : cases) {
    std::vector<std::string> command = {"inspect"};
    command.insert(command.end(), bad.arguments.begin(), bad.arguments.end());
    const Finished run = RunPenstock(command);
    EXPECT_EQ(run.status, 2) << testing::Describe(command);
    EXPECT_TRUE(run.out.empty()) << run.out;
    EXPECT_NE(run.err.find(bad.message), std::string::npos) << run.err;
  }
}

TEST(Inspect, ABareConfigIsEnough) {
  const testing::TemporaryFolder folder;
  const std::string path = folder.path() + "/config.json";
  std::ofstream(path) << R"({"model_type":"llama","hidden_size":32,"intermediate_size":64,
    "num_hidden_layers":2,"num_attention_heads":4,"vocab_size":96})";
  EXPECT_EQ(Inspect({path})["layers"], 2);
}

}  // namespace
}  // namespace penstock
