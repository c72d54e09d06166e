#include "train/config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "base/file.h"

namespace penstock::train {
namespace {

class ConfigTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "/penstock_config_" + std::to_string(::getpid());
    std::filesystem::create_directories(folder_ + "/model");
    Write("model/config.json", "{}");
    Write("model/tokenizer.json", "{}");
    Write("text.txt", "some text");
  }

  void TearDown() override { std::filesystem::remove_all(folder_); }

  void Write(const std::string& name, const std::string& content) const {
    ASSERT_TRUE(WriteFileAtomically(folder_ + "/" + name, content).ok());
  }

  Result<TrainConfig> Read(const std::string& text,
                           const std::vector<std::string>& set = {}) const {
    Write("run.toml", text);
    return ReadTrainConfig(folder_ + "/run.toml", set);
  }

  std::string folder_;
};

const char* const kLeast = "[model]\nconfig = \"model/config.json\"\n[data]\npath = \"text.txt\"\n";

TEST_F(ConfigTest, LeastConfigurationHasDefaultsAndFindsFilesBesideIt) {
  const auto config = Read(kLeast);
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->model.config, folder_ + "/model/config.json");
  EXPECT_EQ(config->data.paths, std::vector<std::string>{folder_ + "/text.txt"});
  EXPECT_EQ(config->pipeline.schedule, "1f1b");
  EXPECT_EQ(config->GlobalSequences(), 1);
  EXPECT_EQ(config->data.validation, 0.0);
}

TEST_F(ConfigTest, UnknownKeysNameFileLineAndTheNearestKey) {
  const auto config = Read(std::string(kLeast) + "[pipeline]\nstage = 2\n");
  ASSERT_FALSE(config.ok());
  EXPECT_NE(config.error().message.find("run.toml:6"), std::string::npos) << config.error().message;
  EXPECT_NE(config.error().message.find("stages"), std::string::npos) << config.error().message;
}

TEST_F(ConfigTest, UnknownSectionsNameTheNearestSection) {
  const auto config = Read(kLeast, {"pipelin.stages=2"});
  ASSERT_FALSE(config.ok());
  EXPECT_NE(config.error().message.find("pipeline"), std::string::npos) << config.error().message;
}

TEST_F(ConfigTest, AssignmentsWinAndQuotesAreOptional) {
  const auto config =
      Read(std::string(kLeast) + "[pipeline]\nstages = 2\n",
           {"pipeline.schedule=zb-v", "optimizer.decay=\"linear\"", "pipeline.stages=3",
            "pipeline.cut=[1, 2, 3, 4, 5]", "pipeline.barrier=false"});
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->pipeline.schedule, "zb-v");
  EXPECT_EQ(config->optimizer.decay, LrDecay::kLinear);
  EXPECT_EQ(config->pipeline.stages, 3);
  EXPECT_EQ(config->pipeline.cut.size(), 5U);
  EXPECT_FALSE(config->pipeline.barrier);
}

TEST_F(ConfigTest, ImpossibleValuesAreRefused) {
  for (const char* assignment :
       {"pipeline.stages=0", "pipeline.stages=two", "optimizer.lr=-1", "optimizer.lr=nan",
        "optimizer.beta1=1", "train.steps=0", "train.dropout=1", "train.dtype=f16",
        "data.format=csv", "train.recompute=some", "pipeline.schedule=2f2b", "data.path=absent.txt",
        "model.path=absent.gguf", "optimizer.min_lr=1", "train.checkpoint_every=5",
        "data.sequence_tokens=0", "pipeline.micro_batches=1.5"}) {
    const auto config = Read(kLeast, {assignment});
    ASSERT_FALSE(config.ok()) << assignment;
    EXPECT_EQ(ExitStatus(config.error().code), 2) << config.error().message;
    const std::string key = std::string(assignment).substr(0, std::string(assignment).find('='));
    EXPECT_NE(config.error().message.find(key), std::string::npos) << config.error().message;
  }
}

TEST_F(ConfigTest, AScheduleThatIsMisspeltNamesTheNearest) {
  const auto config = Read(kLeast, {"pipeline.schedule=zb-w"});
  ASSERT_FALSE(config.ok());
  EXPECT_NE(config.error().message.find("zb-v"), std::string::npos) << config.error().message;
}

TEST_F(ConfigTest, IdentityLeavesOutWhereAndHowLongButNotWhat) {
  const std::string before = Read(kLeast)->Identity();
  EXPECT_EQ(
      Read(kLeast, {"train.steps=7", "pipeline.schedule=gpipe", "optimizer.lr=1"})->Identity(),
      before);
  EXPECT_EQ(Read(kLeast, {"pipeline.stages=2"})->Identity(), before);
  EXPECT_EQ(Read(kLeast, {"model.config=" + folder_ + "/model/config.json"})->Identity(), before);
  EXPECT_NE(Read(kLeast, {"train.seed=1"})->Identity(), before);
  EXPECT_NE(Read(kLeast, {"pipeline.micro_batch=2"})->Identity(), before);
}

TEST(LearningRateTest, RisesDuringWarmUpAndFallsToTheLeast) {
  OptimizerSection o;
  o.lr = 1.0;
  o.warmup_steps = 10;
  o.min_lr = 0.1;
  EXPECT_DOUBLE_EQ(LearningRate(o, 110, 1), 0.1);
  EXPECT_DOUBLE_EQ(LearningRate(o, 110, 10), 1.0);
  EXPECT_DOUBLE_EQ(LearningRate(o, 110, 11), 1.0);
  EXPECT_NEAR(LearningRate(o, 110, 61), 0.55, 1e-12);  // half of the cosine
  double last = 2;
  for (int64_t step = 11; step <= 110; ++step) {
    const double lr = LearningRate(o, 110, step);
    EXPECT_LT(lr, last);
    EXPECT_GE(lr, 0.1);
    last = lr;
  }
  o.decay = LrDecay::kLinear;
  EXPECT_NEAR(LearningRate(o, 110, 61), 0.55, 1e-12);
  o.decay = LrDecay::kNone;
  EXPECT_DOUBLE_EQ(LearningRate(o, 110, 110), 1.0);
}

}  // namespace
}  // namespace penstock::train
