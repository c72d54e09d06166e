#include "text/chat_template.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/file.h"
#include "base/json.h"
#include "text/jinja_text.h"

namespace penstock::text {
namespace {

const std::string kGolden = std::string(PENSTOCK_SOURCE_DIR) + "/tests/golden/";

// Byte-level, with <s> and </s>; adds a BOS itself or not.
Tokenizer SmallTokenizer(bool add_bos) {
  const std::string path = kGolden + "tokenizers/gpt2/tokenizer.json";
  const Json config = {{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"add_bos_token", add_bos}};
  return Tokenizer::FromTokenizerJson(ReadFile(path).value(), &config, path).value();
}

// Templates of our own making, in the manner of Gemma and of ChatML.
constexpr const char* kGemmaLike =
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}<start_of_turn>"
    "{{ 'model' if m['role'] == 'assistant' else m['role'] }}\n{{ m['content'] | trim "
    "}}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}";
constexpr const char* kChatMlLike =
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] "
    "}}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

TEST(ChatTemplate, RendersWhatJinjaRenders) {
  const Json goldens = ReadJsonFile(kGolden + "chat/renderings.json").value();
  const Tokenizer tokenizer = SmallTokenizer(false);
  std::set<std::string> seen;
  size_t count = 0;
  for (const auto& [name, results] : goldens["templates"].items()) {
    const auto entry = ChatTemplateNamed(name);
    ASSERT_TRUE(entry.ok()) << entry.error().message;
    seen.insert(name);
    size_t row = 0;
    for (const Json& conversation : goldens["conversations"]) {
      const auto messages = ReadChatMessages(conversation, "golden").value();
      for (const bool answer : {true, false}) {
        SCOPED_TRACE(testing::Message() << name << " " << conversation << " " << answer);
        ChatOptions options;
        options.add_generation_prompt = answer;
        const auto text = RenderChat(*entry.value(), tokenizer, messages, options);
        const Json& wanted = results.at(row++);
        ++count;
        // These print a late system message as a turn that their models never saw; we refuse it.
        const bool late_system = conversation.size() == 3 && conversation[1]["role"] == "system";
        if (late_system && (name.starts_with("gemma") || name == "llama2")) {
          EXPECT_FALSE(text.ok());
          continue;
        }
        if (wanted.contains("text") && !wanted.contains("drops")) {
          ASSERT_TRUE(text.ok()) << text.error().message;
          EXPECT_EQ(text.value(), wanted["text"].get<std::string>());
        } else {
          // Where Jinja refuses or would drop a message, so do we.
          EXPECT_FALSE(text.ok());
        }
      }
    }
  }
  EXPECT_EQ(seen.size(), ChatTemplates().size());
  EXPECT_EQ(count, seen.size() * 30);
}

TEST(ChatTemplate, IsRecognizedWholeWhateverItsUnprintedWhiteSpace) {
  EXPECT_EQ(RecognizeChatTemplate(kGemmaLike, "x").value()->name, "gemma-plain");
  EXPECT_EQ(RecognizeChatTemplate(kChatMlLike, "x").value()->name, "chatml-bos");
  const std::string spaced =
      "{{bos_token}}{#- a remark -#}\n{%for m in messages%}\n<|im_start|>{{  m[\"role\"]  }}\r\n"
      "{{ m['content'] }}<|im_end|>\n   {% endfor -%}\n\n  {%- if add_generation_prompt %}"
      "<|im_start|>assistant\n{% endif %}\n";
  EXPECT_EQ(RecognizeChatTemplate(spaced, "x").value()->name, "chatml-bos");
}

TEST(ChatTemplate, IsNotRecognizedWhenAnythingPrintedDiffers) {
  std::string changed = kChatMlLike;
  changed.replace(changed.find("<|im_end|>\n"), 11, "<|im_end|> ");
  EXPECT_FALSE(RecognizeChatTemplate(changed, "x").ok());
  EXPECT_FALSE(RecognizeChatTemplate(std::string(kChatMlLike) + "{% if", "x").ok());
  EXPECT_FALSE(RecognizeChatTemplate("", "x").ok());
  const auto odd = RecognizeChatTemplate(
      "{% for m in messages %}@@{{ m.content[::-1] }}{% endfor %}", "model/tokenizer_config.json");
  ASSERT_FALSE(odd.ok());
  EXPECT_EQ(odd.error().code, ErrorCode::kUnsupported);
  for (const char* part :
       {"template", "model/tokenizer_config.json", "chatml", "smollm2", "--template"}) {
    EXPECT_NE(odd.error().message.find(part), std::string::npos) << odd.error().message;
  }
}

TEST(ChatTemplate, FingerprintsBelongToOneTemplateEach) {
  std::set<uint64_t> seen;
  for (const ChatTemplate& entry : ChatTemplates()) {
    EXPECT_FALSE(entry.fingerprints.empty()) << entry.name;
    for (const uint64_t fingerprint : entry.fingerprints) {
      EXPECT_TRUE(seen.insert(fingerprint).second) << entry.name;
    }
  }
}

TEST(ChatTemplate, RefusesASystemMessageWhereItHasNoPlace) {
  const auto refused = EncodeChat(*ChatTemplateNamed("gemma2").value(), SmallTokenizer(true),
                                  {{"system", "be short"}, {"user", "hi"}}, {});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(refused.error().message.find("system"), std::string::npos);
}

TEST(ChatTemplate, GivesExactlyOneBos) {
  const std::vector<ChatMessage> messages = {{"user", "hi"}};
  for (const bool add_bos : {true, false}) {
    const Tokenizer tokenizer = SmallTokenizer(add_bos);
    for (const char* name : {"gemma-plain", "chatml-bos", "chatml"}) {
      const auto ids =
          EncodeChat(*ChatTemplateNamed(name).value(), tokenizer, messages, {}).value();
      const bool wanted = add_bos || std::string_view(name) != "chatml";
      EXPECT_EQ(std::count(ids.begin(), ids.end(), *tokenizer.bos_id()), wanted ? 1 : 0) << name;
      EXPECT_EQ(ids.front() == *tokenizer.bos_id(), wanted) << name;
    }
  }
}

TEST(ChatTemplate, NamesTheNearestOne) {
  const auto unknown = ChatTemplateNamed("smolm2");
  ASSERT_FALSE(unknown.ok());
  EXPECT_NE(unknown.error().message.find("did you mean smollm2"), std::string::npos);
}

TEST(ChatTemplate, ReadsChatFilesOfBothShapes) {
  const Json list = ParseJson(R"([{"role": "user", "content": "a"}])", "x").value();
  EXPECT_EQ(ReadChatMessages(list, "x").value()[0].content, "a");
  const Json object =
      ParseJson(R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]})",
                "x")
          .value();
  EXPECT_EQ(ReadChatMessages(object, "x").value()[0].content, "a");
  for (const char* bad :
       {"{}", "[]", "3", R"([{"role": "tool", "content": "a"}])", R"([{"role": "user"}])",
        R"([{"role": "user", "content": [{"type": "image"}]}])", R"([1])"}) {
    EXPECT_FALSE(ReadChatMessages(ParseJson(bad, "x").value(), "x").ok()) << bad;
  }
}

TEST(ChatTemplate, TextComesFromTheConfigurationAloneOrByName) {
  EXPECT_EQ(ChatTemplateText({{"chat_template", "a"}}), "a");
  EXPECT_EQ(ChatTemplateText(ParseJson(R"({"chat_template": [{"name": "tool", "template": "t"},
                                          {"name": "default", "template": "d"}]})",
                                       "x")
                                 .value()),
            "d");
  EXPECT_EQ(ChatTemplateText(Json::object()), "");
}

}  // namespace
}  // namespace penstock::text
