// What the renderers of chat templates share. For the chat_*.cc files of this folder only.

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/chat_template.h"

namespace penstock::text {

// White space off both ends, as Python's str.strip() and Jinja's trim do.
std::string Stripped(std::string_view text);

// Conversation of a template with an optional first system message.
struct SplitMessages {
  const ChatMessage* system = nullptr;  // null: none
  std::vector<const ChatMessage*> rest;
};

SplitMessages SplitSystem(const std::vector<ChatMessage>& messages);

// Refusals that name the template.
Error SystemRefused(const std::string& name);
// Good if the messages run user, assistant, user, ... with no other role.
Result<> CheckAlternating(const std::vector<const ChatMessage*>& messages, const std::string& name);
// Good if there is no system message.
Result<> CheckNoSystem(const std::vector<ChatMessage>& messages, const std::string& name);
std::vector<const ChatMessage*> Pointers(const std::vector<ChatMessage>& messages);

// The families' entries.
void AddChatMlTemplates(std::vector<ChatTemplate>& table);
void AddLlamaTemplates(std::vector<ChatTemplate>& table);
void AddMistralTemplates(std::vector<ChatTemplate>& table);
void AddPhiTemplates(std::vector<ChatTemplate>& table);
void AddGemmaTemplates(std::vector<ChatTemplate>& table);

}  // namespace penstock::text
