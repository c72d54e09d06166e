// ChatML and its relatives: <|im_start|>role, a line end, the content, <|im_end|>. Also Zephyr.

#include "text/chat_render.h"

namespace penstock::text {
namespace {

std::string Turn(std::string_view role, std::string_view content) {
  return fmt::format("<|im_start|>{}\n{}<|im_end|>\n", role, content);
}

std::string Turns(const ChatInput& input) {
  std::string text;
  for (const ChatMessage& message : input.messages) {
    text += Turn(message.role, message.content);
  }
  if (input.options.add_generation_prompt) {
    text += "<|im_start|>assistant\n";
  }
  return text;
}

// With a system message of the model's own where the conversation has none.
std::string TurnsWithDefault(const ChatInput& input, std::string_view system) {
  const bool has_system = input.messages[0].role == "system";
  return (has_system ? std::string() : Turn("system", system)) + Turns(input);
}

Result<std::string> Plain(const ChatInput& input, const std::string&) {
  return Turns(input);
}

Result<std::string> WithBos(const ChatInput& input, const std::string&) {
  return input.bos + Turns(input);
}

Result<std::string> SmolLm2(const ChatInput& input, const std::string&) {
  return TurnsWithDefault(input,
                          "You are a helpful AI assistant named SmolLM, trained by Hugging Face");
}

Result<std::string> Qwen2(const ChatInput& input, const std::string&) {
  return TurnsWithDefault(input, "You are a helpful assistant.");
}

Result<std::string> Qwen25(const ChatInput& input, const std::string&) {
  return TurnsWithDefault(input,
                          "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.");
}

// The last turn stays open when no answer is asked for.
Result<std::string> Qwen15(const ChatInput& input, const std::string&) {
  std::string text;
  if (input.messages[0].role != "system") {
    text = Turn("system", "You are a helpful assistant");
  }
  const bool answer = input.options.add_generation_prompt;
  for (const ChatMessage& message : input.messages) {
    text += fmt::format("<|im_start|>{}\n{}", message.role, message.content);
    if (answer || &message != &input.messages.back()) {
      text += "<|im_end|>\n";
    }
  }
  if (answer && input.messages.back().role != "assistant") {
    text += "<|im_start|>assistant\n";
  }
  return text;
}

std::string StripLineEnds(std::string_view text, bool left, bool right) {
  while (left && text.starts_with('\n')) {
    text.remove_prefix(1);
  }
  while (right && text.ends_with('\n')) {
    text.remove_suffix(1);
  }
  return std::string(text);
}

// An assistant's message as thoughts and answer.
struct Thought {
  std::string reasoning;
  std::string answer;
};

Thought SplitThought(const std::string& content) {
  constexpr std::string_view kOpen = "<think>";
  constexpr std::string_view kClose = "</think>";
  const size_t first_close = content.find(kClose);
  if (first_close == std::string::npos) {
    return {"", content};
  }
  Thought thought;
  thought.answer = StripLineEnds(
      std::string_view(content).substr(content.rfind(kClose) + kClose.size()), true, false);
  const std::string before =
      StripLineEnds(std::string_view(content).substr(0, first_close), false, true);
  const size_t open = before.rfind(kOpen);
  thought.reasoning = StripLineEnds(
      std::string_view(before).substr(open == std::string::npos ? 0 : open + kOpen.size()), true,
      false);
  return thought;
}

// Index of the last question; the last message where there is none.
size_t LastQuestion(const std::vector<ChatMessage>& messages) {
  for (size_t i = messages.size(); i-- > 0;) {
    const std::string& content = messages[i].content;
    const bool tool =
        content.starts_with("<tool_response>") && content.ends_with("</tool_response>");
    if (messages[i].role == "user" && !tool) {
      return i;
    }
  }
  return messages.size() - 1;
}

// Thoughts of earlier answers are left out.
Result<std::string> Qwen3(const ChatInput& input, const std::string&) {
  const std::vector<ChatMessage>& messages = input.messages;
  const size_t last_question = LastQuestion(messages);
  std::string text;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role != "assistant") {
      text += Turn(messages[i].role, messages[i].content);
      continue;
    }
    const Thought thought = SplitThought(messages[i].content);
    const bool last = i + 1 == messages.size();
    if (i > last_question && (last || !thought.reasoning.empty())) {
      text += fmt::format("<|im_start|>assistant\n<think>\n{}\n</think>\n\n{}<|im_end|>\n",
                          StripLineEnds(thought.reasoning, true, true),
                          StripLineEnds(thought.answer, true, false));
    } else {
      text += Turn("assistant", thought.answer);
    }
  }
  if (input.options.add_generation_prompt) {
    text += "<|im_start|>assistant\n";
    text += input.options.thinking ? "" : "<think>\n\n</think>\n\n";
  }
  return text;
}

// The role in marks of its own, the end-of-text token behind each message.
Result<std::string> Zephyr(const ChatInput& input, const std::string&) {
  std::string text;
  for (const ChatMessage& message : input.messages) {
    text += fmt::format("<|{}|>\n{}{}\n", message.role, message.content, input.eos);
  }
  if (input.options.add_generation_prompt) {
    text += "<|assistant|>\n";
  }
  return text;
}

}  // namespace

void AddChatMlTemplates(std::vector<ChatTemplate>& table) {
  table.push_back({"chatml",
                   "ChatML as such",
                   {0x4AFA28198ABC4743, 0x766CA72717A5C275, 0xCF599F4D5D60BC27},
                   Plain});
  table.push_back({"chatml-bos", "ChatML behind a BOS", {0x59E479DB40B1FB6A}, WithBos});
  table.push_back({"smollm2", "SmolLM2 Instruct", {0x3C9B962492754B8C}, SmolLm2});
  table.push_back({"qwen1.5", "Qwen1.5 Chat", {0xE36586E39E1E7673}, Qwen15});
  table.push_back({"qwen2", "Qwen2 Instruct", {0x04D33712FD13D03B}, Qwen2});
  table.push_back({"qwen2.5", "Qwen2.5 Instruct", {0x728766140CF205C1}, Qwen25});
  table.push_back({"qwen2.5-base", "Qwen2.5 base models", {0xDB459AF570528E49}, Qwen2});
  table.push_back({"qwen3", "Qwen3", {0x175A84C70E143859, 0x092C9F459A032A03}, Qwen3});
  table.push_back({"zephyr", "Zephyr, TinyLlama Chat", {0xF5B844484458BB52}, Zephyr});
}

}  // namespace penstock::text
