// Mistral and Mixtral: [INST] user [/INST] assistant </s>, with the spaces of each edition.

#include "text/chat_render.h"

namespace penstock::text {
namespace {

// What an edition writes around the parts.
struct Style {
  std::string_view open;          // before a user's content
  std::string_view close;         // behind it
  std::string_view answer_open;   // before the assistant's content
  std::string_view answer_close;  // behind the end-of-text token
  bool strip_answer = false;
};

std::string Answer(const Style& style, const ChatMessage& message, const std::string& eos) {
  const std::string content = style.strip_answer ? Stripped(message.content) : message.content;
  return fmt::format("{}{}{}{}", style.answer_open, content, eos, style.answer_close);
}

// The editions that refuse system messages.
Result<std::string> WithoutSystem(const ChatInput& input, const std::string& name,
                                  const Style& style) {
  PENSTOCK_TRY(CheckNoSystem(input.messages, name));
  const auto messages = Pointers(input.messages);
  PENSTOCK_TRY(CheckAlternating(messages, name));
  std::string text = input.bos;
  for (const ChatMessage* message : messages) {
    text += message->role == "user"
                ? fmt::format("{}{}{}", style.open, message->content, style.close)
                : Answer(style, *message, input.eos);
  }
  return text;
}

// The editions that put the system message before one user message: the first or the last.
Result<std::string> WithSystem(const ChatInput& input, const std::string& name, const Style& style,
                               bool before_last) {
  const SplitMessages split = SplitSystem(input.messages);
  PENSTOCK_TRY(CheckAlternating(split.rest, name));
  const bool has_place = !split.rest.empty() && (!before_last || split.rest.back()->role == "user");
  if (split.system != nullptr && !has_place) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[text.chat] template {}: it prints a system message only before the {} user "
                     "message, and the conversation has none there",
                     name, before_last ? "last" : "first");
  }
  const ChatMessage* host = split.system == nullptr ? nullptr
                            : before_last           ? split.rest.back()
                                                    : split.rest.front();
  std::string text = input.bos;
  for (const ChatMessage* message : split.rest) {
    if (message->role == "assistant") {
      text += Answer(style, *message, input.eos);
      continue;
    }
    const std::string system = message == host ? split.system->content + "\n\n" : "";
    text += fmt::format("{}{}{}{}", style.open, system, message->content, style.close);
  }
  return text;
}

Result<std::string> Mistral(const ChatInput& input, const std::string& name) {
  return WithoutSystem(input, name, {"[INST] ", " [/INST]", "", ""});
}

Result<std::string> MistralV01(const ChatInput& input, const std::string& name) {
  return WithoutSystem(input, name, {"[INST] ", " [/INST]", "", " "});
}

Result<std::string> MistralSystem(const ChatInput& input, const std::string& name) {
  return WithSystem(input, name, {" [INST] ", " [/INST]", " ", ""}, false);
}

Result<std::string> MistralV3(const ChatInput& input, const std::string& name) {
  return WithSystem(input, name, {"[INST] ", "[/INST]", " ", "", true}, true);
}

Result<std::string> MistralNemo(const ChatInput& input, const std::string& name) {
  return WithSystem(input, name, {"[INST]", "[/INST]", "", ""}, true);
}

Result<std::string> MistralV7(const ChatInput& input, const std::string&) {
  std::string text = input.bos;
  for (const ChatMessage& message : input.messages) {
    if (message.role == "user") {
      text += "[INST] " + message.content + "[/INST]";
    } else if (message.role == "system") {
      text += "[SYSTEM_PROMPT] " + message.content + "[/SYSTEM_PROMPT]";
    } else {
      text += " " + message.content + input.eos;
    }
  }
  return text;
}

}  // namespace

void AddMistralTemplates(std::vector<ChatTemplate>& table) {
  table.push_back(
      {"mistral", "Mistral 7B Instruct v0.2, Mixtral Instruct", {0xDB834D84FCBA2F5E}, Mistral});
  table.push_back({"mistral-v0.1", "Mistral 7B Instruct v0.1", {0xF57DE31D0F63D46A}, MistralV01});
  table.push_back({"mistral-system",
                   "Mistral 7B Instruct v0.1 and v0.2, later edition",
                   {0xA1A5EB12B0882D4D},
                   MistralSystem});
  table.push_back({"mistral-v3", "Mistral 7B Instruct v0.3", {0x1090E8C068F53E36}, MistralV3});
  table.push_back({"mistral-nemo", "Mistral Nemo Instruct", {0x025CCC7690A6DEF2}, MistralNemo});
  table.push_back({"mistral-v7", "Mistral Large Instruct 2411", {0x71254C233ED287BE}, MistralV7});
}

}  // namespace penstock::text
