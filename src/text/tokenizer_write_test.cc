// A GGUF vocabulary written as tokenizer.json gives the same ids. That transformers reads the file
// the same way is checked by tools/check_export.py.

#include "text/tokenizer_write.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/json.h"
#include "text/tokenizer.h"

namespace penstock::text {
namespace {

const char* const kTexts[] = {
    "Hello, world! It's 12345 o'clock.",
    "  two  spaces\n\nand\ttabs \r\n",
    "déjà vu — naïve façade",
    "Привет, как дела?",
    "你好，世界。こんにちは",
    "안녕하세요 세계",
    "مرحبا بالعالم",
    "नमस्ते दुनिया",
    "👩‍👩‍👧 emoji 🏳️‍🌈 and 𝔘𝔫𝔦𝔠𝔬𝔡𝔢",
    "int main() { return 0; } // <|im_start|>user",
    "<|im_start|>system\nHi<|im_end|>\n",
    "",
};

// Letters and their pairs: enough merges that their order matters.
GgufVocabulary ByteVocabulary(const std::string& pre) {
  GgufVocabulary v;
  v.architecture = "llama";
  v.model = "gpt2";
  v.pre = pre;
  for (int byte = 0; byte < 256; ++byte) {
    const bool plain = (byte >= 0x21 && byte < 0x7F) || (byte >= 0xA1 && byte != 0xAD);
    static int next;
    next = byte == 0 ? 0 : next;
    const int letter = plain ? byte : 0x100 + next++;
    v.tokens.push_back(letter < 0x80 ? std::string(1, static_cast<char>(letter))
                                     : std::string{static_cast<char>(0xC0 | letter >> 6),
                                                   static_cast<char>(0x80 | (letter & 0x3F))});
  }
  const std::pair<const char*, const char*> merges[] = {{"l", "l"}, {"h", "e"}, {"he", "ll"},
                                                        {"Ġ", "w"}, {"o", "r"}, {"Ġw", "or"},
                                                        {"1", "2"}, {"3", "4"}};
  for (const auto& [left, right] : merges) {
    v.merges.push_back(std::string(left) + " " + right);
    v.tokens.push_back(std::string(left) + right);
  }
  v.token_types.assign(v.tokens.size(), 1);
  for (const char* special : {"<|im_start|>", "<|im_end|>"}) {
    v.tokens.emplace_back(special);
    v.token_types.push_back(3);
  }
  v.bos_id = static_cast<int32_t>(v.tokens.size()) - 2;
  v.eos_id = static_cast<int32_t>(v.tokens.size()) - 1;
  return v;
}

GgufVocabulary ScoreVocabulary() {
  GgufVocabulary v;
  v.architecture = "llama";
  v.model = "llama";
  v.tokens = {"<unk>", "<s>", "</s>"};
  v.token_types = {2, 3, 3};
  for (int byte = 0; byte < 256; ++byte) {
    v.tokens.push_back(fmt::format("<0x{:02X}>", byte));
    v.token_types.push_back(6);
  }
  for (const char* piece :
       {"\u2581",  "h",         "e",  "l",           "o",  "w",        "r",    "d",     "H",  "i",
        "t",       "a",         "n",  "ll",          "el", "ell",      "Hell", "Hello", "or", "wor",
        "\u2581w", "\u2581wor", "ld", "\u2581world", "an", "\u2581an", "in",   "你",    "好"}) {
    v.tokens.emplace_back(piece);
    v.token_types.push_back(1);
  }
  for (size_t id = 0; id < v.tokens.size(); ++id) {
    v.scores.push_back(id < 259 ? 0.0F : -static_cast<float>(id));
  }
  v.bos_id = 1;
  v.eos_id = 2;
  v.unknown_id = 0;
  return v;
}

void ExpectSameIds(const GgufVocabulary& vocabulary) {
  const auto json = TokenizerJsonFromGguf(vocabulary, "test");
  ASSERT_TRUE(json.ok()) << json.error().message;
  const Json config = TokenizerConfigFromGguf(vocabulary, "{{ messages }}");
  EXPECT_EQ(config["chat_template"], "{{ messages }}");
  const auto direct = Tokenizer::FromGguf(vocabulary, "test");
  const auto written = Tokenizer::FromTokenizerJson(DumpJson(json.value()), &config, "written");
  ASSERT_TRUE(direct.ok() && written.ok()) << written.error().message;
  for (const char* text : kTexts) {
    for (const bool special : {true, false}) {
      EncodeOptions options;
      options.add_special = special;
      EXPECT_EQ(direct->Encode(text, options).value(), written->Encode(text, options).value())
          << text;
    }
    const auto ids = direct->Encode(text).value();
    EXPECT_EQ(direct->Decode(ids, true).value(), written->Decode(ids, true).value()) << text;
  }
  EXPECT_EQ(direct->eos_id(), written->eos_id());
}

TEST(TokenizerWriteTest, ByteLevelVocabulariesGiveTheSameIds) {
  for (const char* pre :
       {"gpt-2", "smollm", "llama-bpe", "qwen2", "tekken", "gpt-4o", "deepseek-v3", "default"}) {
    SCOPED_TRACE(pre);
    ExpectSameIds(ByteVocabulary(pre));
  }
}

TEST(TokenizerWriteTest, ScoresBecomeMergesWithTheSameIds) {
  GgufVocabulary vocabulary = ScoreVocabulary();
  ExpectSameIds(vocabulary);
  vocabulary.add_space_prefix = false;
  ExpectSameIds(vocabulary);
}

TEST(TokenizerWriteTest, OtherKindsAreRefused) {
  GgufVocabulary vocabulary = ScoreVocabulary();
  vocabulary.model = "t5";
  const auto json = TokenizerJsonFromGguf(vocabulary, "test");
  ASSERT_FALSE(json.ok());
  EXPECT_EQ(json.error().code, ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace penstock::text
