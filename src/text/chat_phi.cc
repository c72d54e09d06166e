// Phi-3 and Phi-4.

#include "text/chat_render.h"

namespace penstock::text {
namespace {

std::string Turn(const ChatMessage& message) {
  return fmt::format("<|{}|>\n{}<|end|>\n", message.role, message.content);
}

std::string Turns(const std::vector<ChatMessage>& messages) {
  std::string text;
  for (const ChatMessage& message : messages) {
    text += Turn(message);
  }
  return text;
}

Result<std::string> Phi3(const ChatInput& input, const std::string&) {
  return Turns(input.messages) +
         (input.options.add_generation_prompt ? "<|assistant|>\n" : input.eos);
}

// An empty system message prints nothing.
Result<std::string> Phi35(const ChatInput& input, const std::string&) {
  std::string text;
  for (const ChatMessage& message : input.messages) {
    if (message.role != "system" || !message.content.empty()) {
      text += Turn(message);
    }
  }
  return text + (input.options.add_generation_prompt ? "<|assistant|>\n" : input.eos);
}

Result<std::string> Phi3Small(const ChatInput& input, const std::string& name) {
  PENSTOCK_TRY_ASSIGN(const std::string text, Phi3(input, name));
  return input.bos + text;
}

Result<std::string> Phi3Vision(const ChatInput& input, const std::string&) {
  const bool open =
      input.options.add_generation_prompt && input.messages.back().role != "assistant";
  return Turns(input.messages) + (open ? "<|assistant|>\n" : "");
}

// Each user message opens the assistant's turn. These have no place for a system message.
Result<std::string> Phi3Medium(const ChatInput& input, const std::string& name) {
  std::string text;
  for (const ChatMessage& message : input.messages) {
    if (message.role == "system") {
      if (!message.content.empty()) {
        return SystemRefused(name);
      }
      continue;
    }
    text +=
        message.role == "user" ? Turn(message) + "<|assistant|>\n" : message.content + "<|end|>\n";
  }
  return text;
}

Result<std::string> Phi3Mini(const ChatInput& input, const std::string& name) {
  PENSTOCK_TRY_ASSIGN(const std::string text, Phi3Medium(input, name));
  return input.bos + text;
}

Result<std::string> Phi4(const ChatInput& input, const std::string&) {
  std::string text;
  for (const ChatMessage& message : input.messages) {
    if (message.role == "assistant") {
      text += message.content + "<|im_end|>";
      continue;
    }
    text += fmt::format("<|im_start|>{}<|im_sep|>{}<|im_end|>", message.role, message.content);
    text += message.role == "user" ? "<|im_start|>assistant<|im_sep|>" : "";
  }
  return text;
}

Result<std::string> Phi4Mini(const ChatInput& input, const std::string&) {
  std::string text;
  for (const ChatMessage& message : input.messages) {
    text += fmt::format("<|{}|>{}<|end|>", message.role, message.content);
  }
  return text + (input.options.add_generation_prompt ? "<|assistant|>" : input.eos);
}

}  // namespace

void AddPhiTemplates(std::vector<ChatTemplate>& table) {
  table.push_back({"phi3", "Phi-3 mini, later edition", {0xB79D8CB25DF9BF00}, Phi3});
  table.push_back({"phi3.5", "Phi-3.5 mini", {0xE32995AF714C4BD7}, Phi35});
  table.push_back({"phi3-mini", "Phi-3 mini, first edition", {0xAA737DEC69561BE7}, Phi3Mini});
  table.push_back({"phi3-small", "Phi-3 small", {0x33E29342BFFDCF68}, Phi3Small});
  table.push_back({"phi3-medium", "Phi-3 medium", {0xD6AB13F4882E02A9}, Phi3Medium});
  table.push_back({"phi3-vision", "Phi-3 vision", {0xEB6EE07E55CDA90A}, Phi3Vision});
  table.push_back({"phi4", "Phi-4", {0x092E3F66F6F6A1D8}, Phi4});
  table.push_back({"phi4-mini", "Phi-4 mini", {0x233BD7C37DC9D6C4}, Phi4Mini});
}

}  // namespace penstock::text
