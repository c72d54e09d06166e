#include "plan/crossing.h"

#include <gtest/gtest.h>

#include "base/config_path.h"
#include "base/json.h"
#include "model/config.h"
#include "plan/search.h"
#include "plan/verdict.h"

namespace penstock::plan {
namespace {

struct Question {
  // Serving: one sequence, so that no other group's work hides the hops.
  Question(const std::string& keys, const std::string& mode, const std::string& fix)
      : system(hw::ReadSystem("dgx-h100").value()),
        workload(ReadWorkload(mode, mode,
                              mode == "inference" ? std::vector<std::string>{"sequences=1"}
                                                  : std::vector<std::string>{})
                     .value()) {
    Json config = ReadJsonFile(FindConfig("models", "json", "llama-3.1-8b").value()).value();
    config.update(ParseJson(keys, "test").value());
    const auto built = model::BuildModel(config, "test");
    EXPECT_TRUE(built.ok()) << (built.ok() ? "" : built.error().message);
    model = cost::BuildProfile(built->graph, "test", "llama").value();
    SearchOptions options;
    options.devices = 16;
    options.fixed = ParseFixed(fix, model.decoder_layers()).value();
    const Context context{&model, &system, &workload};
    verdict = Judge(context, options, Search(context, options).value());
  }

  cost::ModelProfile model;
  hw::System system;
  Workload workload;
  Verdict verdict;
};

constexpr const char* kBlocks =
    R"({"attention_residuals":{"residual":"block","block_size":8,"key_norm_weight":true}})";

TEST(Crossing, ThePlainModelHasNoSuchCost) {
  EXPECT_FALSE(Question("{}", "training", "pp=4,tp=1").verdict.crossing.has_value());
  EXPECT_FALSE(Question(kBlocks, "training", "pp=1").verdict.crossing.has_value());
  EXPECT_EQ(Question(R"({"use_parallel_residual":true})", "training", "pp=4").model.long_values,
            "");
}

TEST(Crossing, AttentionResidualsCostMoreOverSlowLinksThanInsideTheRack) {
  for (const char* mode : {"training", "inference"}) {
    const Question q(kBlocks, mode, "pp=4,tp=1,dp=1,layers=8/8/8/8");
    ASSERT_TRUE(q.verdict.crossing.has_value()) << mode;
    const CrossingCost& cost = *q.verdict.crossing;
    EXPECT_EQ(cost.what, "attention residuals");
    EXPECT_EQ(cost.stages, 4);
    // Before layers 8, 16 and 24 of blocks of 4: the embedding and 2, 4 and 6 blocks.
    EXPECT_EQ(cost.largest_hop_bytes, 7 * 8192);
    EXPECT_EQ(cost.extra_hop_bytes, (2 + 4 + 6) * 8192);
    EXPECT_EQ(cost.held_bytes, 6 * 8192);
    EXPECT_GT(cost.rank_bytes, 0);
    ASSERT_EQ(cost.links.size(), q.system.links.size());
    EXPECT_GT(cost.links.back().slowdown(), cost.links.front().slowdown()) << mode;
    EXPECT_GE(cost.links.front().slowdown(), 0);
    for (const CrossingOverLink& link : cost.links) {
      EXPECT_GT(link.plain_s, 0);
    }
    EXPECT_NE(q.verdict.lines.end(),
              std::find(q.verdict.lines.begin(), q.verdict.lines.end(), CrossingText(cost)));
  }
}

TEST(Crossing, MoreStreamsCostMore) {
  double before = 0;
  for (const char* keys : {R"({"hyper_connections":{"streams":2,"mode":"static"}})",
                           R"({"hyper_connections":{"streams":8,"mode":"static"}})"}) {
    const Question q(keys, "inference", "pp=4,tp=1,dp=1");
    ASSERT_TRUE(q.verdict.crossing.has_value());
    EXPECT_EQ(q.verdict.crossing->what, "residual streams");
    EXPECT_GT(q.verdict.crossing->links.back().slowdown(), before);
    before = q.verdict.crossing->links.back().slowdown();
  }
}

TEST(Crossing, TheTextNamesLinksFromTheSlowest) {
  CrossingCost cost;
  cost.what = "attention residuals";
  cost.held_bytes = 57344;
  cost.rank_bytes = 1.2e9;
  cost.links = {{"NVLink", 450e9, 1.00024, 1}, {"InfiniBand", 50e9, 1.031, 1}};
  EXPECT_EQ(CrossingText(cost),
            "Attention residuals cost this pipeline 3.1 % of step time at 400 Gbit/s (InfiniBand), "
            "0.02 % at 3.6 Tbit/s (NVLink): up to 57.34 kB per token and hop beyond a plain "
            "residual, and 1.20 GB more on a rank.");
  cost.plain_cut_bytes = 8192;
  EXPECT_NE(CrossingText(cost).find("by work alone it would send 8.19 kB more per token"),
            std::string::npos);
}

}  // namespace
}  // namespace penstock::plan
