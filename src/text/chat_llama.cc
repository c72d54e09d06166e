// Llama 2 ([INST], <<SYS>>) and Llama 3 (header marks).

#include "text/chat_render.h"

namespace penstock::text {
namespace {

Result<std::string> Llama2(const ChatInput& input, const std::string& name) {
  const SplitMessages split = SplitSystem(input.messages);
  PENSTOCK_TRY(CheckAlternating(split.rest, name));
  if (split.system != nullptr && split.rest.empty()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[text.chat] template {}: a system message alone, wanted a user message too",
                     name);
  }
  std::string text;
  for (const ChatMessage* message : split.rest) {
    std::string content = message->content;
    if (split.system != nullptr && message == split.rest.front()) {
      content = "<<SYS>>\n" + split.system->content + "\n<</SYS>>\n\n" + content;
    }
    text += message->role == "user" ? input.bos + "[INST] " + Stripped(content) + " [/INST]"
                                    : " " + Stripped(content) + " " + input.eos;
  }
  return text;
}

std::string Header(std::string_view role) {
  return fmt::format("<|start_header_id|>{}<|end_header_id|>\n\n", role);
}

std::string Llama3Turns(const std::vector<const ChatMessage*>& messages) {
  std::string text;
  for (const ChatMessage* message : messages) {
    text += Header(message->role) + Stripped(message->content) + "<|eot_id|>";
  }
  return text;
}

Result<std::string> Llama3(const ChatInput& input, const std::string&) {
  return input.bos + Llama3Turns(Pointers(input.messages)) +
         (input.options.add_generation_prompt ? Header("assistant") : "");
}

// The first edition opened the assistant's turn whether asked to or not.
Result<std::string> Llama3Always(const ChatInput& input, const std::string&) {
  return input.bos + Llama3Turns(Pointers(input.messages)) + Header("assistant");
}

// Always with a system turn that tells two dates.
Result<std::string> Llama31(const ChatInput& input, const std::string&) {
  const SplitMessages split = SplitSystem(input.messages);
  return input.bos + Header("system") +
         "Cutting Knowledge Date: December 2023\nToday Date: " + input.options.date + "\n\n" +
         (split.system != nullptr ? Stripped(split.system->content) : "") + "<|eot_id|>" +
         Llama3Turns(split.rest) + (input.options.add_generation_prompt ? Header("assistant") : "");
}

}  // namespace

void AddLlamaTemplates(std::vector<ChatTemplate>& table) {
  table.push_back({"llama2", "Llama 2 Chat", {0xD6A8FAFB2070C927}, Llama2});
  table.push_back({"llama3", "Llama 3 Instruct", {0xB8C3454CA3467DF6}, Llama3});
  table.push_back(
      {"llama3-always", "Llama 3 Instruct, first edition", {0xC55EE6CA0D5DCB0F}, Llama3Always});
  table.push_back({"llama3.1", "Llama 3.1 and 3.3 Instruct", {0x0A5470E9199E252D}, Llama31});
  table.push_back({"llama3.2", "Llama 3.2 Instruct", {0x56F01963AE229B25}, Llama31});
}

}  // namespace penstock::text
