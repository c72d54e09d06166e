#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/file.h"
#include "base/json.h"
#include "text/detokenizer.h"

namespace penstock::text {
namespace {

const std::string kFolder = std::string(PENSTOCK_SOURCE_DIR) + "/tests/golden/tokenizers/";

Tokenizer Load(const std::string& name, const Json* config = nullptr) {
  const std::string path = kFolder + name + "/tokenizer.json";
  return Tokenizer::FromTokenizerJson(ReadFile(path).value(), config, path).value();
}

// A tokenizer.json with byte-level BPE over a few letters, with `changes` merged in.
std::string SmallFile(const std::string& changes) {
  Json file = ParseJson(R"({"added_tokens": [{"id": 4, "content": "<s>", "special": true}],
      "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": null,
      "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "c": 3}, "merges": ["a b"]}})",
                        "small")
                  .value();
  file.merge_patch(ParseJson(changes, "changes").value());
  return DumpJson(file);
}

std::string ErrorOf(const std::string& changes) {
  const auto tokenizer = Tokenizer::FromTokenizerJson(SmallFile(changes), nullptr, "x.json");
  EXPECT_FALSE(tokenizer.ok()) << changes;
  return tokenizer.ok() ? "" : tokenizer.error().message;
}

void ExpectParts(const std::string& message, std::initializer_list<const char*> parts) {
  for (const char* part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << message << "\nlacks: " << part;
  }
}

TEST(TokenizerFile, NamesWhatIsNotSupportedAndListsWhatIs) {
  ExpectParts(ErrorOf(R"({"model": {"type": "WordPiece"}})"),
              {"x.json", "WordPiece", "BPE Unigram"});
  ExpectParts(ErrorOf(R"({"normalizer": {"type": "Bert"}})"),
              {"x.json: normalizer", "Bert", "NFC"});
  ExpectParts(ErrorOf(R"({"normalizer": {"type": "Sequence", "normalizers": [{"type": "X"}]}})"),
              {"normalizer[0]", "X"});
  ExpectParts(ErrorOf(R"({"pre_tokenizer": {"type": "Y"}})"), {"pre_tokenizer", "Y", "ByteLevel"});
  ExpectParts(ErrorOf(R"({"post_processor": {"type": "Z"}})"), {"Z", "TemplateProcessing"});
  ExpectParts(ErrorOf(R"({"decoder": {"type": "CTC"}})"), {"decoder", "CTC", "ByteFallback"});
  ExpectParts(ErrorOf(R"({"model": {"dropout": 0.5}})"), {"dropout"});
  ExpectParts(ErrorOf(R"({"model": {"end_of_word_suffix": "</w>"}})"), {"end_of_word_suffix"});
  ExpectParts(ErrorOf(R"({"pre_tokenizer": {"type": "Split", "behavior": "Isolated",
                          "pattern": {"Regex": "a(b"}}})"),
              {"a(b", "offset"});
  ExpectParts(ErrorOf(R"({"pre_tokenizer": {"type": "Split", "behavior": "Isolated",
                          "pattern": {"Regex": "[a&&[^b]]"}}})"),
              {"class intersection"});
}

TEST(TokenizerFile, RefusesFilesThatContradictThemselves) {
  ExpectParts(ErrorOf(R"({"model": {"merges": ["a c"]}})"), {"\"ac\" is not in the vocabulary"});
  ExpectParts(ErrorOf(R"({"model": {"merges": ["a b c"]}})"), {"model.merges"});
  ExpectParts(ErrorOf(R"({"model": {"vocab": {"a": 1}}})"), {"both have id 1"});
  ExpectParts(ErrorOf(R"({"model": {"vocab": {"a": -1}}})"), {"model.vocab", "-1"});
  ExpectParts(ErrorOf(R"({"model": {"vocab": {"a": 4194304}}})"), {"model.vocab"});
  ExpectParts(ErrorOf(R"({"model": {"vocab": {"a": "b"}}})"), {"model.vocab", "a string"});
  ExpectParts(ErrorOf(R"({"model": {"vocab": []}})"), {"model.vocab"});
  ExpectParts(
      ErrorOf(R"({"added_tokens": [{"id": 4, "content": ")" + std::string(5000, 'a') + R"("}]})"),
      {"token 4 has 5000 bytes", "4096"});
  ExpectParts(ErrorOf(R"({"model": {"merges": "a b"}})"), {"model.merges", "a list"});
  ExpectParts(ErrorOf(R"({"model": {"unk_token": "?"}})"), {"unk_token"});
  ExpectParts(ErrorOf(R"({"added_tokens": [{"id": 0, "content": "<s>"}]})"), {"both have id 0"});
  ExpectParts(ErrorOf(R"({"post_processor": {"type": "TemplateProcessing", "single": [
                          {"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}]}})"),
              {"<s>"});
  ExpectParts(ErrorOf(R"({"post_processor": {"type": "BertProcessing", "cls": ["q", 9],
                          "sep": ["q", 9]}})"),
              {"id 9 has no token"});
  for (const char* text :
       {"", "{", "[]", "3", "{\"model\": 1}", "{\"model\": {\"vocab\": {\"a\": 1"}) {
    EXPECT_FALSE(Tokenizer::FromTokenizerJson(text, nullptr, "x").ok()) << text;
  }
}

TEST(Tokenizer, DropsAndCountsWhatTheVocabularyLacks) {
  const auto tokenizer = Tokenizer::FromTokenizerJson(SmallFile("{}"), nullptr, "x").value();
  EncodeReport report;
  EXPECT_EQ(tokenizer
                .Encode("abxé\xFF"
                        "c",
                        {}, &report)
                .value(),
            (std::vector<int32_t>{2, 3}));
  EXPECT_EQ(report.lost, 3U);
  EXPECT_EQ(report.ill_formed_bytes, 1U);
}

TEST(Tokenizer, GivesByteTokensForIllFormedTextAndNoPrefixBehindIt) {
  for (const char* name : {"llama2", "gemma", "metaspace_always", "unigram_bytes"}) {
    const Tokenizer tokenizer = Load(name);
    const auto ids = tokenizer.Encode("the\xFEwheel", {.add_special = false}).value();
    const auto byte = std::find(ids.begin(), ids.end(), *tokenizer.TokenId("<0xFE>"));
    ASSERT_NE(byte, ids.end()) << name;
    EXPECT_EQ(tokenizer.DecodeBytes(ids, false).value(), "the\xFEwheel") << name;
    EXPECT_EQ(tokenizer.Decode(ids, false).value(), "the\xEF\xBF\xBDwheel") << name;
  }
}

TEST(Tokenizer, TakesSpecialTextLiterallyOnDemand) {
  const Tokenizer tokenizer = Load("gpt2");
  const int32_t special = *tokenizer.TokenId("<|im_end|>");
  const int32_t added = *tokenizer.TokenId("<tool>");
  const auto parsed = tokenizer.Encode("<|im_end|><tool>").value();
  EXPECT_EQ(parsed, (std::vector<int32_t>{special, added}));
  const auto literal = tokenizer.Encode("<|im_end|><tool>", {.parse_special = false}).value();
  EXPECT_EQ(std::count(literal.begin(), literal.end(), special), 0);
  EXPECT_EQ(literal.back(), added);
  EXPECT_EQ(tokenizer.Decode(literal, true).value(), "<|im_end|><tool>");
  EXPECT_EQ(tokenizer.Decode(parsed, true).value(), "<tool>");
}

TEST(Tokenizer, AddsBosAndEosAsTheConfigurationSays) {
  const Json both = {{"bos_token", "<s>"},
                     {"eos_token", {{"content", "</s>"}}},
                     {"add_bos_token", true},
                     {"add_eos_token", true}};
  const Tokenizer tokenizer = Load("gpt2", &both);
  EXPECT_EQ(tokenizer.Encode("").value(), (std::vector<int32_t>{0, 1}));
  EXPECT_TRUE(tokenizer.adds_bos());
  EXPECT_EQ(tokenizer.Encode("", {.add_special = false}).value(), std::vector<int32_t>());
  // llama3's post-processor adds <s>: the configuration neither takes it away nor gives a second
  // one.
  for (const bool flag : {true, false}) {
    const Json config = {{"bos_token", "<s>"}, {"add_bos_token", flag}};
    EXPECT_EQ(Load("llama3", &config).Encode("").value(), std::vector<int32_t>{0});
  }
  EXPECT_EQ(Load("llama3").Encode("").value(), std::vector<int32_t>{0});
}

TEST(Tokenizer, RefusesIdsWithoutAToken) {
  const Tokenizer tokenizer = Load("gpt2");
  for (const int32_t id : {-1, tokenizer.vocabulary_size(), INT32_MAX}) {
    EXPECT_FALSE(tokenizer.Decode(std::vector<int32_t>{id}, false).ok());
    EXPECT_EQ(tokenizer.TokenText(id), "");
    EXPECT_EQ(tokenizer.TokenBytes(id), "");
    EXPECT_FALSE(tokenizer.IsSpecial(id));
  }
}

TEST(Tokenizer, IsSharedByThreads) {
  const Tokenizer tokenizer = Load("llama3");
  const std::string text = "The wheel turns 12345 times, isn't it? größere 水 \xFF";
  const auto wanted = tokenizer.Encode(text).value();
  std::vector<std::thread> threads;
  std::vector<int> good(4, 0);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t, copy = tokenizer] {
      for (int i = 0; i < 50; ++i) {
        good[t] += copy.Encode(text).value() == wanted ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(good, std::vector<int>(4, 50));
}

GgufVocabulary ByteLevelVocabulary() {
  GgufVocabulary vocabulary;
  vocabulary.architecture = "llama";
  vocabulary.model = "gpt2";
  vocabulary.pre = "llama-bpe";
  vocabulary.tokens = {"a", "b", "ab", "<bos>", "<eot>", "", ""};
  vocabulary.token_types = {1, 1, 1, 3, 3, 5, 5};
  vocabulary.merges = {"a b"};
  vocabulary.bos_id = 3;
  vocabulary.eot_id = 4;
  return vocabulary;
}

TEST(GgufTokenizer, LetsTheFamilyDecideWhereTheFileIsSilent) {
  GgufVocabulary vocabulary = ByteLevelVocabulary();
  EXPECT_EQ(Tokenizer::FromGguf(vocabulary, "x").value().Encode("ab").value(),
            (std::vector<int32_t>{3, 2}));
  vocabulary.pre = "qwen2";
  EXPECT_EQ(Tokenizer::FromGguf(vocabulary, "x").value().Encode("ab").value(),
            (std::vector<int32_t>{2}));
  vocabulary.add_bos = true;
  const Tokenizer tokenizer = Tokenizer::FromGguf(vocabulary, "x").value();
  EXPECT_EQ(tokenizer.Encode("ab<eot>").value(), (std::vector<int32_t>{3, 2, 4}));
  EXPECT_EQ(tokenizer.end_ids(), std::vector<int32_t>{4});
}

TEST(GgufTokenizer, NormalizesQwenToNfc) {
  GgufVocabulary vocabulary = ByteLevelVocabulary();
  vocabulary.tokens = {"Ã", "©", "Ã©"};
  vocabulary.token_types.clear();
  vocabulary.merges = {"Ã ©"};
  vocabulary.bos_id.reset();
  vocabulary.eot_id.reset();
  vocabulary.pre = "qwen2";
  EXPECT_EQ(Tokenizer::FromGguf(vocabulary, "x").value().Encode("e\u0301").value(),
            std::vector<int32_t>{2});
}

TEST(GgufTokenizer, RefusesWhatItDoesNotKnowAndWhatContradictsItself) {
  const auto error = [](const std::function<void(GgufVocabulary&)>& change) {
    GgufVocabulary vocabulary = ByteLevelVocabulary();
    change(vocabulary);
    const auto tokenizer = Tokenizer::FromGguf(vocabulary, "x.gguf");
    EXPECT_FALSE(tokenizer.ok());
    return tokenizer.ok() ? "" : tokenizer.error().message;
  };
  ExpectParts(error([](auto& v) { v.pre = "odd"; }), {"x.gguf", "odd", "llama-bpe", "smollm"});
  ExpectParts(error([](auto& v) { v.pre = ""; }), {"tokenizer.ggml.pre"});
  ExpectParts(error([](auto& v) { v.model = "bert"; }), {"bert", "gpt2 llama t5"});
  ExpectParts(error([](auto& v) { v.tokens.clear(); }), {"tokens"});
  ExpectParts(error([](auto& v) { v.token_types.pop_back(); }), {"token_type"});
  ExpectParts(error([](auto& v) { v.token_types.back() = 7; }), {"token_type[", "is 7", "0 to 6"});
  ExpectParts(error([](auto& v) { v.bos_id = 7; }), {"bos_token_id is 7"});
  ExpectParts(error([](auto& v) { v.bos_id = -1; }), {"bos_token_id is -1"});
  ExpectParts(error([](auto& v) { v.merges = {"ab"}; }), {"merges[0]"});
  ExpectParts(error([](auto& v) { v.merges = {"a bb"}; }), {"bb"});
  ExpectParts(error([](auto& v) { v.tokens[1] = "a"; }), {"ids 0 and 1"});
  ExpectParts(error([](auto& v) { v.model = "llama"; }), {"scores"});
  ExpectParts(error([](auto& v) {
                v.model = "t5";
                v.scores.assign(7, 0.0F);
                v.scores[2] = NAN;
              }),
              {"scores[2]"});
  ExpectParts(error([](auto& v) {
                v.model = "t5";
                v.scores.assign(7, 0.0F);
                v.precompiled_charsmap = std::string(
                    "\xFF\xFF\xFF\x7F"
                    "abcd");
              }),
              {"precompiled_charsmap"});
}

TEST(GgufTokenizer, SwallowsSpaceBehindPhi3sControlTokens) {
  GgufVocabulary vocabulary;
  vocabulary.architecture = "phi3";
  vocabulary.model = "llama";
  vocabulary.tokens = {"<unk>", "<s>", "<|end|>", "\u2581", "a", "\u2581a"};
  vocabulary.scores = {0, 0, 0, -3, -3, -1};
  vocabulary.token_types = {2, 3, 3, 1, 1, 1};
  vocabulary.unknown_id = 0;
  vocabulary.bos_id = 1;
  const Tokenizer tokenizer = Tokenizer::FromGguf(vocabulary, "x").value();
  EXPECT_EQ(tokenizer.Encode("a<|end|>\n a").value(), (std::vector<int32_t>{1, 5, 2, 5}));
  vocabulary.architecture = "llama";
  EXPECT_EQ(Tokenizer::FromGguf(vocabulary, "x").value().Encode("a<|end|> a").value(),
            (std::vector<int32_t>{1, 5, 2, 3, 5}));
}

}  // namespace
}  // namespace penstock::text
