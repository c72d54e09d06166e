#include <gtest/gtest.h>

#include <random>

#include "base/file.h"
#include "text/detokenizer.h"
#include "text/stop.h"
#include "text/utf8.h"

namespace penstock::text {
namespace {

Tokenizer Load(const std::string& name) {
  const std::string path =
      std::string(PENSTOCK_SOURCE_DIR) + "/tests/golden/tokenizers/" + name + "/tokenizer.json";
  return Tokenizer::FromTokenizerJson(ReadFile(path).value(), nullptr, path).value();
}

bool WellFormed(std::string_view text) {
  return FindIllFormed(text, 0) == text.size();
}

TEST(Utf8Assembler, LetsOnlyWholeCharactersPass) {
  const std::string text = "a\u00e9\u65e5\U0001F642z";
  Utf8Assembler assembler;
  std::string all;
  for (const char c : text) {
    const std::string part = assembler.Add(std::string(1, c));
    EXPECT_TRUE(WellFormed(part));
    EXPECT_TRUE(part.empty() || text.substr(all.size()).starts_with(part));
    all += part;
  }
  EXPECT_EQ(all + assembler.Finish(), text);
}

TEST(Utf8Assembler, ReplacesOncePerMaximalSubpart) {
  const std::pair<const char*, const char*> cases[] = {
      {"\xF0\x9F\x98", "\uFFFD"},
      {"\xF0\x9F\x98z", "\uFFFDz"},
      {"\xFF\xFE", "\uFFFD\uFFFD"},
      {"\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD"},
      {"\xC3\xC3\xA9", "\uFFFD\u00e9"},
      {"\xE2\x82\xE2\x82\xAC", "\uFFFD\u20ac"},
      {"\xF4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},
  };
  for (const auto& [bytes, wanted] : cases) {
    EXPECT_EQ(ReplaceIllFormed(bytes), wanted);
    Utf8Assembler assembler;
    std::string out;
    for (const char c : std::string_view(bytes)) {
      out += assembler.Add(std::string(1, c));
    }
    EXPECT_EQ(out + assembler.Finish(), wanted);
  }
}

// Any ids whatever: the stream is the decoded text, in whole characters.
TEST(Detokenizer, AgreesWithDecodeForRandomIds) {
  std::mt19937 random(7);
  for (const char* name :
       {"gpt2", "llama2", "gemma", "metaspace_always", "unigram_bytes", "words"}) {
    const Tokenizer tokenizer = Load(name);
    for (int round = 0; round < 300; ++round) {
      std::vector<int32_t> ids(random() % 30);
      for (int32_t& id : ids) {
        id = static_cast<int32_t>(random() % static_cast<uint32_t>(tokenizer.vocabulary_size()));
      }
      for (const bool skip : {true, false}) {
        Detokenizer detokenizer(tokenizer, {.skip_special = skip});
        std::string text;
        for (const int32_t id : ids) {
          const std::string part = detokenizer.Add(id);
          ASSERT_TRUE(WellFormed(part));
          text += part;
        }
        text += detokenizer.Finish();
        ASSERT_EQ(text, tokenizer.Decode(ids, skip).value()) << name;
      }
    }
  }
}

TEST(Detokenizer, KeepsTheSpaceOfATextThatContinues) {
  const Tokenizer tokenizer = Load("llama2");
  const auto ids = tokenizer.Encode("wheel", {.add_special = false}).value();
  for (const bool at_start : {true, false}) {
    Detokenizer detokenizer(tokenizer, {.at_start = at_start});
    std::string text;
    for (const int32_t id : ids) {
      text += detokenizer.Add(id);
    }
    EXPECT_EQ(text + detokenizer.Finish(), at_start ? "wheel" : " wheel");
  }
}

TEST(Detokenizer, PassesOverIdsWithoutAToken) {
  Detokenizer detokenizer(Load("gpt2"), {});
  EXPECT_EQ(detokenizer.Add(-5) + detokenizer.Add(1 << 30) + detokenizer.Finish(), "");
}

std::string Filter(StopFilter& filter, std::string_view text) {
  std::string out;
  for (const char c : text) {
    out += filter.Add(std::string(1, c));
  }
  return out + filter.Finish();
}

TEST(StopFilter, GivesBackAtTheEndWhatBeganAStopString) {
  StopFilter filter = StopFilter::Make({"jkQ"}).value();
  EXPECT_EQ(filter.Add("abcdefghi"), "abcdefghi");
  EXPECT_EQ(filter.Add("jk"), "");
  EXPECT_EQ(filter.Finish(), "jk");
  EXPECT_FALSE(filter.stopped());
  StopFilter budget = StopFilter::Make({"cdX"}).value();
  EXPECT_EQ(Filter(budget, "abcd"), "abcd");
}

TEST(StopFilter, StopsWhereverTheTextIsCut) {
  StopFilter filter = StopFilter::Make({"END"}).value();
  EXPECT_EQ(filter.Add("xE"), "x");
  EXPECT_EQ(filter.Add("EN"), "E");
  EXPECT_EQ(filter.Add("Dmore"), "");
  EXPECT_TRUE(filter.stopped());
  EXPECT_EQ(filter.matched(), "END");
  EXPECT_EQ(filter.Add("more") + filter.Finish(), "");
}

TEST(StopFilter, TakesTheOneThatEndsFirstAndThenTheLongest) {
  StopFilter filter = StopFilter::Make({"cd", "abcd", "bcdef"}).value();
  EXPECT_EQ(filter.Add("xabcdef"), "x");
  EXPECT_EQ(filter.matched(), "abcd");
}

TEST(StopFilter, AgreesWithASearchOfTheWholeText) {
  std::mt19937 random(3);
  const auto word = [&random](size_t length) {
    std::string text;
    for (size_t i = 0; i < length; ++i) {
      text += static_cast<char>('a' + random() % 2);
    }
    return text;
  };
  int stopped = 0;
  for (int round = 0; round < 3000; ++round) {
    const std::vector<std::string> stops = {word(1 + random() % 6), word(3 + random() % 6)};
    const std::string text = word(random() % 20);
    // The earliest end wins, then the longest.
    std::string wanted = text;
    for (size_t end = 1; end <= text.size() && wanted.size() == text.size(); ++end) {
      size_t length = 0;
      for (const std::string& stop : stops) {
        if (std::string_view(text).substr(0, end).ends_with(stop)) {
          length = std::max(length, stop.size());
        }
      }
      if (length > 0) {
        wanted = text.substr(0, end - length);
      }
    }
    StopFilter filter = StopFilter::Make(stops).value();
    std::string out;
    for (size_t at = 0; at < text.size();) {
      const size_t step = 1 + random() % 4;
      out += filter.Add(std::string_view(text).substr(at, step));
      at += step;
    }
    out += filter.Finish();
    ASSERT_EQ(out, wanted) << text << " " << stops[0] << " " << stops[1];
    stopped += filter.stopped() ? 1 : 0;
  }
  EXPECT_GT(stopped, 500);
}

TEST(StopFilter, RefusesEmptyStopStrings) {
  EXPECT_FALSE(StopFilter::Make({"a", ""}).ok());
  EXPECT_FALSE(StopFilter::Make(std::vector<std::string>(65, "a")).ok());
  StopFilter none = StopFilter::Make({}).value();
  EXPECT_EQ(none.Add("abc"), "abc");
}

}  // namespace
}  // namespace penstock::text
