// penstock run: generates text.

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <mutex>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/units.h"
#include "cli/generate.h"
#include "cli/model_flags.h"
#include "cli/run_report.h"
#include "cli/sampling_flags.h"
#include "cli/setup_watch.h"
#include "cli/standard_input.h"
#include "cli/text_model.h"
#include "cli/verbs.h"
#include "trace/chrome.h"

namespace penstock::cli {
namespace {

enum class PromptKind : uint8_t { kText, kFile, kLines, kChat, kTokens };

struct RunFlags {
  ModelFlags model;
  SamplingFlagValues sampling;
  std::vector<std::string> prompts;
  std::vector<std::string> prompt_files;
  std::vector<std::string> line_files;
  std::vector<std::string> chat_files;
  std::vector<std::string> token_lists;
  std::vector<PromptKind> order;  // of the prompts on the command line
  int64_t max_new = 256;
  bool max_new_given = false;
  std::string template_name;
  std::string system;
  std::vector<std::string> stops;
  bool ignore_eos = false;
  std::string trace_file;
};

Result<std::string> ReadPromptFile(const std::string& path) {
  return path == "-" ? ReadStandardInput() : ReadFile(path);
}

// Each line that is not empty.
Result<std::vector<std::string>> ReadPromptLines(const std::string& path) {
  PENSTOCK_TRY_ASSIGN(const std::string content, ReadPromptFile(path));
  std::vector<std::string> lines;
  for (size_t at = 0; at < content.size();) {
    const size_t end = std::min(content.find('\n', at), content.size());
    std::string line = content.substr(at, end - at);
    if (!line.empty() && line.back() == '\r') {
      line.pop_back();
    }
    if (!line.empty()) {
      lines.push_back(std::move(line));
    }
    at = end + 1;
  }
  if (lines.empty()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[cli.run] --prompt-lines {}: has no line with a text, wanted at least one",
                     path);
  }
  return lines;
}

// Flags that only texts heed, where there are none: not left out in silence.
Result<> CheckTextFlags(const RunFlags& flags, bool has_tokenizer) {
  if (!flags.stops.empty() && !has_tokenizer) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        "[cli.run] --stop: {} has no tokenizer, so that there is no text to end; leave "
        "--stop out",
        flags.model.model);
  }
  const bool only_tokens = flags.order.size() == flags.token_lists.size();
  if (only_tokens && !flags.order.empty() &&
      !(flags.system.empty() && flags.template_name.empty())) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[cli.run] {}: --tokens are taken literally, and there is no other prompt "
                     "that it could shape; give -p, --prompt-file or --chat",
                     flags.system.empty() ? "--template" : "--system");
  }
  return {};
}

// Standard input can be read once.
Result<> CheckStandardInput(const RunFlags& flags) {
  const auto count = [](const std::vector<std::string>& paths) {
    return std::count(paths.begin(), paths.end(), "-");
  };
  const auto uses = count(flags.prompt_files) + count(flags.line_files);
  if (uses > 1) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[cli.run] --prompt-file, --prompt-lines: got standard input (-) {} times, "
                     "wanted once",
                     uses);
  }
  return {};
}

Result<std::vector<text::ChatMessage>> Messages(const RunFlags& flags, const std::string& path) {
  PENSTOCK_TRY_ASSIGN(const Json json, ReadJsonFile(path));
  PENSTOCK_TRY_ASSIGN(std::vector<text::ChatMessage> messages, text::ReadChatMessages(json, path));
  if (!flags.system.empty()) {
    messages.insert(messages.begin(), {"system", flags.system});
  }
  return messages;
}

// A text as ids: as it is, or as a user's message when --system or --template asks for a chat.
Result<std::vector<int32_t>> EncodePrompt(const RunFlags& flags, const LoadedTokenizer& tokenizer,
                                          const std::string& text) {
  if (flags.system.empty() && flags.template_name.empty()) {
    return tokenizer.tokenizer.Encode(text);
  }
  PENSTOCK_TRY_ASSIGN(const text::ChatTemplate* chat, PickTemplate(tokenizer, flags.template_name));
  std::vector<text::ChatMessage> messages;
  if (!flags.system.empty()) {
    messages.push_back({"system", flags.system});
  }
  messages.push_back({"user", text});
  return text::EncodeChat(*chat, tokenizer.tokenizer, messages, {});
}

Result<std::vector<int32_t>> EncodeChatFile(const RunFlags& flags, const LoadedTokenizer& tokenizer,
                                            const std::string& path) {
  PENSTOCK_TRY_ASSIGN(const text::ChatTemplate* chat, PickTemplate(tokenizer, flags.template_name));
  PENSTOCK_TRY_ASSIGN(const std::vector<text::ChatMessage> messages, Messages(flags, path));
  return text::EncodeChat(*chat, tokenizer.tokenizer, messages, {});
}

// The sequences, in the order in which they stand on the command line.
Result<std::vector<Prompt>> Prompts(const RunFlags& flags, const LoadedTokenizer* tokenizer) {
  PENSTOCK_TRY(CheckStandardInput(flags));
  std::vector<Prompt> prompts;
  auto text = flags.prompts.begin();
  auto list = flags.token_lists.begin();
  auto file = flags.prompt_files.begin();
  auto lines = flags.line_files.begin();
  auto chat = flags.chat_files.begin();
  for (const PromptKind kind : flags.order) {
    if (kind == PromptKind::kTokens) {
      PENSTOCK_TRY_ASSIGN(std::vector<int32_t> ids, ParseIds(*list++, "--tokens"));
      prompts.push_back({std::move(ids)});
      continue;
    }
    if (tokenizer == nullptr) {
      return MakeError(
          ErrorCode::kInvalidArgument,
          "[cli.run] {}: a text needs a tokenizer, and the model has none; --tokens works without",
          flags.model.model);
    }
    if (kind == PromptKind::kChat) {
      PENSTOCK_TRY_ASSIGN(std::vector<int32_t> ids, EncodeChatFile(flags, *tokenizer, *chat++));
      prompts.push_back({std::move(ids)});
      continue;
    }
    std::vector<std::string> texts;
    if (kind == PromptKind::kFile) {
      PENSTOCK_TRY_ASSIGN(texts.emplace_back(), ReadPromptFile(*file++));
    } else if (kind == PromptKind::kLines) {
      PENSTOCK_TRY_ASSIGN(texts, ReadPromptLines(*lines++));
    } else {
      texts.push_back(*text++);
    }
    for (const std::string& one : texts) {
      PENSTOCK_TRY_ASSIGN(std::vector<int32_t> ids, EncodePrompt(flags, *tokenizer, one));
      prompts.push_back({std::move(ids)});
    }
  }
  return prompts;
}

// Every sequence must fit the context before anything is loaded. Without -n a sequence may end
// where the context does.
Result<> SetBudgets(std::vector<Prompt>& prompts, const RunFlags& flags, int64_t context) {
  for (size_t i = 0; i < prompts.size(); ++i) {
    const auto length = static_cast<int64_t>(prompts[i].tokens.size());
    const int64_t max_new = flags.max_new_given
                                ? flags.max_new
                                : std::clamp<int64_t>(context - length, 1, flags.max_new);
    prompts[i].max_new = max_new;
    if (length == 0) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "[cli.run] prompt {} has no tokens, wanted at least one", i + 1);
    }
    if (length + max_new > context) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "[cli.run] prompt {} has {}, with -n {} it needs {} positions, but "
                       "the context has {}\nshorten the prompt, lower -n, or "
                       "raise --context",
                       i + 1, Counted(length, "token"), max_new, length + max_new, context);
    }
  }
  return {};
}

void PrintOutputs(const RunFlags& flags, const std::vector<Output>& outputs, bool has_text) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs.size() > 1) {
      fmt::print("[{}] ", i + 1);
    }
    if (has_text) {
      fmt::print("{}\n", outputs[i].text);
    } else {
      fmt::print("{}\n", fmt::join(outputs[i].tokens, ","));
    }
  }
  (void)flags;
  std::fflush(stdout);
}

// Models that answer end a bare question at once. Says how to ask when that is what happened.
void HintAtTemplates(const RunFlags& flags, const std::vector<Output>& outputs) {
  const bool bare = flags.system.empty() && flags.template_name.empty() && flags.chat_files.empty();
  const bool silent = std::any_of(outputs.begin(), outputs.end(), [](const Output& output) {
    return output.tokens.empty() && output.finish_reason == "stop";
  });
  if (bare && silent && flags.token_lists.empty()) {
    LogNote(
        "the model ended a text at once: -p is continued as it stands; with --system TEXT or "
        "--template NAME it is a user's message, and `penstock chat` is a conversation");
  }
}

void PrintJsonReport(const RunFlags& flags, const serve::Engine& engine,
                     const serve::RunReport& report, const Rates& rates, const Foretold& foretold,
                     const std::vector<Output>& outputs) {
  Json json;
  json["model"] = flags.model.model;
  AddRunJson(json, engine, report, rates, foretold);
  json["outputs"] = Json::array();
  for (const Output& output : outputs) {
    json["outputs"].push_back(OutputJson(output));
  }
  PrintJson(json);
}

// What a run prints that was interrupted before it began.
class NothingYet {
 public:
  explicit NothingYet(const RunFlags& flags) : flags_(flags) {}

  void Keep(const std::vector<Prompt>& prompts) {
    const std::lock_guard lock(mutex_);
    for (const Prompt& prompt : prompts) {
      outputs_.emplace_back();
      outputs_.back().prompt_tokens = static_cast<int64_t>(prompt.tokens.size());
      outputs_.back().finish_reason = "interrupted";
    }
  }

  void Say() {
    const std::lock_guard lock(mutex_);
    fmt::print(stderr, "{}interrupted before the first token: nothing was generated\n",
               ::isatty(STDERR_FILENO) != 0 ? "\r\x1b[K" : "");
    if (flags_.model.common.json) {
      Json json = {{"model", flags_.model.model}, {"outputs", Json::array()}};
      for (const Output& output : outputs_) {
        json["outputs"].push_back(OutputJson(output));
      }
      PrintJson(json);
    }
  }

 private:
  const RunFlags& flags_;
  std::mutex mutex_;
  std::vector<Output> outputs_;
};

Result<> RunBody(const RunFlags& flags, const serve::ModelBundle& bundle, serve::RunOptions options,
                 std::unique_ptr<comm::Channel> channel) {
  NothingYet nothing(flags);
  SetupWatch watch(0, [&nothing] { nothing.Say(); });
  std::optional<LoadedTokenizer> tokenizer;
  auto material = bundle.files->Tokenizer();
  if (material.ok()) {
    PENSTOCK_TRY_ASSIGN(LoadedTokenizer loaded, LoadTokenizer(material.value()));
    tokenizer.emplace(std::move(loaded));
  } else if (flags.token_lists.empty()) {
    return material.error();
  }
  PENSTOCK_TRY(CheckTextFlags(flags, tokenizer.has_value()));
  PENSTOCK_TRY_ASSIGN(std::vector<Prompt> prompts,
                      Prompts(flags, tokenizer ? &*tokenizer : nullptr));
  if (prompts.empty()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[cli.run] nothing to continue, wanted -p, --prompt-file, --prompt-lines, "
                     "--chat or --tokens");
  }
  if (!flags.trace_file.empty()) {  // asked before the work, not after it
    PENSTOCK_TRY(CheckWritable(flags.trace_file));
  }
  GenerateOptions generate;
  generate.max_new = flags.max_new;
  generate.ignore_eos = flags.ignore_eos;
  generate.stops = flags.stops;
  generate.end_ids = EndIds(bundle, tokenizer ? &tokenizer->tokenizer : nullptr);
  PENSTOCK_TRY_ASSIGN(generate.sampling,
                      SamplingFrom(flags.sampling.Given(), bundle.files->generation_config()));
  PENSTOCK_TRY_ASSIGN(const int64_t context,
                      serve::ContextOf(bundle.model.config, options.context));
  PENSTOCK_TRY(SetBudgets(prompts, flags, context));
  nothing.Keep(prompts);
  serve::RunDemand demand;
  demand.sequences = static_cast<int64_t>(prompts.size());
  for (const Prompt& prompt : prompts) {
    const auto length = static_cast<int64_t>(prompt.tokens.size());
    demand.longest_prompt = std::max(demand.longest_prompt, length);
    demand.positions =
        std::max(demand.positions, options.context > 0 ? options.context : length + prompt.max_new);
  }
  demand.logprobs = generate.sampling.logprobs;
  demand.penalties = generate.sampling.penalizes();
  options.keep_trace = !flags.trace_file.empty();
  PENSTOCK_TRY_ASSIGN(
      const auto engine,
      serve::Engine::Start(bundle, options, demand, std::move(channel), LoadProgressBar()));
  watch.Over();
  std::vector<plan::Request> requests;
  for (const Prompt& prompt : prompts) {
    requests.push_back({static_cast<int64_t>(prompt.tokens.size()), prompt.max_new});
  }
  const Foretold foretold = Foretell(bundle, *engine, requests);
  const bool stream = prompts.size() == 1 && !flags.model.common.json && tokenizer.has_value();
  OnText on_text;
  if (stream) {
    on_text = StreamToStdout();
  }
  Generation generation(*engine, tokenizer ? &tokenizer->tokenizer : nullptr, generate, on_text);
  for (const Prompt& prompt : prompts) {
    PENSTOCK_TRY(generation.Add(prompt));
  }
  PENSTOCK_TRY(generation.Run());
  const Rates rates = generation.rates();
  const std::vector<Output> outputs = generation.TakeOutputs();
  if (stream) {
    fmt::print("\n");
    std::fflush(stdout);
  } else if (!flags.model.common.json) {
    PrintOutputs(flags, outputs, tokenizer.has_value());
  }
  PENSTOCK_TRY_ASSIGN(const serve::RunReport report, engine->Stop());
  if (!flags.trace_file.empty()) {
    PENSTOCK_TRY(trace::WriteChromeTraceFile(TimelineOf(report, "run"), flags.trace_file));
  }
  if (flags.model.common.json) {
    PrintJsonReport(flags, *engine, report, rates, foretold, outputs);
  } else {
    fmt::print(stderr, "\n{}", RunTable(*engine, report, rates, foretold, ColourOnStderr()));
    HintAtTemplates(flags, outputs);
  }
  return {};
}

}  // namespace

void AddRun(Verb& app, int& status) {
  auto flags = std::make_shared<RunFlags>();
  Verb* verb = app.AddVerb("run", "Generate text with a model cut into pipeline stages");
  AddModelSection(*verb, flags->model);
  verb->Heading("Prompt (given together or several times: several sequences)");
  const Flag* text =
      verb->AddOption("-p,--prompt", flags->prompts, "A text to continue")->TypeName("TEXT");
  const Flag* file = verb->AddOption("--prompt-file", flags->prompt_files,
                                     "A file with a text to continue, - for standard input")
                         ->TypeName("FILE");
  const Flag* lines = verb->AddOption("--prompt-lines", flags->line_files,
                                      "A file with a text to continue on each line, - for standard "
                                      "input; empty lines are left out")
                          ->TypeName("FILE");
  const Flag* chat =
      verb->AddOption("--chat", flags->chat_files,
                      "A conversation to answer: {\"messages\": [{\"role\", \"content\"}]}")
          ->TypeName("FILE");
  const Flag* tokens = verb->AddOption("--tokens", flags->token_lists,
                                       "Token ids to continue, taken literally, as 1,2,3")
                           ->TypeName("IDS");
  verb->AddOption("--system", flags->system, "A system message; texts are then user's messages")
      ->TypeName("TEXT");
  verb->AddOption("--template", flags->template_name,
                  "The chat template's name, instead of the model's own; texts are then user's "
                  "messages")
      ->TypeName("NAME");
  verb->Heading("Length");
  AddInteger(*verb, "-n", flags->max_new, "Most tokens to generate per sequence", 1,
             int64_t{1} << 40)
      ->TypeName("TOKENS")
      ->ShowDefault();
  verb->AddOption("--stop", flags->stops, "End a sequence before this text")->TypeName("TEXT");
  verb->AddFlag("--ignore-eos", flags->ignore_eos, "Go on after an end token");
  AddSamplingFlags(*verb, flags->sampling);
  AddPipelineSections(*verb, flags->model);
  verb->Heading("Output");
  AddLogprobsFlag(*verb, flags->sampling);
  verb->AddOption("--trace", flags->trace_file, "Write what ran as a Chrome/Perfetto trace")
      ->TypeName("FILE");
  verb->Examples(
      {"penstock run -m model.gguf -p \"The river\" -n 64 --stages 2",
       "penstock run -m model.gguf --system \"Be brief.\" -p \"Why is the sky blue?\"",
       "penstock run -m model.gguf --prompt-lines questions.txt --groups 2 --json",
       "mpirun --oversubscribe --bind-to none -n 3 penstock run -m model.gguf -p Hello"});
  const std::vector<std::pair<const Flag*, PromptKind>> kinds = {{text, PromptKind::kText},
                                                                 {file, PromptKind::kFile},
                                                                 {lines, PromptKind::kLines},
                                                                 {chat, PromptKind::kChat},
                                                                 {tokens, PromptKind::kTokens}};
  verb->Callback([verb, flags, kinds, &status] {
    flags->max_new_given = verb->Count("-n") > 0;
    for (const Flag* flag : verb->Order()) {
      for (const auto& [prompt, kind] : kinds) {
        if (flag == prompt) {
          flags->order.push_back(kind);
        }
      }
    }
    status = RunModelVerb(*verb, flags->model,
                          [&](const serve::ModelBundle& bundle, const serve::RunOptions& options,
                              std::unique_ptr<comm::Channel> channel) {
                            return RunBody(*flags, bundle, options, std::move(channel));
                          });
  });
}

}  // namespace penstock::cli
