// penstock schedule and penstock check as a user and a script see them.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "support/process.h"
#include "text/utf8.h"

namespace penstock {
namespace {

using testing::Finished;
using testing::RunPenstock;

std::string Write(const testing::TemporaryFolder& folder, const std::string& name,
                  const std::string& text) {
  const std::string path = folder.path() + "/" + name;
  EXPECT_TRUE(WriteFileAtomically(path, text).ok());
  return path;
}

Json ParseOutput(const Finished& run) {
  auto json = ParseJson(run.out, "output");
  EXPECT_TRUE(json.ok()) << run.out << run.err;
  return json.ok() ? std::move(json).value() : Json::object();
}

TEST(ScheduleVerb, ConvertsBetweenItsFormsWithoutLoss) {
  const testing::TemporaryFolder folder;
  for (const char* dialect : {"bw", "plain", "wait"}) {
    const std::string csv = folder.path() + "/x.csv";
    const Finished made = RunPenstock({"schedule", "zb-v", "-p", "3", "-m", "5", "--format", "csv",
                                       "--dialect", dialect, "-o", csv});
    ASSERT_EQ(made.status, 0) << made.err;
    const Finished again = RunPenstock({"schedule", csv, "--format", "csv", "--dialect", dialect});
    ASSERT_EQ(again.status, 0) << again.err;
    EXPECT_EQ(again.out, ReadFile(csv).value());
    const std::string native = folder.path() + "/x.schedule";
    ASSERT_EQ(RunPenstock({"schedule", csv, "-o", native}).status, 0);
    const Finished back =
        RunPenstock({"schedule", native, "--format", "csv", "--dialect", dialect});
    EXPECT_EQ(back.out, ReadFile(csv).value());
  }
}

TEST(ScheduleVerb, NonsenseEndsWithStatusTwoAtOnce) {
  const std::vector<std::vector<std::string>> cases = {
      {"interleaved-1f1b", "-p", "0", "-m", "4"},
      {"interleaved-1f1b", "-p", "4", "-m", "0"},
      {"interleaved-1f1b", "-p", "-1", "-m", "4"},
      {"interleaved-1f1b", "-p", "4", "-m", "8", "-v", "0"},
      {"interleaved-1f1b", "-p", "4"},
      {"interleaved-1f1b", "-p", "4", "-m", "x"},
      {"interleaved-1f1b", "-p", "1000000000", "-m", "1000000000"},
      {"interleaved-1f1b", "-p", "99999999999999999999", "-m", "1"},
      {"1f1b", "-p", "4", "-m", "8", "-v", "2"},
      {"1f1b", "-p", "4", "-m", "8", "--steps", "2000000000"},
      {"1f1b", "-p", "4", "-m", "8", "--format", "pdf"},
      {"1f1b", "-p", "4", "-m", "8", "--format", "csv", "--dialect", "old"},
      {"1f1b", "-p", "4", "-m", "8", "--dialect", "bw"},
      {"1f1b", "-p", "4", "-m", "8", "--rendezvous"},
      {"1f1b", "-p", "4", "-m", "8", "--credits", "2"},
      {"1f1b", "-p", "4", "-m", "8", "--from", "3"},
      {"sliced-1f1b", "-p", "4", "-m", "8", "--format", "csv"},
      {"no-such-schedule", "-p", "4", "-m", "8"},
      {"no/such/file"},
      {},
      {"--layout", "Et|L", "-p", "3"},
      {"--layout", "E(t|)L", "-p", "2"},
      {"--layout", "Et|L"},
  };
  for (std::vector<std::string> arguments : cases) {
    arguments.insert(arguments.begin(), "schedule");
    const Finished run = RunPenstock(arguments);
    EXPECT_EQ(run.status, 2) << testing::Describe(arguments) << "\n" << run.out << run.err;
    EXPECT_FALSE(run.err.empty());
    EXPECT_EQ(run.out, "");
  }
}

TEST(ScheduleVerb, ListsItsGeneratorsAndReadsLayouts) {
  const Json list = ParseOutput(RunPenstock({"schedule", "--list", "--json"}));
  EXPECT_EQ(list["schedules"].size(), 17U);
  const Json layout =
      ParseOutput(RunPenstock({"schedule", "--layout", "Et*3|(tt|)*29,m|L", "-p", "16", "--json"}));
  ASSERT_EQ(layout["stages"].size(), 32U);
  EXPECT_EQ(layout["stages"][0]["embedding"], true);
  EXPECT_EQ(layout["stages"][0]["decoder_layers"], Json::array({0, 1, 2}));
  EXPECT_EQ(layout["stages"][30]["mtp_layers"], 1);
  EXPECT_EQ(layout["stages"][30]["rank"], 14);
  EXPECT_EQ(layout["stages"][31]["loss"], true);
  EXPECT_EQ(layout["stages"][31]["chunk"], 1);
  // Legal as a layout, but Megatron does not run it.
  const Finished early = RunPenstock({"schedule", "--layout", "Et|tm||L", "-p", "2", "--json"});
  EXPECT_EQ(early.status, 0);
  EXPECT_NE(early.err.find("m in chunk 0 of rank 1"), std::string::npos) << early.err;
}

TEST(CheckVerb, LegalFilesGiveStatusZeroAndTheirFigures) {
  const testing::TemporaryFolder folder;
  const std::string file = folder.path() + "/s";
  ASSERT_EQ(RunPenstock({"schedule", "1f1b", "-p", "4", "-m", "8", "--lowered", "-o", file}).status,
            0);
  const Finished run = RunPenstock({"check", file, "-p", "4", "--json"});
  EXPECT_EQ(run.status, 0) << run.err;
  const Json json = ParseOutput(run);
  EXPECT_EQ(json["ok"], true);
  EXPECT_EQ(json["dialect"], "native");
  EXPECT_EQ(json["p"], 4);
  EXPECT_EQ(json["stages"], 4);
  EXPECT_EQ(json["m"], 8);
  EXPECT_EQ(json["v"], 1);
  EXPECT_EQ(json["lowered"], true);
  EXPECT_EQ(json["peak_activations"], Json::array({4.0, 3.0, 2.0, 1.0}));
  EXPECT_EQ(json["errors"], Json::array());
  EXPECT_GT(json["makespan_slots"], 0);
  EXPECT_EQ(RunPenstock({"check", file, "--activation-limit", "4,3,2,1"}).status, 0);
  EXPECT_EQ(RunPenstock({"check", file, "--activation-limit", "3.5"}).status, 1);
  EXPECT_EQ(RunPenstock({"check", file, "-p", "3"}).status, 1);
  EXPECT_EQ(RunPenstock({"check", file, "--transport", "rendezvous"}).status, 1);
  EXPECT_EQ(RunPenstock({"check", file, "--transport", "posted"}).status, 0);
}

// A lowered file gets another order of its messages; both are told apart by what check says.
TEST(CheckVerb, SaysWhetherALoweredFileRunsUnderRendezvousToo) {
  const testing::TemporaryFolder folder;
  const std::string file = folder.path() + "/s";
  const std::string meets = folder.path() + "/meets";
  ASSERT_EQ(RunPenstock({"schedule", "1f1b", "-p", "4", "-m", "8", "--lowered", "-o", file}).status,
            0);
  ASSERT_EQ(RunPenstock({"schedule", file, "--lowered", "--rendezvous", "-o", meets}).status, 0);
  EXPECT_EQ(RunPenstock({"check", file, "--transport", "rendezvous"}).status, 1);
  EXPECT_EQ(RunPenstock({"check", meets, "--transport", "rendezvous"}).status, 0);
  EXPECT_NE(RunPenstock({"check", file}).out.find("would stand still under rendezvous"),
            std::string::npos);
  EXPECT_NE(RunPenstock({"check", meets}).out.find("nor under rendezvous"), std::string::npos);
  EXPECT_EQ(ParseOutput(RunPenstock({"check", file, "--json"}))["rendezvous"], false);
  EXPECT_EQ(ParseOutput(RunPenstock({"check", meets, "--json"}))["rendezvous"], true);
}

TEST(CheckVerb, RefusalsNameThePlaceAndShowTheGrid) {
  const testing::TemporaryFolder folder;
  const std::string file = Write(folder, "bad.csv", "0F0,0F1,0B0,0B1\n1F0,1B0,1B1,1F1\n");
  const Finished run = RunPenstock({"check", file, "--json"});
  EXPECT_EQ(run.status, 1);
  const Json error = ParseOutput(run)["errors"][0];
  EXPECT_EQ(error["kind"], "order");
  EXPECT_EQ(error["rank"], 1);
  EXPECT_EQ(error["position"], 2);
  EXPECT_EQ(error["action"], "1B1");
  EXPECT_NE(run.err.find("[1B1]"), std::string::npos) << run.err;
}

TEST(CheckVerb, FilesThatCannotBeReadGiveStatusTwoWithRowAndColumn) {
  const testing::TemporaryFolder folder;
  const std::string file = Write(folder, "bad.csv", "0F0,0B0\n1F0,1F0junk\n");
  const Finished run = RunPenstock({"check", file, "--json"});
  EXPECT_EQ(run.status, 2);
  EXPECT_NE(run.err.find("bad.csv:2:2"), std::string::npos) << run.err;
  const Json json = ParseOutput(run);
  EXPECT_EQ(json["ok"], false);
  EXPECT_EQ(json["errors"][0]["kind"], "parse");
  EXPECT_EQ(json["errors"][0]["rank"], 1);
  EXPECT_EQ(json["errors"][0]["position"], 1);
  const std::string native =
      Write(folder, "bad", "penstock-schedule 1\nranks 1\nmicro-batches 1\nrank 0\n  0F0 0X0\n");
  const Finished words = RunPenstock({"check", native, "--json"});
  EXPECT_EQ(words.status, 2);
  const Json error = ParseOutput(words)["errors"][0];
  EXPECT_EQ(error["row"], 5);
  EXPECT_EQ(error["column"], 7);
  EXPECT_TRUE(error["rank"].is_null());  // a line of this form is no rank
  EXPECT_TRUE(error["position"].is_null());
  EXPECT_EQ(RunPenstock({"check", folder.path() + "/none"}).status, 2);
  EXPECT_EQ(RunPenstock({"check"}).status, 2);
  const std::string good = Write(folder, "good.csv", "0F0,0B0\n");
  for (const std::vector<std::string>& flags :
       std::vector<std::vector<std::string>>{{"--transport", "pigeon"},
                                             {"--credits", "0"},
                                             {"--activation-limit", "x"},
                                             {"--activation-limit", "1,2"},
                                             {"--activation-limit", "1,"},
                                             {"-p", "0"},
                                             {"--costs", "none.toml"}}) {
    std::vector<std::string> arguments = {"check", good};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    EXPECT_EQ(RunPenstock(arguments).status, 2) << testing::Describe(arguments);
  }
}

// What a refusal quotes of a file can't speak to the terminal, nor break a log that wants UTF-8.
TEST(CheckVerb, RefusalsOfFilesThatAreNoTextAreText) {
  const testing::TemporaryFolder folder;
  for (const char* cell : {"0F\xff", "0F\xc3", "0F\x1b[31m", "0F\xc2\x9b", "0F\xf0\x9f\x98"}) {
    const Finished run = RunPenstock({"check", Write(folder, "bad.csv", cell), "--json"});
    EXPECT_EQ(run.status, 2);
    EXPECT_NE(run.err.find("bad.csv:1:1"), std::string::npos) << run.err;
    EXPECT_EQ(text::FindIllFormed(run.err, 0), run.err.size()) << run.err;
    EXPECT_EQ(run.err.find('\x1b'), std::string::npos);
    EXPECT_EQ(run.err.find("\xc2\x9b"), std::string::npos);
    EXPECT_EQ(ParseOutput(run)["errors"][0]["kind"], "parse");
  }
}

TEST(CheckVerb, ActivationsAreCountedInBytesUnderACostsFile) {
  const testing::TemporaryFolder folder;
  const std::string costs = Write(folder, "c.toml",
                                  "memory_bytes = 250\n[[stage]]\nf_s = 1\ni_s = 1\nw_s = 1\n"
                                  "activation_bytes = 100\n[[stage]]\nf_s = 1\ni_s = 1\nw_s = 1\n"
                                  "activation_bytes = 260\n");
  const std::string file = folder.path() + "/s";
  ASSERT_EQ(RunPenstock({"schedule", "1f1b", "-p", "2", "-m", "4", "-o", file}).status, 0);
  const Finished run = RunPenstock({"check", file, "--costs", costs, "--json"});
  EXPECT_EQ(run.status, 1) << run.err;
  const Json json = ParseOutput(run);
  EXPECT_EQ(json["peak_bytes"], Json::array({200.0, 260.0}));
  ASSERT_EQ(json["errors"].size(), 1U);
  EXPECT_EQ(json["errors"][0]["kind"], "memory");
  EXPECT_EQ(json["errors"][0]["rank"], 1);
  EXPECT_EQ(RunPenstock({"check", file, "--costs", costs, "--activation-limit", "260"}).status, 0);
}

}  // namespace
}  // namespace penstock
