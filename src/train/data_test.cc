// Corpus, dataset and shuffling.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <numeric>
#include <set>

#include "base/file.h"
#include "train/dataset.h"
#include "train/permutation.h"
#include "train/sha256.h"

namespace penstock::train {
namespace {

const std::string kTiny = std::string(PENSTOCK_SOURCE_DIR) + "/configs/train/tiny";
constexpr int32_t kEnd = 256;  // <|endoftext|> of the tokenizer of bytes

class DataTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "/penstock_data_" + std::to_string(::getpid());
    std::filesystem::create_directories(folder_);
    material_ = weights::OpenTokenizer(kTiny).value();
    tokenizer_.emplace(LoadTokenizer(material_).value());
  }

  void TearDown() override { std::filesystem::remove_all(folder_); }

  DataSection Data(const std::string& content, DataFormat format, int64_t sequence = 16) {
    const std::string path = folder_ + "/data" + std::to_string(files_++);
    EXPECT_TRUE(WriteFileAtomically(path, content).ok());
    DataSection data;
    data.paths = {path};
    data.format = format;
    data.sequence_tokens = sequence;
    data.chat_template = "chatml";
    return data;
  }

  Result<Corpus> Open(const DataSection& data) const {
    return OpenCorpus(data, *tokenizer_, TokenizerDigest(material_), folder_ + "/cache");
  }

  std::string folder_;
  int files_ = 0;
  weights::TokenizerMaterial material_;
  std::optional<LoadedTokenizer> tokenizer_;
};

TEST(Sha256Test, GivesTheDigestsOfTheStandard) {
  EXPECT_EQ(Sha256Hex(std::string_view("abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Sha256Hex(std::string_view("")),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

TEST(PermutationTest, IsABijectionForEverySizeAndDiffersByKey) {
  for (const uint64_t n : {1U, 2U, 3U, 5U, 64U, 1000U, 4097U}) {
    const Permutation permutation(n, 7);
    std::vector<uint64_t> seen;
    for (uint64_t i = 0; i < n; ++i) {
      seen.push_back(permutation(i));
    }
    const Permutation other(n, 8);
    bool differs = false;
    for (uint64_t i = 0; i < n; ++i) {
      differs = differs || other(i) != seen[i];
    }
    EXPECT_TRUE(differs || n <= 3) << n;
    std::sort(seen.begin(), seen.end());
    for (uint64_t i = 0; i < n; ++i) {
      ASSERT_EQ(seen[i], i) << n;
    }
  }
}

TEST_F(DataTest, TextIsOneDocumentWithItsEnd) {
  const auto corpus = Open(Data("abc", DataFormat::kText));
  ASSERT_TRUE(corpus.ok()) << corpus.error().message;
  const std::vector<int32_t> ids(corpus->tokens().begin(), corpus->tokens().end());
  EXPECT_EQ(ids, (std::vector<int32_t>{'a', 'b', 'c', kEnd}));
  EXPECT_EQ(corpus->documents(), 1);
}

TEST_F(DataTest, TheCacheIsUsedAndADamagedOneIsMadeAgain) {
  const DataSection data = Data("some longer text", DataFormat::kText);
  EXPECT_FALSE(Open(data)->cached());
  const auto again = Open(data);
  EXPECT_TRUE(again->cached());
  const std::string path = folder_ + "/cache/" + again->key() + ".tokens";
  std::string bytes = ReadFile(path).value();
  bytes[bytes.size() - 20] = static_cast<char>(bytes[bytes.size() - 20] ^ 1);
  ASSERT_TRUE(WriteFileAtomically(path, bytes).ok());
  const auto mended = Open(data);
  ASSERT_TRUE(mended.ok());
  EXPECT_FALSE(mended->cached());
  EXPECT_TRUE(std::equal(mended->tokens().begin(), mended->tokens().end(), again->tokens().begin(),
                         again->tokens().end()));
}

TEST_F(DataTest, BadDataIsRefusedWithItsPlace) {
  const struct {
    std::string content;
    DataFormat format;
    const char* place;
  } cases[] = {
      {"ab\ncd\xff\n", DataFormat::kText, ":2:3"},
      {"{\"text\": \"a\"}\n{\"txt\": \"b\"}\n", DataFormat::kJsonl, ":2"},
      {"{\"text\": \"a\"}\n{\"text\": \n", DataFormat::kJsonl, ":2"},
      {"{\"text\": \"a\"}\n[1]\n", DataFormat::kJsonl, ":2"},
      {"{\"text\": 3}\n", DataFormat::kJsonl, "text"},
      {"\n\n", DataFormat::kJsonl, "no text"},
      {"{\"text\": \"a\"}\n", DataFormat::kChat, ":1"},
      {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}\n", DataFormat::kChat,
       "with an answer"},
  };

  for (const auto& c : cases) {
    const auto corpus = Open(Data(c.content, c.format));
    ASSERT_FALSE(corpus.ok()) << c.content;
    EXPECT_EQ(ExitStatus(corpus.error().code), 2);
    EXPECT_NE(corpus.error().message.find(c.place), std::string::npos) << corpus.error().message;
  }
  DataSection empty = Data("x", DataFormat::kText);
  ASSERT_TRUE(WriteFileAtomically(empty.paths[0], "").ok());
  EXPECT_NE(Open(empty).error().message.find("empty"), std::string::npos);
}

TEST_F(DataTest, OnlyAnswersAndTheirEndCountInAConversation) {
  const auto corpus = Open(Data(
      R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "yes"}, )"
      R"({"role": "user", "content": "r"}, {"role": "assistant", "content": "no"}]})"
      "\n",
      DataFormat::kChat));
  ASSERT_TRUE(corpus.ok()) << corpus.error().message;
  std::string counted;
  std::string all;
  for (size_t i = 0; i < corpus->tokens().size(); ++i) {
    all += tokenizer_->tokenizer.TokenBytes(corpus->tokens()[i]);
    counted +=
        corpus->counts()[i] != 0 ? tokenizer_->tokenizer.TokenBytes(corpus->tokens()[i]) : "";
  }
  EXPECT_NE(all.find("<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\nyes"),
            std::string::npos)
      << all;
  // This vocabulary has no token for the end of a turn: all of what follows the opening counts.
  EXPECT_EQ(counted, "yes<|im_end|>\nno<|im_end|>\n");
}

TEST_F(DataTest, PackedTextFillsSequencesAndCoversEveryPairOnce) {
  std::string text;
  for (int i = 0; i < 100; ++i) {
    text += static_cast<char>('a' + i % 26);
  }
  const DataSection data = Data(text, DataFormat::kText);
  const auto corpus = Open(data);
  const auto dataset = Dataset::Create(corpus.value(), data, 3, 257);
  ASSERT_TRUE(dataset.ok()) << dataset.error().message;
  EXPECT_EQ(dataset->sequences(), 7);  // 100 pairs of 16
  std::set<int64_t> rows;
  for (int64_t s = 0; s < dataset->sequences(); ++s) {
    for (const Part& part : dataset->Parts(s)) {
      for (int64_t i = 0; i < part.rows; ++i) {
        EXPECT_TRUE(rows.insert(part.first + i).second);
      }
    }
  }
  EXPECT_EQ(rows.size(), 100U);
}

TEST_F(DataTest, LinesAreKeptWholeAndNeverSeeEachOther) {
  std::string lines;
  for (const int length : {5, 9, 3, 12, 40, 1}) {
    lines += "{\"text\": \"" + std::string(static_cast<size_t>(length), 'x') + "\"}\n";
  }
  const DataSection data = Data(lines, DataFormat::kJsonl);
  const auto corpus = Open(data);
  const auto dataset = Dataset::Create(corpus.value(), data, 3, 257);
  ASSERT_TRUE(dataset.ok());
  std::vector<int64_t> parts;
  for (int64_t s = 0; s < dataset->sequences(); ++s) {
    int64_t rows = 0;
    for (const Part& part : dataset->Parts(s)) {
      parts.push_back(part.rows);
      rows += part.rows;
    }
    EXPECT_LE(rows, 16);
  }
  std::sort(parts.begin(), parts.end());
  // A text of n bytes has n pairs with its end; the one of 40 is cut into 16, 16 and 8.
  EXPECT_EQ(parts, (std::vector<int64_t>{1, 3, 5, 8, 9, 12, 16, 16}));
  const auto micro = dataset->InOrder(false, 0, 1, 1);
  int64_t rows = 0;
  for (const auto& sequence : micro[0].sequences) {
    EXPECT_EQ(sequence.first_position, 0);
    rows += sequence.rows;
  }
  EXPECT_EQ(rows, micro[0].rows());
}

TEST_F(DataTest, StepsAreDealtByTheCursorAndEpochsCoverEverything) {
  const DataSection data = Data(std::string(160, 'y'), DataFormat::kText);
  const auto corpus = Open(data);
  const auto dataset = Dataset::Create(corpus.value(), data, 3, 257);
  ASSERT_TRUE(dataset.ok());
  ASSERT_EQ(dataset->sequences(), 10);
  std::vector<int64_t> first;
  std::vector<int64_t> second;
  for (int64_t i = 0; i < 10; ++i) {
    first.push_back(dataset->Shuffled(i));
    second.push_back(dataset->Shuffled(10 + i));
  }
  EXPECT_NE(first, second);
  std::sort(first.begin(), first.end());
  std::sort(second.begin(), second.end());
  EXPECT_EQ(first, second);

  // Two replicas of two micro-batches have what one replica of four has.
  PipelineSection one;
  one.micro_batches = 4;
  PipelineSection two;
  two.micro_batches = 2;
  two.replicas = 2;
  const StepBatch whole = dataset->Step(one, 3, 0);
  const StepBatch a = dataset->Step(two, 3, 0);
  const StepBatch b = dataset->Step(two, 3, 1);
  ASSERT_EQ(a.micro_batches.size(), 2U);
  EXPECT_EQ(whole.counted, a.counted);
  EXPECT_EQ(whole.counted, b.counted);
  EXPECT_EQ(whole.micro_batches[1].tokens, a.micro_batches[1].tokens);
  EXPECT_EQ(whole.micro_batches[2].tokens, b.micro_batches[0].tokens);
  EXPECT_EQ(whole.micro_batches[3].key, b.micro_batches[1].key);
}

TEST_F(DataTest, WithoutPackingSequencesHaveTheirOwnLengths) {
  DataSection data = Data("{\"text\": \"abcd\"}\n{\"text\": \"ab\"}\n", DataFormat::kJsonl);
  data.pack = false;
  const auto corpus = Open(data);
  const auto dataset = Dataset::Create(corpus.value(), data, 3, 257);
  ASSERT_TRUE(dataset.ok());
  const auto micro = dataset->InOrder(false, 0, 2, 1);
  ASSERT_EQ(micro.size(), 2U);
  EXPECT_EQ(micro[0].rows(), 4);
  EXPECT_EQ(micro[1].rows(), 2);
}

TEST_F(DataTest, IdsBeyondTheModelAndEmptySplitsAreRefused) {
  DataSection data = Data("abcdef", DataFormat::kText);
  const auto corpus = Open(data);
  EXPECT_FALSE(Dataset::Create(corpus.value(), data, 3, 100).ok());
  data.validation = 0.5;
  const auto none = Dataset::Create(corpus.value(), data, 3, 257);
  ASSERT_FALSE(none.ok());
  EXPECT_NE(none.error().message.find("validation"), std::string::npos);
}

}  // namespace
}  // namespace penstock::train
