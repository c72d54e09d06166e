// The work of tokenizing is in proportion to the text, whatever stands in it: counted, not timed.

#define PCRE2_CODE_UNIT_WIDTH 8
#include <gtest/gtest.h>
#include <pcre2.h>

#include <filesystem>
#include <functional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "text/gguf_pre.h"
#include "text/pretokenizer.h"
#include "text/regex.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace penstock::text {
namespace {

const std::string kFolder = std::string(PENSTOCK_SOURCE_DIR) + "/tests/golden/tokenizers";

struct Kind {
  std::string name;
  std::function<std::string(size_t units)> text;
};

std::string Repeated(const std::string& unit, size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) {
    text += unit;
  }
  return text;
}

// Texts on which a careless pattern or merge runs away.
std::vector<Kind> Kinds() {
  std::vector<Kind> kinds;
  for (const char* unit : {" ",      "\n",     "\t",         "\r\n",   "a",      "A",
                           "0",      "!",      "'",          "/",      "_",      "\u00e9",
                           "\u4e2d", "\u3000", "\U0001F600", "\u0301", "\u2581", "\U0001F468\u200D",
                           " a",     "a ",     "a\n",        "\n ",    " \n",    "aB",
                           "1a",     "!a",     "'s",         "-=",     "{ }",    "<|",
                           "the ",   "\u4e2da"}) {
    kinds.push_back({unit, [unit](size_t units) { return Repeated(unit, units); }});
    kinds.push_back({std::string(unit) + " then x",
                     [unit](size_t units) { return Repeated(unit, units) + "x"; }});
  }
  kinds.push_back({"mixed", [](size_t units) {
                     std::string text;
                     uint64_t state = 1;
                     while (text.size() < units) {
                       state = state * 6364136223846793005ULL + 1442695040888963407ULL;
                       const auto c = static_cast<char32_t>(state >> 33);
                       AppendUtf8(text, state % 3 == 0 ? U' ' + c % 95 : 0x20 + c % 0x3000);
                     }
                     return text;
                   }});
  return kinds;
}

// Four times the text may take a little more than four times the steps (a heap's depth, the start).
void ExpectLinear(size_t small, size_t large, size_t large_bytes, size_t per_byte,
                  const std::string& what) {
  EXPECT_LE(large, 5 * small + 2000) << what;
  EXPECT_LE(large, per_byte * large_bytes + 2000) << what;
}

// Runs a pattern as Regex::Cover does, but in the interpreter, and counts its steps.
class StepCounter {
 public:
  explicit StepCounter(const std::string& pattern) {
    const std::string translated = TranslatePattern(pattern, "test").value();
    int status = 0;
    PCRE2_SIZE offset = 0;
    code_ = pcre2_compile(
        reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
        PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NO_AUTO_CAPTURE | PCRE2_AUTO_CALLOUT,
        &status, &offset, nullptr);
    data_ = pcre2_match_data_create(1, nullptr);
    context_ = pcre2_match_context_create(nullptr);
    pcre2_set_callout(context_, Count, &steps_);
  }

  ~StepCounter() {
    pcre2_match_context_free(context_);
    pcre2_match_data_free(data_);
    pcre2_code_free(code_);
  }

  StepCounter(const StepCounter&) = delete;
  StepCounter& operator=(const StepCounter&) = delete;

  size_t Steps(const std::string& text) {
    steps_ = 0;
    for (size_t from = 0; from < text.size();) {
      const int status = pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                     from, PCRE2_NO_UTF_CHECK, data_, context_);
      if (status == PCRE2_ERROR_NOMATCH) {
        break;
      }
      EXPECT_GT(status, 0);
      if (status <= 0) {
        break;
      }
      const size_t end = pcre2_get_ovector_pointer(data_)[1];
      from = end > from ? end : from + SequenceLength(text[from]);
    }
    return steps_;
  }

 private:
  static int Count(pcre2_callout_block*, void* steps) {
    ++*static_cast<size_t*>(steps);
    return 0;
  }

  pcre2_code* code_ = nullptr;
  pcre2_match_data* data_ = nullptr;
  pcre2_match_context* context_ = nullptr;
  size_t steps_ = 0;
};

// Those of pre-tokenizers in a tokenizer.json.
void CollectPatterns(const Json& json, std::set<std::string>& patterns) {
  if (json.is_array()) {
    for (const Json& item : json) {
      CollectPatterns(item, patterns);
    }
    return;
  }
  if (!json.is_object()) {
    return;
  }
  for (const auto& [key, value] : json.items()) {
    if (key == "Regex" && value.is_string()) {
      patterns.insert(value.get<std::string>());
    } else {
      CollectPatterns(value, patterns);
    }
  }
}

std::vector<std::string> TokenizerFiles() {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    const std::string file = entry.path().string() + "/tokenizer.json";
    if (FileExists(file)) {
      files.push_back(file);
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

TEST(LinearText, PatternsTakeStepsInProportionToTheText) {
  std::set<std::string> patterns = {kGpt2Pattern};
  std::istringstream names(GgufPreNames());
  for (std::string name; names >> name;) {
    for (const std::string& pattern : FindGgufPre(name)->patterns) {
      patterns.insert(pattern);
    }
  }
  for (const std::string& file : TokenizerFiles()) {
    CollectPatterns(ReadJsonFile(file).value()["pre_tokenizer"], patterns);
  }
  EXPECT_GE(patterns.size(), 12U);
  for (const std::string& pattern : patterns) {
    StepCounter counter(pattern);
    for (const Kind& kind : Kinds()) {
      const std::string small = kind.text(500);
      const std::string large = kind.text(2000);
      ExpectLinear(counter.Steps(small), counter.Steps(large), large.size(), 200,
                   pattern + " on " + kind.name);
    }
  }
}

TEST(LinearText, EveryKindOfTokenizerTakesStepsInProportionToTheText) {
  const std::vector<std::string> files = TokenizerFiles();
  ASSERT_GE(files.size(), 20U);
  for (const std::string& file : files) {
    const Tokenizer tokenizer =
        Tokenizer::FromTokenizerJson(ReadFile(file).value(), nullptr, file).value();
    for (const Kind& kind : Kinds()) {
      EncodeReport small;
      EncodeReport large;
      const std::string text = kind.text(8000);
      ASSERT_TRUE(tokenizer.Encode(kind.text(2000), {}, &small).ok()) << file << kind.name;
      ASSERT_TRUE(tokenizer.Encode(text, {}, &large).ok()) << file << kind.name;
      ExpectLinear(small.work, large.work, text.size(), 60, file + " on " + kind.name);
      EXPECT_GE(large.work, text.size() / 8) << file << " counts nothing on " << kind.name;
    }
  }
}

TEST(LinearText, WhiteSpaceBehindAddedTokensIsReadOnce) {
  // Added tokens that swallow the white space behind them, and are white space themselves.
  Json file = ReadJsonFile(kFolder + "/gpt2/tokenizer.json").value();
  for (Json& token : file["added_tokens"]) {
    token["rstrip"] = true;
    token["lstrip"] = true;
  }
  Json space = file["added_tokens"][0];
  space["content"] = "  ";
  space["id"] = 5000;
  file["added_tokens"].push_back(space);
  const Tokenizer tokenizer =
      Tokenizer::FromTokenizerJson(DumpJson(file), nullptr, "tokenizer.json").value();
  EncodeReport small;
  EncodeReport large;
  ASSERT_TRUE(tokenizer.Encode(std::string(10'000, ' '), {}, &small).ok());
  ASSERT_TRUE(tokenizer.Encode(std::string(40'000, ' '), {}, &large).ok());
  ExpectLinear(small.work, large.work, 40'000, 60, "spaces");
}

}  // namespace
}  // namespace penstock::text
