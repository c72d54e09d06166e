#include "text/chat_template.h"

#include <algorithm>

#include "base/json.h"
#include "base/units.h"
#include "text/chat_render.h"
#include "text/jinja_text.h"
#include "text/utf8.h"

namespace penstock::text {
namespace {

std::string Names() {
  std::string names;
  for (const ChatTemplate& entry : ChatTemplates()) {
    names += (names.empty() ? "" : " ") + entry.name;
  }
  return names;
}

// Python's str.isspace: White_Space and four separators of ASCII.
bool IsPythonSpace(char32_t c) {
  return IsWhiteSpace(c) || (c >= 0x1C && c <= 0x1F);
}

// The content of one message of a chat file.
Result<std::string> ReadContent(const JsonReader& message) {
  const Json* content = message.Find("content");
  if (content == nullptr || !content->is_array()) {
    return message.String("content");
  }
  std::string text;
  for (const Json& part : *content) {
    const JsonReader reader(part, message.where() + ".content");
    PENSTOCK_TRY_ASSIGN(const std::string type, reader.String("type"));
    if (type != "text") {
      return MakeError(ErrorCode::kUnsupported,
                       "[text.chat] {}: content of type \"{}\", wanted text", message.where(),
                       type);
    }
    PENSTOCK_TRY_ASSIGN(const std::string piece, reader.String("text"));
    text += piece;
  }
  return text;
}

Result<> CheckMessages(const std::vector<ChatMessage>& messages) {
  if (messages.empty()) {
    return MakeError(ErrorCode::kInvalidArgument, "[text.chat] no messages, wanted at least one");
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    if (role != "system" && role != "user" && role != "assistant") {
      return MakeError(ErrorCode::kInvalidArgument,
                       "[text.chat] messages[{}]: role \"{}\", wanted system, user or assistant", i,
                       role);
    }
  }
  return {};
}

std::string TextOf(const Tokenizer& tokenizer, std::optional<int32_t> id) {
  return id.has_value() ? std::string(tokenizer.TokenText(*id)) : std::string();
}

}  // namespace

std::string Stripped(std::string_view text) {
  const auto is_space = [](std::string_view character) {
    size_t at = 0;
    return WellFormedLength(character) == character.size() &&
           IsPythonSpace(NextCodePoint(character, at));
  };
  while (!text.empty()) {
    const size_t length = WellFormedLength(text);
    if (length == 0 || !is_space(text.substr(0, length))) {
      break;
    }
    text.remove_prefix(length);
  }
  while (!text.empty()) {
    size_t length = 1;
    while (length < 4 && length < text.size() && (text[text.size() - length] & 0xC0) == 0x80) {
      ++length;
    }
    if (!is_space(text.substr(text.size() - length))) {
      break;
    }
    text.remove_suffix(length);
  }
  return std::string(text);
}

SplitMessages SplitSystem(const std::vector<ChatMessage>& messages) {
  SplitMessages split;
  split.rest = Pointers(messages);
  if (!split.rest.empty() && split.rest.front()->role == "system") {
    split.system = split.rest.front();
    split.rest.erase(split.rest.begin());
  }
  return split;
}

Error SystemRefused(const std::string& name) {
  return MakeError(ErrorCode::kInvalidArgument,
                   "[text.chat] template {}: it has no place for a system message, wanted user and "
                   "assistant messages only",
                   name);
}

Result<> CheckAlternating(const std::vector<const ChatMessage*>& messages,
                          const std::string& name) {
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string_view wanted = i % 2 == 0 ? "user" : "assistant";
    if (messages[i]->role != wanted) {
      return MakeError(
          ErrorCode::kInvalidArgument,
          "[text.chat] template {}: message {} (not counting a leading system message) "
          "is of role {}, wanted {}: user and assistant must alternate",
          name, i, messages[i]->role, wanted);
    }
  }
  return {};
}

Result<> CheckNoSystem(const std::vector<ChatMessage>& messages, const std::string& name) {
  const bool any = std::any_of(messages.begin(), messages.end(),
                               [](const ChatMessage& message) { return message.role == "system"; });
  if (any) {
    return SystemRefused(name);
  }
  return {};
}

std::vector<const ChatMessage*> Pointers(const std::vector<ChatMessage>& messages) {
  std::vector<const ChatMessage*> pointers;
  pointers.reserve(messages.size());
  for (const ChatMessage& message : messages) {
    pointers.push_back(&message);
  }
  return pointers;
}

const std::vector<ChatTemplate>& ChatTemplates() {
  static const std::vector<ChatTemplate> table = [] {
    std::vector<ChatTemplate> rows;
    AddChatMlTemplates(rows);
    AddLlamaTemplates(rows);
    AddMistralTemplates(rows);
    AddPhiTemplates(rows);
    AddGemmaTemplates(rows);
    std::sort(rows.begin(), rows.end(),
              [](const ChatTemplate& a, const ChatTemplate& b) { return a.name < b.name; });
    return rows;
  }();
  return table;
}

Result<const ChatTemplate*> RecognizeChatTemplate(std::string_view jinja,
                                                  const std::string& source) {
  const std::optional<uint64_t> fingerprint = TemplateFingerprint(jinja);
  for (const ChatTemplate& entry : ChatTemplates()) {
    const auto& known = entry.fingerprints;
    if (fingerprint.has_value() &&
        std::find(known.begin(), known.end(), *fingerprint) != known.end()) {
      return &entry;
    }
  }
  return MakeError(
      ErrorCode::kUnsupported,
      "[text.chat] {}: unknown chat template (fingerprint {:016x}), wanted one that is "
      "known: {}\nhint: --template NAME takes one of these instead",
      source, fingerprint.value_or(0), Names());
}

Result<const ChatTemplate*> ChatTemplateNamed(std::string_view name) {
  std::vector<std::string> names;
  for (const ChatTemplate& entry : ChatTemplates()) {
    if (entry.name == name) {
      return &entry;
    }
    names.push_back(entry.name);
  }
  const std::string nearest = NearestName(name, names);
  return MakeError(ErrorCode::kInvalidArgument,
                   "[text.chat] chat template \"{}\", wanted one of: {}{}", name, Names(),
                   nearest.empty() ? "" : fmt::format("\nhint: did you mean {}?", nearest));
}

std::string ChatTemplateText(const Json& tokenizer_config) {
  const JsonReader reader(tokenizer_config, "tokenizer_config.json");
  const Json* value = reader.Find("chat_template");
  if (value == nullptr) {
    return {};
  }
  if (value->is_string()) {
    return value->get<std::string>();
  }
  for (const Json& item : *value) {
    const JsonReader entry(item, "tokenizer_config.json: chat_template");
    const Json* name = entry.Find("name");
    const Json* text = entry.Find("template");
    if (name != nullptr && text != nullptr && *name == "default" && text->is_string()) {
      return text->get<std::string>();
    }
  }
  return {};
}

Result<std::vector<ChatMessage>> ReadChatMessages(const Json& json, const std::string& source) {
  const Json* list = json.is_array() ? &json : JsonReader(json, source).Find("messages");
  if (list == nullptr || !list->is_array()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[text.chat] {}: wanted {{\"messages\": [{{\"role\", \"content\"}}]}}",
                     source);
  }
  std::vector<ChatMessage> messages;
  for (const Json& item : *list) {
    const JsonReader reader(item, fmt::format("{}: messages[{}]", source, messages.size()));
    ChatMessage message;
    PENSTOCK_TRY_ASSIGN(message.role, reader.String("role"));
    PENSTOCK_TRY_ASSIGN(message.content, ReadContent(reader));
    messages.push_back(std::move(message));
  }
  PENSTOCK_TRY(CheckMessages(messages));
  return messages;
}

Result<std::string> RenderChat(const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                               const std::vector<ChatMessage>& messages,
                               const ChatOptions& options) {
  PENSTOCK_TRY(CheckMessages(messages));
  const ChatInput input{messages, options, TextOf(tokenizer, tokenizer.bos_id()),
                        TextOf(tokenizer, tokenizer.eos_id())};
  return chat_template.render(input, chat_template.name);
}

Result<std::vector<int32_t>> EncodeChat(const ChatTemplate& chat_template,
                                        const Tokenizer& tokenizer,
                                        const std::vector<ChatMessage>& messages,
                                        const ChatOptions& options) {
  PENSTOCK_TRY_ASSIGN(const std::string text,
                      RenderChat(chat_template, tokenizer, messages, options));
  PENSTOCK_TRY_ASSIGN(std::vector<int32_t> ids, tokenizer.Encode(text, {.add_special = false}));
  // A template without a BOS relies on the tokenizer's.
  if (tokenizer.adds_bos() && (ids.empty() || ids.front() != *tokenizer.bos_id())) {
    ids.insert(ids.begin(), *tokenizer.bos_id());
  }
  return ids;
}

}  // namespace penstock::text
