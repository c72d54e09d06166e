#include "cost/cost_model.h"

#include <gtest/gtest.h>

namespace penstock::cost {
namespace {

using schedule::OpKind;
using schedule::Placement;
using schedule::Schedule;

Schedule WithStages(int ranks, int chunks) {
  Schedule schedule;
  schedule.placement = Placement::Loop(ranks, chunks);
  schedule.micro_batches = 4;
  schedule.ranks.resize(static_cast<size_t>(ranks));
  return schedule;
}

TEST(ParseUniformCost, ReadsLettersInAnyOrderAndKeepsDefaults) {
  const auto cost = ParseUniformCost("W=0.5,F=2,C=.25");
  ASSERT_TRUE(cost.ok()) << cost.error().message;
  EXPECT_EQ(cost->f_s, 2);
  EXPECT_EQ(cost->i_s, 1);
  EXPECT_EQ(cost->w_s, 0.5);
  EXPECT_EQ(cost->c_s, 0.25);
}

TEST(ParseUniformCost, SplitsAFullBackwardEvenly) {
  const auto cost = ParseUniformCost("F=1,B=3");
  ASSERT_TRUE(cost.ok());
  EXPECT_EQ(cost->i_s, 1.5);
  EXPECT_EQ(cost->w_s, 1.5);
}

TEST(ParseUniformCost, RefusesWhatItCannotMean) {
  for (const char* text : {"", "F", "F=", "F=1,", "F=-1", "F=nan", "F=inf", "X=1", "F=1,F=2",
                           "B=1,I=1", "F=1x", "f=1", "F=1;I=1", "F= 1", "F=1e10"}) {
    const auto cost = ParseUniformCost(text);
    ASSERT_FALSE(cost.ok()) << text;
    EXPECT_EQ(cost.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(cost.error().message.find("wanted"), std::string::npos);
  }
}

TEST(MakeUniformCost, GivesAChunkItsShareOfTheRank) {
  const CostModel model = MakeUniformCost({2, 4, 6, -1, 0.5}, 8, 2);
  ASSERT_EQ(model.stages.size(), 8U);
  EXPECT_EQ(model.StageSeconds(OpKind::kForward, StageId(7)), 1);
  EXPECT_EQ(model.StageSeconds(OpKind::kBackward, StageId(0)), 5);
  EXPECT_EQ(model.StageSeconds(OpKind::kRecompute, StageId(0)), 1);
  EXPECT_EQ(model.StageSeconds(OpKind::kSendForward, StageId(0)), 0);
  EXPECT_EQ(model.Link(RankId(0), RankId(1)).latency_s, 0.5);
}

constexpr char kFile[] = R"(
memory_bytes = 1000
[[link]]
latency_s = 1e-5
bytes_per_s = 1e9
[[link]]
from = 1
to = 0
latency_s = 2e-5
occupied = true
[[stage]]
f_s = 1.0
i_s = 1.5
w_s = 0.5
activation_bytes = 100
output_bytes = 10
[[stage]]
f_s = 3
i_s = 3
w_s = 3
activation_bytes = 50
)";

TEST(ParseCostFile, ReadsStagesLinksAndLimits) {
  const auto file = ParseCostFile(kFile, "costs.toml");
  ASSERT_TRUE(file.ok()) << file.error().message;
  const auto model = FitCosts(file.value(), WithStages(2, 1));
  ASSERT_TRUE(model.ok()) << model.error().message;
  EXPECT_EQ(model->stages[0].i_s, 1.5);
  EXPECT_EQ(model->stages[0].gradient_bytes, 10);
  EXPECT_EQ(model->stages[1].r_s, 3);
  EXPECT_EQ(model->memory_bytes, (std::vector<int64_t>{1000, 1000}));
  EXPECT_EQ(model->Link(RankId(0), RankId(1)).latency_s, 1e-5);
  EXPECT_TRUE(model->Link(RankId(1), RankId(0)).occupied);
}

TEST(FitCosts, AddsOrSplitsPartsToTheStagesOfASchedule) {
  const auto file = ParseCostFile(kFile, "costs.toml");
  ASSERT_TRUE(file.ok());
  const auto one = FitCosts(file.value(), WithStages(1, 1));
  EXPECT_FALSE(one.ok());  // a link of rank 1 does not exist there
  CostFile plain = file.value();
  plain.model.links.clear();
  const auto sum = FitCosts(plain, WithStages(1, 1));
  ASSERT_TRUE(sum.ok()) << sum.error().message;
  EXPECT_EQ(sum->stages[0].f_s, 4);
  EXPECT_EQ(sum->stages[0].activation_bytes, 150);
  const auto split = FitCosts(file.value(), WithStages(2, 2));
  ASSERT_TRUE(split.ok()) << split.error().message;
  EXPECT_EQ(split->stages[1].f_s, 0.5);
  EXPECT_EQ(split->stages[2].f_s, 1.5);
  EXPECT_FALSE(FitCosts(file.value(), WithStages(3, 1)).ok());
}

TEST(ParseCostFile, NamesTheKeyThatIsWrong) {
  struct Case {
    const char* text;
    const char* word;
  };

  for (const Case& c :
       {Case{"", "stage"}, Case{"[[stage]]\nf_s = -1\n", "f_s"},
        Case{"[[stage]]\ni_s = 1\n", "f_s"},
        Case{"[[stage]]\nf_s = 1\nactivation_byte = 2\n", "activation_byte"},
        Case{"[[stage]]\nf_s = \"a\"\n", "f_s"}, Case{"[[stage]\nf_s = 1\n", "costs.toml"},
        Case{"memory_bytes = -5\n[[stage]]\nf_s = 1\n", "memory_bytes"}}) {
    const auto file = ParseCostFile(c.text, "costs.toml");
    ASSERT_FALSE(file.ok()) << c.text;
    EXPECT_NE(file.error().message.find(c.word), std::string::npos) << file.error().message;
  }
}

TEST(FormatCostFile, ReadsBackAsTheSameModel) {
  const auto file = ParseCostFile(kFile, "costs.toml");
  ASSERT_TRUE(file.ok());
  const auto again = ParseCostFile(FormatCostFile(file->model, "made by\na test"), "again.toml");
  ASSERT_TRUE(again.ok()) << again.error().message;
  EXPECT_EQ(again->model.stages, file->model.stages);
  EXPECT_EQ(again->model.link, file->model.link);
  EXPECT_EQ(again->model.links, file->model.links);
  EXPECT_EQ(again->model.memory_bytes, file->model.memory_bytes);
}

}  // namespace
}  // namespace penstock::cost
