// SmolLM2's own file (scripts/fetch-model): ids beside those of Hugging Face's tokenizers, and time
// that grows with the text.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "base/json.h"
#include "text/chat_template.h"
#include "text/gguf_file_for_test.h"
#include "text/tokenizer.h"

namespace penstock::text {
namespace {

std::string ModelPath() {
  const char* folder = std::getenv("PENSTOCK_MODELS");
  const char* home = std::getenv("HOME");
  return (folder != nullptr
              ? std::string(folder)
              : std::string(home != nullptr ? home : "") + "/.cache/penstock/models") +
         "/SmolLM2-135M-Instruct.Q4_1.gguf";
}

const GgufFileForTest& TheFile() {
  static const GgufFileForTest file(ModelPath());
  return file;
}

const Tokenizer& TheTokenizer() {
  static const Tokenizer tokenizer =
      Tokenizer::FromGguf(TheFile().Vocabulary(), ModelPath()).value();
  return tokenizer;
}

std::vector<int32_t> ExpandRuns(const Json& runs) {
  std::vector<int32_t> ids;
  for (const Json& item : runs) {
    if (item.is_array()) {
      ids.insert(ids.end(), item[1].get<size_t>(), item[0].get<int32_t>());
    } else {
      ids.push_back(item.get<int32_t>());
    }
  }
  return ids;
}

TEST(SmolLm2, GivesTheIdsAndTextsOfHuggingFaceTokenizers) {
  const std::string folder = std::string(PENSTOCK_SOURCE_DIR) + "/tests/golden/tokenizers/";
  const Json texts = ReadJsonFile(folder + "texts.json").value()["texts"];
  const Json goldens = ReadJsonFile(folder + "smollm2/goldens.json").value();
  ASSERT_EQ(goldens["rows"].size(), texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto text = texts[i].get<std::string>();
    const Json& row = goldens["rows"][i];
    const std::vector<int32_t> wanted = ExpandRuns(row["ids"]);
    EXPECT_EQ(TheTokenizer().Encode(text).value(), wanted) << i << ": " << text;
    EXPECT_EQ(TheTokenizer().Decode(wanted, false).value(), row.value("decoded", text));
  }
}

TEST(SmolLm2, CountsTheBytesThatItsVocabularyLacks) {
  const Json goldens = ReadJsonFile(std::string(PENSTOCK_SOURCE_DIR) +
                                    "/tests/golden/tokenizers/smollm2/goldens.json")
                           .value();
  for (const Json& row : goldens["bytes"]) {
    std::string bytes;
    const auto hex = row["hex"].get<std::string>();
    for (size_t i = 0; i < hex.size(); i += 2) {
      bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
    }
    EXPECT_EQ(TheTokenizer().Encode(bytes).value(), row["ids"].get<std::vector<int32_t>>()) << hex;
  }
  EncodeReport report;
  EXPECT_TRUE(TheTokenizer().Encode("\x04", {}, &report).value().empty());
  EXPECT_EQ(report.lost, 1U);
  EXPECT_TRUE(TheTokenizer().Encode("\xF1\xF2", {}, &report).value().empty());
  EXPECT_EQ(report.lost, 2U);
  EXPECT_EQ(report.ill_formed_bytes, 2U);
}

TEST(SmolLm2, KnowsItsSpecialTokens) {
  const Tokenizer& tokenizer = TheTokenizer();
  EXPECT_EQ(tokenizer.vocabulary_size(), 49152);
  EXPECT_EQ(tokenizer.bos_id(), 1);
  EXPECT_EQ(tokenizer.eos_id(), 2);
  EXPECT_EQ(tokenizer.end_ids(), (std::vector<int32_t>{0, 2}));
  EXPECT_FALSE(tokenizer.adds_bos());
  EXPECT_TRUE(tokenizer.IsSpecial(2));
  EXPECT_FALSE(tokenizer.IsSpecial(100));
  EXPECT_EQ(tokenizer.TokenId("<|im_start|>"), 1);
  const std::vector<int32_t> ids = tokenizer.Encode("<|im_end|>", {.parse_special = false}).value();
  EXPECT_GT(ids.size(), 3U);
  EXPECT_EQ(tokenizer.Decode(ids, true).value(), "<|im_end|>");
}

TEST(SmolLm2, RendersItsOwnChatTemplate) {
  const auto known = RecognizeChatTemplate(TheFile().strings.at("tokenizer.chat_template"), "file");
  ASSERT_TRUE(known.ok()) << known.error().message;
  EXPECT_EQ(known.value()->name, "smollm2");
  const auto ids = EncodeChat(*known.value(), TheTokenizer(), {{"user", "Hi there"}}, {}).value();
  EXPECT_EQ(TheTokenizer().Decode(ids, false).value(),
            "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
            "Face<|im_end|>\n<|im_start|>user\nHi there<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 1), 3);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 2), 2);
}

// Texts of a megabyte; a quadratic step anywhere would take minutes, and the test's time limit
// would end it.
TEST(SmolLm2, EncodesAMegabyteOfAnyKind) {
  const size_t size = 1'000'000;
  std::vector<std::string> texts = {std::string(size, ' '),  std::string(size, 'a'),
                                    std::string(size, '\n'), std::string(size, '!'),
                                    std::string(size, '1'),  std::string(size, '\x80')};
  std::string random;
  std::string accents;
  std::string alternating;
  uint64_t state = 1;
  while (random.size() < size) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    random += static_cast<char>(' ' + (state >> 33) % 95);
    accents += (state >> 40) % 2 == 0 ? "\u0301" : "\u0315";
    alternating += random.size() % 2 == 0 ? ' ' : '\n';
  }
  texts.push_back(random);
  texts.push_back(accents);
  texts.push_back(alternating);
  for (const std::string& text : texts) {
    const auto ids = TheTokenizer().Encode(text).value();
    EXPECT_TRUE(TheTokenizer().DecodeBytes(ids, false).value() == text) << text.substr(0, 4);
  }
}

}  // namespace
}  // namespace penstock::text
