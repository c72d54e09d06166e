// penstock plan as a user, a script and a browser see it.

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "support/process.h"

namespace penstock {
namespace {

using testing::Finished;
using testing::RunCommand;
using testing::RunPenstock;
using testing::TemporaryFolder;

struct Asked {
  Json json;
  int status = -1;
  std::string err;
};

Asked Ask(const std::string& model, const std::string& system, int devices,
          std::vector<std::string> more = {}, const std::string& mode = "inference") {
  std::vector<std::string> arguments = {"plan",
                                        "--mode",
                                        mode,
                                        "--model",
                                        model,
                                        "--system",
                                        system,
                                        "--workload",
                                        mode,
                                        "--devices",
                                        std::to_string(devices)};
  arguments.insert(arguments.end(), more.begin(), more.end());
  arguments.emplace_back("--json");
  const Finished run = RunPenstock(arguments);
  Asked asked{Json::object(), run.status, run.err};
  if (auto json = ParseJson(run.out, "output"); json.ok()) {
    asked.json = std::move(json).value();
  }
  return asked;
}

TEST(Plan, WhatFitsWhere) {
  const struct {
    const char* model;
    const char* system;
    int devices;
    const char* precision;
    bool fits;
  } cases[] = {{"llama-3.1-405b", "dgx-h100", 8, "bf16", false},
               {"llama-3.1-405b", "dgx-h200", 8, "bf16", true},
               {"llama-3.1-405b", "dgx-h100", 8, "fp8", true},
               {"deepseek-v3", "dgx-h100", 8, "fp8", false},
               {"deepseek-v3", "dgx-h200", 8, "fp8", true},
               {"mixtral-8x7b", "rtx-4090", 2, "bf16", false},
               {"llama-3.1-8b", "rtx-4090", 1, "bf16", true}};

  for (const auto& c : cases) {
    const Asked asked = Ask(c.model, c.system, c.devices,
                            {"-W", std::string("precision=") + c.precision, "-W", "sequences=4"});
    EXPECT_EQ(asked.status, c.fits ? 0 : 1) << c.model << " on " << c.system << asked.err;
    EXPECT_EQ(!asked.json["plans"].empty(), c.fits) << c.model << " on " << c.system;
    if (!c.fits) {
      EXPECT_TRUE(asked.json["verdict"]["best"].is_null());
      EXPECT_NE(asked.json["rejected"][0]["why"].get<std::string>().find("memory"),
                std::string::npos);
    }
    for (const Json& plan : asked.json["plans"]) {
      EXPECT_LE(plan["memory"]["peak_bytes"], plan["memory"]["capacity_bytes"]);
    }
  }
}

TEST(Plan, WhatDoesNotFitSaysWhatWould) {
  const Asked asked = Ask("deepseek-v3", "dgx-h200", 8);
  EXPECT_EQ(asked.status, 1);
  const std::string lines = asked.json["verdict"]["explanation"].dump();
  EXPECT_NE(lines.find("With fp8 weights (-W precision=fp8) it fits"), std::string::npos) << lines;
  const size_t at = lines.find(" devices of this kind it fits");
  ASSERT_NE(at, std::string::npos) << lines;
  const int needed = std::stoi(lines.substr(lines.rfind(' ', at - 1) + 1));
  EXPECT_EQ(Ask("deepseek-v3", "dgx-h200", needed).status, 0);
  EXPECT_EQ(Ask("deepseek-v3", "dgx-h200", needed - 1).status, 1);
}

TEST(Plan, BadInputIsStatusTwoWithTheNearestRightThing) {
  const Asked name = Ask("llama-3.1-7b", "dgx-h100", 8);
  EXPECT_EQ(name.status, 2);
  EXPECT_NE(name.err.find("llama-3.1-8b"), std::string::npos) << name.err;
  const Asked key = Ask("llama-3.1-8b", "dgx-h100", 8, {"-W", "prompt_token=3"});
  EXPECT_EQ(key.status, 2);
  EXPECT_NE(key.err.find("'prompt_tokens'?"), std::string::npos) << key.err;
  const Asked bare = Ask("llama-3.1-8b", "dgx-h100", 8, {"-W", "training"});
  EXPECT_EQ(bare.status, 2);
  EXPECT_NE(bare.err.find("-W training: wanted key=value; a workload by name is --workload"),
            std::string::npos)
      << bare.err;
  const Asked layers =
      Ask("deepseek-v3", "dgx-h100", 64, {"--fix", "tp=8,pp=8,layers=7/8/8/8/8/8/8/5"}, "training");
  EXPECT_EQ(layers.status, 2);
  EXPECT_NE(layers.err.find("60 layers"), std::string::npos) << layers.err;
  EXPECT_EQ(Ask("llama-3.1-8b", "dgx-h100", 8, {"--fix", "tp=nine"}).status, 2);
  const Asked launch = Ask("llama-3.1-8b", "dgx-h100", 8, {"--emit", "vllm"});
  EXPECT_EQ(launch.status, 0) << launch.err;
  EXPECT_EQ(launch.json["emit"], "vllm");
  EXPECT_NE(launch.json["launch"].get<std::string>().find("vllm serve"), std::string::npos);
  const Asked twice = Ask("llama-3.1-8b", "dgx-h100", 8, {"--fix", "pp=8,pp=4"});
  EXPECT_EQ(twice.status, 2);
  EXPECT_NE(twice.err.find("'pp' stands there twice"), std::string::npos) << twice.err;
  EXPECT_EQ(Ask("llama-3.1-8b", "dgx-h100", 8, {"-W", "="}).status, 2);
  TemporaryFolder folder;
  const std::string file = folder.path() + "/system.toml";
  std::ofstream(file) << "[device]\nname = \"x\"\nmemory_bytes = \"80 GB\"\n";
  const Asked system = Ask("llama-3.1-8b", file, 8);
  EXPECT_EQ(system.status, 2);
  EXPECT_NE(system.err.find("system.toml:3: device.memory_bytes"), std::string::npos) << system.err;
}

// As in TOML: the line, and the key that was meant.
TEST(Plan, AModelsConfigurationIsRefusedWithFileLineAndKey) {
  TemporaryFolder folder;
  const std::string path = folder.path() + "/model.json";
  const auto refused = [&](const std::string& line) {
    std::ofstream(path) << "{\n  \"model_type\": \"llama\",\n  \"hidden_size\": 4096,\n"
                        << line
                        << "  \"intermediate_size\": 14336,\n  \"num_attention_heads\": 32,\n"
                           "  \"vocab_size\": 32000\n}\n";
    const Asked asked = Ask(path, "dgx-h100", 8);
    EXPECT_EQ(asked.status, 2) << line;
    return asked.err;
  };
  const auto has = [](const std::string& text, const std::string& words) {
    EXPECT_NE(text.find(words), std::string::npos) << words << "\nin: " << text;
  };
  has(refused("  \"num_hidden_layers\": -3,\n"), "model.json:4: num_hidden_layers: got -3");
  has(refused("  \"num_hidden_layers\": \"32 layers\",\n"),
      "model.json:4: num_hidden_layers: got \"32 layers\"");
  const std::string typo = refused("  \"num_hiden_layers\": 32,\n");
  has(typo, "model.json:4: num_hiden_layers: unknown key");
  has(typo, "Did you mean 'num_hidden_layers'?");
  const std::string silent =
      refused("  \"num_hidden_layers\": 32,\n  \"num_key_value_head\": 8,\n");
  has(silent, "model.json:5: num_key_value_head: unknown key");
  has(silent, "Did you mean 'num_key_value_heads'?");
}

// What others' pipelines cannot hand on is not left out in silence, and the schedule has it.
TEST(Plan, LaunchersThatCannotHandOnLongValuesRefuseWithTheirList) {
  TemporaryFolder folder;
  Json config = ReadJsonFile(PENSTOCK_SOURCE_DIR "/configs/models/llama-3.1-8b.json").value();
  config["num_hidden_layers"] = 8;
  const std::string path = folder.path() + "/model.json";
  const std::string file = folder.path() + "/plan.schedule";
  const auto ask = [&](const char* target, const std::string& fix) {
    std::ofstream(path) << DumpJson(config);
    return Ask(path, "dgx-h100", 4,
               {"--fix", "dp=1,tp=1,schedule=1f1b," + fix, "-W", "global_batch=8", "--emit", target,
                "--emit-schedule", file},
               "training");
  };
  EXPECT_EQ(ask("megatron", "pp=4").status, 0);
  config["skip_connections"] = {{0, 7}, {1, 6}};
  const Asked skips = ask("megatron", "pp=4");
  EXPECT_EQ(skips.status, 2);
  EXPECT_NE(skips.err.find("2 values that later stages read: 'hidden/0' 0 -> "), std::string::npos)
      << skips.err;
  EXPECT_NE(skips.err.find("--emit penstock"), std::string::npos);
  EXPECT_EQ(ask("penstock", "pp=4").status, 0);
  const std::string text = ReadFile(file).value();
  EXPECT_NE(text.find("edge hidden/0 value 0 -> "), std::string::npos) << text;
  EXPECT_EQ(RunPenstock({"check", file}).status, 0);
  const Finished csv = RunPenstock({"schedule", file, "--format", "csv"});
  EXPECT_EQ(csv.status, 2);
  EXPECT_NE(csv.err.find("edge 'hidden/0' 0 -> "), std::string::npos) << csv.err;
  config.erase("skip_connections");
  config["hyper_connections"] = {{"streams", 2}, {"mode", "static"}};
  const Asked streams = ask("megatron", "pp=4");
  EXPECT_EQ(streams.status, 2);
  EXPECT_NE(streams.err.find("hands 4096 numbers per token from stage to stage, but 8192 cross"),
            std::string::npos)
      << streams.err;
}

TEST(Plan, WindowedLayersKeepTheirWindow) {
  const Asked asked = Ask("gpt-oss-120b", "dgx-h200", 1,
                          {"--fix", "tp=1,pp=1", "-W", "sequences=1", "-W", "prompt_tokens=100000",
                           "-W", "output_tokens=1000", "-W", "precision=fp8"});
  ASSERT_EQ(asked.status, 0) << asked.err;
  const double kv = asked.json["plans"][0]["memory"]["kv_bytes"].get<double>();
  EXPECT_NEAR(kv / (18 * 2048.0 * (101000 + 128)), 1, 0.01);
}

TEST(Plan, FixedPartsThatNeedMoreDevicesAreRejectedWithTheirNumber) {
  for (const std::string mode : {"inference", "training"}) {
    const Asked many = Ask("llama-3.1-8b", "dgx-h100", 4, {"--fix", "pp=9"}, mode);
    EXPECT_EQ(many.status, 1);
    ASSERT_FALSE(many.json["rejected"].empty()) << mode;
    EXPECT_EQ(many.json["rejected"][0]["why"], "needs 9 devices of 4");
  }
}

// A reader adds the parts of the busiest device with pencil and paper.
TEST(Plan, ThePartsOfTheBusiestDeviceAddUpToItsTime) {
  const Asked serve = Ask("llama-3.1-70b", "dgx-h100", 8);
  for (const Json& p : serve.json["plans"]) {
    const double parts = p["operations_s"].get<double>() + p["start_s"].get<double>() +
                         p["exposed_s"].get<double>() + p["bubble_s"].get<double>();
    EXPECT_NEAR(parts / p["step_s"].get<double>(), 1, 1e-9) << p["arithmetic"].dump();
    EXPECT_GE(p["operations_s"].get<double>() * (1 + 1e-9),
              std::max(p["compute_s"].get<double>(), p["memory_s"].get<double>()));
  }
  const Asked train = Ask("llama-3.1-70b", "dgx-h100", 64, {}, "training");
  ASSERT_FALSE(train.json["plans"].empty()) << train.err;
  for (const Json& p : train.json["plans"]) {
    double busiest = 0;
    for (const Json& rank : p["stage_s"]) {
      busiest = std::max(busiest, rank.get<double>());
    }
    const double parts =
        p["operations_s"].get<double>() + p["start_s"].get<double>() + p["exposed_s"].get<double>();
    EXPECT_NEAR(parts / (busiest * p["micro_batches"].get<double>()), 1, 1e-9)
        << p["arithmetic"].dump();
  }
}

// The value of the first data attribute of this name in the rendered page.
std::string DataOf(const std::string& dom, const std::string& name) {
  const size_t at = dom.find("data-" + name + "=\"");
  if (at == std::string::npos) {
    return "";
  }
  const size_t from = at + name.size() + 7;
  return dom.substr(from, dom.find('"', from) - from);
}

TEST(Plan, ABrowserShowsTheVerdictTheStagesAndTheCapacityLineOfThePage) {
  if (RunCommand({"chromium", "--version"}).status != 0) {
    GTEST_SKIP() << "chromium is not installed";
  }
  TemporaryFolder folder;
  const std::string page = folder.path() + "/plan.html";
  const Asked asked =
      Ask("llama-3.1-405b", "dgx-h100", 16, {"-W", "sequences=256", "--html", page});
  ASSERT_EQ(asked.status, 0) << asked.err;
  const auto text = ReadFile(page);
  ASSERT_TRUE(text.ok());
  EXPECT_LT(text->size(), size_t{2} << 20);
  EXPECT_EQ(text->find("src=\"http"), std::string::npos);
  EXPECT_EQ(text->find("href="), std::string::npos);
  const Finished dom =
      RunCommand({"chromium", "--headless=new", "--no-sandbox", "--disable-gpu",
                  "--user-data-dir=" + folder.path() + "/profile", "--dump-dom", "file://" + page});
  ASSERT_EQ(dom.status, 0) << dom.err.substr(0, 400);
  EXPECT_EQ(DataOf(dom.out, "verdict"), "pipeline");
  EXPECT_EQ(DataOf(dom.out, "stages"),
            std::to_string(asked.json["verdict"]["best"]["pp"].get<int>()));
  EXPECT_EQ(DataOf(dom.out, "capacity-bytes"),
            std::to_string(asked.json["plans"][0]["memory"]["capacity_bytes"].get<int64_t>()));
  EXPECT_NE(dom.out.find("usable 82.52 GB"), std::string::npos);
  for (const char* plot : {"memory", "step", "pareto", "timeline"}) {
    EXPECT_NE(dom.out.find(std::string("data-plot=\"") + plot + "\""), std::string::npos) << plot;
  }
}

}  // namespace
}  // namespace penstock
