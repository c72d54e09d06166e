// Chat templates: a conversation as the text, and the ids, that a model was trained on.
//
// Models bring a Jinja template. It is not executed: it is recognised as a whole (see jinja_text.h)
// among the templates that this build knows, each of which has a renderer of its own; anything else
// is an error that lists the names, never a guess. Recognition compares a fingerprint of the
// canonical text, so the repository holds no model's template. Renderings equal those of Jinja for
// conversations of system, user and assistant messages without tools.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_reader.h"
#include "base/result.h"
#include "text/tokenizer.h"

namespace penstock::text {

struct ChatMessage {
  std::string role;  // "system", "user" or "assistant"
  std::string content;
};

struct ChatOptions {
  // Ends with the opening of the assistant's turn, so that the model answers.
  bool add_generation_prompt = true;
  // The date that Llama 3.1 and later print; the default is their templates' own.
  std::string date = "26 Jul 2024";
  // Qwen3: false asks for an answer without thinking.
  bool thinking = true;
};

// What a renderer gets.
struct ChatInput {
  const std::vector<ChatMessage>& messages;
  const ChatOptions& options;
  std::string bos;  // token texts; empty where the tokenizer has none
  std::string eos;
};

// One known template. Lives in a static table.
struct ChatTemplate {
  std::string name;                    // for --template
  std::string about;                   // which models bring it
  std::vector<uint64_t> fingerprints;  // of the texts that it renders; empty: by name only
  Result<std::string> (*render)(const ChatInput& input, const std::string& name) = nullptr;
};

// The template whose text equals `jinja` up to white space that is not printed.
// Errors: kUnsupported naming `source` and all known templates, with the fingerprint of this one.
Result<const ChatTemplate*> RecognizeChatTemplate(std::string_view jinja,
                                                  const std::string& source);

// By name. Errors: kInvalidArgument listing the names.
Result<const ChatTemplate*> ChatTemplateNamed(std::string_view name);

// All of them, in the order of their names.
const std::vector<ChatTemplate>& ChatTemplates();

// The template's text in a tokenizer_config.json: "chat_template" as text, or its "default" in a
// list of named ones. Empty where there is none.
std::string ChatTemplateText(const Json& tokenizer_config);

// Messages from {"messages": [...]} or from a bare list of {"role", "content"}; content is a text
// or a list of
// {"type": "text", "text"}. Errors: kInvalidArgument naming `source` and the message.
Result<std::vector<ChatMessage>> ReadChatMessages(const Json& json, const std::string& source);

// The conversation as text, BOS included where the template prints it.
// Errors: kInvalidArgument: no messages, an unknown role, a system message that the template
// refuses, roles that do not alternate where the template wants it.
Result<std::string> RenderChat(const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                               const std::vector<ChatMessage>& messages,
                               const ChatOptions& options);

// The conversation as ids. Begins with exactly one BOS if the template prints one or the tokenizer
// adds one to texts. Errors: as RenderChat and Tokenizer::Encode.
Result<std::vector<int32_t>> EncodeChat(const ChatTemplate& chat_template,
                                        const Tokenizer& tokenizer,
                                        const std::vector<ChatMessage>& messages,
                                        const ChatOptions& options);

}  // namespace penstock::text
