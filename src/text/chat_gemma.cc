// Gemma 1, 2 and 3: <start_of_turn>user, <start_of_turn>model.

#include "text/chat_render.h"

namespace penstock::text {
namespace {

std::string Turns(const std::vector<const ChatMessage*>& messages, const std::string& first_prefix,
                  bool open) {
  std::string text;
  for (const ChatMessage* message : messages) {
    const std::string role = message->role == "assistant" ? "model" : message->role;
    text +=
        fmt::format("<start_of_turn>{}\n{}{}<end_of_turn>\n", role,
                    message == messages.front() ? first_prefix : "", Stripped(message->content));
  }
  return text + (open ? "<start_of_turn>model\n" : "");
}

Result<std::string> Gemma(const ChatInput& input, const std::string& name) {
  PENSTOCK_TRY(CheckNoSystem(input.messages, name));
  const auto messages = Pointers(input.messages);
  PENSTOCK_TRY(CheckAlternating(messages, name));
  return Turns(messages, "", input.options.add_generation_prompt);
}

Result<std::string> Gemma2(const ChatInput& input, const std::string& name) {
  PENSTOCK_TRY_ASSIGN(const std::string text, Gemma(input, name));
  return input.bos + text;
}

// Without the rule that roles alternate.
Result<std::string> GemmaPlain(const ChatInput& input, const std::string& name) {
  PENSTOCK_TRY(CheckNoSystem(input.messages, name));
  return input.bos + Turns(Pointers(input.messages), "", input.options.add_generation_prompt);
}

// A system message goes before the first user message.
Result<std::string> Gemma3(const ChatInput& input, const std::string& name) {
  const SplitMessages split = SplitSystem(input.messages);
  PENSTOCK_TRY(CheckAlternating(split.rest, name));
  if (split.system != nullptr && split.rest.empty()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[text.chat] template {}: a system message alone, wanted a user message too",
                     name);
  }
  const std::string prefix = split.system == nullptr ? "" : split.system->content + "\n\n";
  return input.bos + Turns(split.rest, prefix, input.options.add_generation_prompt);
}

}  // namespace

void AddGemmaTemplates(std::vector<ChatTemplate>& table) {
  table.push_back({"gemma", "Gemma Instruct, first edition", {0xD623081065D609DB}, Gemma});
  table.push_back({"gemma2", "Gemma and Gemma 2 Instruct", {0xBCBE7EB9E690C159}, Gemma2});
  table.push_back({"gemma3", "Gemma 3 Instruct", {0x5BD8AA82BC56486F}, Gemma3});
  table.push_back({"gemma-plain", "Gemma's turns in any order", {0x84BD0BEE1E88C5B8}, GemmaPlain});
}

}  // namespace penstock::text
