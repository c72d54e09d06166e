// Penstock's ids beside those of the reference libraries. Goldens: tests/golden/tokenizers/, made
// by tools/make_tokenizer_goldens.py.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "base/json.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace penstock::text {
namespace {

const std::string kFolder = std::string(PENSTOCK_SOURCE_DIR) + "/tests/golden/tokenizers/";

Tokenizer Load(const std::string& name) {
  const std::string path = kFolder + name + "/tokenizer.json";
  const std::string config_path = kFolder + name + "/tokenizer_config.json";
  Json config;
  if (FileExists(config_path)) {
    config = ReadJsonFile(config_path).value();
  }
  auto tokenizer = Tokenizer::FromTokenizerJson(ReadFile(path).value(),
                                                config.is_null() ? nullptr : &config, path);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  return std::move(tokenizer).value();
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

std::string FromHex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

std::vector<int32_t> Ids(const Tokenizer& tokenizer, std::string_view text, bool add_special) {
  EncodeOptions options;
  options.add_special = add_special;
  auto ids = tokenizer.Encode(text, options);
  EXPECT_TRUE(ids.ok()) << ids.error().message;
  return ids.ok() ? ids.value() : std::vector<int32_t>();
}

std::string Stream(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  Detokenizer detokenizer(tokenizer, {.skip_special = false});
  std::string text;
  for (const int32_t id : ids) {
    text += detokenizer.Add(id);
  }
  return text + detokenizer.Finish();
}

class TokenizerGolden : public testing::TestWithParam<std::string> {};

TEST_P(TokenizerGolden, GivesTheIdsAndTextsOfHuggingFaceTokenizers) {
  const Tokenizer tokenizer = Load(GetParam());
  const Json texts = ReadJsonFile(kFolder + "texts.json").value()["texts"];
  const Json rows = ReadJsonFile(kFolder + GetParam() + "/goldens.json").value()["rows"];
  ASSERT_EQ(rows.size(), texts.size());
  ASSERT_GT(rows.size(), 80U);
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto text = texts[i].get<std::string>();
    SCOPED_TRACE(testing::Message() << "text " << i << ": " << text.substr(0, 80));
    const std::vector<int32_t> wanted = ExpandRuns(rows[i]["ids"]);
    EXPECT_EQ(Ids(tokenizer, text, false), wanted);
    const Json special = rows[i].value("special", rows[i]["ids"]);
    EXPECT_EQ(Ids(tokenizer, text, true), ExpandRuns(special));
    const std::string decoded = rows[i].value("decoded", text);
    EXPECT_EQ(tokenizer.Decode(wanted, false).value(), decoded);
    EXPECT_EQ(Stream(tokenizer, wanted), decoded);
  }
}

class ByteLevelGolden : public testing::TestWithParam<std::string> {};

TEST_P(ByteLevelGolden, KeepsBytesThatAreNotUtf8) {
  const Json goldens = ReadJsonFile(kFolder + GetParam() + "/goldens.json").value();
  const Tokenizer tokenizer = Load(GetParam());
  ASSERT_GT(goldens["bytes"].size(), 10U);
  for (const Json& row : goldens["bytes"]) {
    const std::string bytes = FromHex(row["hex"].get<std::string>());
    SCOPED_TRACE(row["hex"].get<std::string>());
    const std::vector<int32_t> ids = Ids(tokenizer, bytes, false);
    EXPECT_EQ(ids, row["ids"].get<std::vector<int32_t>>());
    EXPECT_EQ(tokenizer.DecodeBytes(ids, false).value(), bytes);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, ByteLevelGolden, testing::Values("gpt2", "llama3", "smollm"),
                         [](const auto& kind) { return kind.param; });

std::vector<std::string> GoldenNames() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    if (FileExists(entry.path().string() + "/goldens.json") &&
        FileExists(entry.path().string() + "/tokenizer.json")) {
      names.push_back(entry.path().filename().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

INSTANTIATE_TEST_SUITE_P(Kinds, TokenizerGolden, testing::ValuesIn(GoldenNames()),
                         [](const auto& kind) { return kind.param; });

TEST(TokenizerGoldens, CoverTwentyKinds) {
  EXPECT_GE(GoldenNames().size(), 20U);
}

// Words beside added tokens with lstrip, rstrip, single_word and normalized; ids from Hugging
// Face's tokenizers.
TEST(TokenizerReports, GiveTheReportedIdsBesideAddedTokens) {
  const Json cases = ReadJsonFile(kFolder + "reports/cases.json").value();
  size_t count = 0;
  for (const auto& [name, rows] : cases.items()) {
    const Tokenizer tokenizer = Load("reports/" + name);
    for (const Json& row : rows) {
      EXPECT_EQ(Ids(tokenizer, row["text"].get<std::string>(), true),
                row["ids"].get<std::vector<int32_t>>())
          << name << ": " << row["text"];
      ++count;
    }
  }
  EXPECT_EQ(count, 88U);
}

class SentencePieceGolden : public testing::TestWithParam<std::string> {};

TEST_P(SentencePieceGolden, GivesTheIdsOfSentencePieceForAGgufVocabulary) {
  const Json file = ReadJsonFile(kFolder + "sentencepiece/" + GetParam() + ".json").value();
  const Json& stored = file["vocabulary"];
  GgufVocabulary vocabulary;
  vocabulary.model = stored["model"].get<std::string>();
  vocabulary.architecture = vocabulary.model;
  vocabulary.tokens = stored["tokens"].get<std::vector<std::string>>();
  vocabulary.scores = stored["scores"].get<std::vector<float>>();
  vocabulary.token_types = stored["token_types"].get<std::vector<int32_t>>();
  vocabulary.bos_id = stored["bos_id"].get<int32_t>();
  vocabulary.eos_id = stored["eos_id"].get<int32_t>();
  vocabulary.unknown_id = stored["unknown_id"].get<int32_t>();
  vocabulary.remove_extra_whitespaces = stored["remove_extra_whitespaces"].get<bool>();
  const auto tokenizer = Tokenizer::FromGguf(vocabulary, "golden");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  ASSERT_GT(file["rows"].size(), 80U);
  for (const Json& row : file["rows"]) {
    EXPECT_EQ(Ids(tokenizer.value(), row["text"].get<std::string>(), false), ExpandRuns(row["ids"]))
        << row["text"];
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, SentencePieceGolden, testing::Values("llama", "t5"),
                         [](const auto& kind) { return kind.param; });

}  // namespace
}  // namespace penstock::text
