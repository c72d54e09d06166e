#include "train/checkpoint_writer.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "base/file.h"

namespace penstock::train {
namespace {

namespace fs = std::filesystem;

class CheckpointTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "/penstock_checkpoint_" + std::to_string(::getpid());
    fs::remove_all(folder_);
    ASSERT_TRUE(PrepareFolder(folder_).ok());
  }

  void TearDown() override { fs::remove_all(folder_); }

  // Two ranks' files: weights a and b, moments of b in two parts.
  void Save(int64_t step) const {
    const std::vector<float> a = {1, 2, 3, static_cast<float>(step)};
    const std::vector<float> b = {5, 6};
    ASSERT_TRUE(MakePartial(folder_, step).ok());
    CheckpointJob second{
        folder_, step, 1, {{"model-00002-of-00002.safetensors", {{"b", {2}, b}}}}, {}};
    CheckpointJob first{folder_,
                        step,
                        0,
                        {{"model-00001-of-00002.safetensors", {{"a", {2, 2}, a}}},
                         {"optimizer-00001-of-00001.safetensors",
                          {{"b.exp_avg[1:2]", {1}, std::span(b).last(1)},
                           {"b.exp_avg[0:1]", {1}, std::span(b).first(1)},
                           {"a.exp_avg", {2, 2}, a}}}},
                        CheckpointCommit{}};
    CheckpointManifest manifest;
    manifest.step = step;
    manifest.cursor = step * 10;
    manifest.seed = 42;
    manifest.identity = "one\ntwo\n";
    manifest.instruction_set = "avx2";
    first.commit->manifest = manifest;
    first.commit->small_files = {{"config.json", "{}"}};
    first.commit->others = {1};
    CheckpointWriter writers[2];
    writers[0].Start(std::move(first), false);
    writers[1].Start(std::move(second), false);
    ASSERT_TRUE(writers[1].Wait().ok());
    ASSERT_TRUE(writers[0].Wait().ok());
  }

  std::string Path(int64_t step, const std::string& file = "") const {
    return (fs::path(folder_) / CheckpointName(step) / file).string();
  }

  std::string folder_;
};

TEST_F(CheckpointTest, WhatIsWrittenIsReadByName) {
  Save(20);
  const auto checkpoint = Checkpoint::Open(Path(20), true);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  EXPECT_EQ(checkpoint->manifest().step, 20);
  EXPECT_EQ(checkpoint->manifest().cursor, 200);
  EXPECT_EQ(checkpoint->manifest().seed, 42U);
  EXPECT_EQ(checkpoint->Weight("a", 4).value()[3], 20.0F);
  std::vector<float> moment(2);
  ASSERT_TRUE(checkpoint->Moment("b", "exp_avg", 0, moment).ok());
  EXPECT_EQ(moment, (std::vector<float>{5, 6}));
  std::vector<float> middle(2);
  ASSERT_TRUE(checkpoint->Moment("a", "exp_avg", 1, middle).ok());
  EXPECT_EQ(middle, (std::vector<float>{2, 3}));
}

TEST_F(CheckpointTest, AnotherModelIsRefusedByName) {
  Save(20);
  const auto checkpoint = Checkpoint::Open(Path(20), true);
  EXPECT_NE(checkpoint->Weight("c", 4).error().message.find("no tensor c"), std::string::npos);
  EXPECT_FALSE(checkpoint->Weight("a", 5).ok());
  std::vector<float> moment(2);
  EXPECT_FALSE(checkpoint->Moment("b", "exp_avg_sq", 0, moment).ok());
}

TEST_F(CheckpointTest, TheNewestWholeOneIsFoundAndDamageIsNamed) {
  Save(10);
  Save(20);
  for (const char* file : {"model-00002-of-00002.safetensors", "checkpoint.json"}) {
    const std::string good = ReadFile(Path(20, file)).value();
    for (size_t at = 0; at < good.size(); at += 13) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ 4);
      ASSERT_TRUE(WriteFileAtomically(Path(20, file), bad).ok());
      const auto found = FindCheckpoint(folder_);
      ASSERT_TRUE(found.ok()) << found.error().message;
      ASSERT_EQ(found->step, 10) << file << " byte " << at;
      ASSERT_EQ(found->damaged.size(), 1U);
      EXPECT_NE(found->damaged[0].find(Path(20)), std::string::npos) << found->damaged[0];
    }
    for (const size_t length : {size_t{0}, good.size() / 2, good.size() - 1}) {
      fs::resize_file(Path(20, file), length);
      EXPECT_EQ(FindCheckpoint(folder_)->step, 10) << file << " " << length;
    }
    ASSERT_TRUE(WriteFileAtomically(Path(20, file), good).ok());
  }
  EXPECT_EQ(FindCheckpoint(folder_)->step, 20);
}

TEST_F(CheckpointTest, WithoutAnyWholeOneAllAreNamed) {
  Save(10);
  fs::remove(Path(10, "model-00001-of-00002.safetensors"));
  const auto found = FindCheckpoint(folder_);
  ASSERT_FALSE(found.ok());
  EXPECT_NE(found.error().message.find("model-00001-of-00002"), std::string::npos);
  EXPECT_FALSE(FindCheckpoint(folder_ + "/none")->step.has_value());
}

TEST_F(CheckpointTest, HalfWrittenFoldersAreNoCheckpointsAndAreCleanedUp) {
  Save(10);
  ASSERT_TRUE(MakePartial(folder_, 20).ok());
  ASSERT_TRUE(WriteSmallFile(PartialFolder(folder_, 20), "model.safetensors", "half").ok());
  EXPECT_EQ(CheckpointSteps(folder_), std::vector<int64_t>{10});
  ASSERT_TRUE(PrepareFolder(folder_).ok());
  EXPECT_FALSE(FileExists(PartialFolder(folder_, 20)));
  EXPECT_EQ(FindCheckpoint(folder_)->step, 10);
}

TEST_F(CheckpointTest, ASecondCheckpointOfAStepReplacesTheFirst) {
  Save(10);
  fs::resize_file(Path(10, "model-00001-of-00002.safetensors"), 3);
  Save(10);
  EXPECT_EQ(FindCheckpoint(folder_)->step, 10);
  EXPECT_TRUE(FindCheckpoint(folder_)->damaged.empty());
}

TEST_F(CheckpointTest, AHeldCheckpointGetsItsNameWhenItIsReleased) {
  ASSERT_TRUE(MakePartial(folder_, 10).ok());
  CheckpointWriter writer;
  CheckpointJob job{folder_, 10, 0, {}, CheckpointCommit{}};
  job.commit->manifest.step = 10;
  writer.Start(std::move(job), true);
  while (!writer.Written()) {
    std::this_thread::yield();
  }
  EXPECT_FALSE(FileExists(Path(10)));
  writer.Release();
  ASSERT_TRUE(writer.Wait().ok());
  EXPECT_EQ(FindCheckpoint(folder_)->step, 10);
}

TEST_F(CheckpointTest, WhatIsGivenUpOrLacksARankGetsNoName) {
  ASSERT_TRUE(MakePartial(folder_, 10).ok());
  CheckpointJob job{folder_, 10, 0, {}, CheckpointCommit{}};
  job.commit->others = {1};
  {
    CheckpointWriter given_up;
    given_up.Start(job, false);
  }
  CheckpointWriter writer;
  writer.Start(std::move(job), false);
  writer.ExpectNotes(0);
  const Result<> result = writer.Wait();
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.error().message.find("rank 1"), std::string::npos) << result.error().message;
  EXPECT_TRUE(CheckpointSteps(folder_).empty());
}

TEST_F(CheckpointTest, OneThatIsSetAsideIsLookedForNoMore) {
  Save(10);
  Save(20);
  EXPECT_TRUE(FileExists(SetCheckpointAside(folder_, 20)));
  EXPECT_EQ(FindCheckpoint(folder_)->step, 10);
  EXPECT_EQ(SetCheckpointAside(folder_, 30), "");
}

TEST_F(CheckpointTest, AFileThatCannotBeWrittenSaysWhy) {
  const auto file = WriteSmallFile(folder_ + "/absent", "x", "y");
  ASSERT_FALSE(file.ok());
  EXPECT_NE(file.error().message.find("No such file"), std::string::npos) << file.error().message;
}

}  // namespace
}  // namespace penstock::train
