// penstock chat: a conversation on the terminal that keeps its keys and values.

#include <fmt/core.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>

#include "base/file.h"
#include "base/json.h"
#include "base/units.h"
#include "cli/generate.h"
#include "cli/model_flags.h"
#include "cli/run_report.h"
#include "cli/sampling_flags.h"
#include "cli/setup_watch.h"
#include "cli/text_model.h"
#include "cli/verbs.h"
#include "trace/chrome.h"

namespace penstock::cli {
namespace {

struct ChatFlags {
  ModelFlags model;
  SamplingFlagValues sampling;
  int64_t max_new = 256;
  std::string template_name;
  std::string system;
  std::vector<std::string> stops;
  bool ignore_eos = false;
  std::string trace_file;
};

// Lines from standard input, with a call every `every_s` seconds while nothing comes.
class LineReader {
 public:
  // False at the end of the input. Errors: those of `idle`.
  template <class Idle>
  Result<bool> Next(std::string& line, double every_s, Idle idle) {
    while (true) {
      const size_t end = buffer_.find('\n');
      if (end != std::string::npos) {
        line = buffer_.substr(0, end);
        buffer_.erase(0, end + 1);
        if (!line.empty() && line.back() == '\r') {
          line.pop_back();
        }
        return true;
      }
      pollfd poll_input{STDIN_FILENO, POLLIN, 0};
      const int ready = ::poll(&poll_input, 1, std::max(1, static_cast<int>(every_s * 1000)));
      if (Interrupted()) {
        return false;
      }
      if (ready == 0) {
        PENSTOCK_TRY(idle());
        continue;
      }
      char piece[4096];
      const ssize_t count = ::read(STDIN_FILENO, piece, sizeof piece);
      if (count <= 0) {
        line = std::move(buffer_);
        buffer_.clear();
        return !line.empty();
      }
      buffer_.append(piece, static_cast<size_t>(count));
    }
  }

 private:
  std::string buffer_;
};

class Conversation {
 public:
  Conversation(const ChatFlags& flags, serve::Engine& engine, const LoadedTokenizer& tokenizer,
               const text::ChatTemplate& chat, const GenerateOptions& options, int64_t context)
      : flags_(flags),
        engine_(engine),
        tokenizer_(tokenizer),
        chat_(chat),
        options_(options),
        context_(context) {
    Reset();
  }

  void Reset() {
    if (sequence_ >= 0) {
      engine_.decider().Release(sequence_);
    }
    sequence_ = -1;
    messages_.clear();
    if (!flags_.system.empty()) {
      messages_.push_back({"system", flags_.system});
    }
  }

  // One turn: the user's words in, the answer streamed. Only what the model has not seen yet is
  // computed.
  Result<> Say(const std::string& words) {
    messages_.push_back({"user", words});
    PENSTOCK_TRY_ASSIGN(const std::vector<int32_t> ids,
                        text::EncodeChat(chat_, tokenizer_.tokenizer, messages_, {}));
    GenerateOptions options = options_;
    const int64_t room = context_ - static_cast<int64_t>(ids.size());
    if (room < 1) {
      messages_.pop_back();
      return MakeError(ErrorCode::kInvalidArgument,
                       "[cli.chat] the conversation would have {}, but the context has {}; "
                       "/reset starts a new one",
                       Counted(ids.size(), "token"), context_);
    }
    options.max_new = std::min(options.max_new, room);
    const bool stream = !flags_.model.common.json;
    OnText on_text;
    if (stream) {
      on_text = StreamToStdout();
    }
    Generation generation(engine_, &tokenizer_.tokenizer, options, on_text);
    PENSTOCK_TRY(Start(generation, ids));
    PENSTOCK_TRY(generation.Run());
    sequence_ = generation.engine_sequence(0);
    rates_ = generation.rates();
    std::vector<Output> outputs = generation.TakeOutputs();
    if (stream) {
      fmt::print("\n");
      std::fflush(stdout);
    }
    messages_.push_back({"assistant", outputs[0].text});
    answers_.push_back(std::move(outputs[0]));
    return {};
  }

  const Rates& rates() const { return rates_; }

  const std::vector<Output>& answers() const { return answers_; }

 private:
  // Goes on behind the kept tokens when they are a beginning of the new text; else (a template that
  // rewrites earlier turns) starts anew.
  Result<> Start(Generation& generation, const std::vector<int32_t>& ids) {
    if (sequence_ >= 0) {
      const auto kept = engine_.decider().tokens(sequence_);
      if (kept.size() < ids.size() && std::equal(kept.begin(), kept.end(), ids.begin())) {
        return generation.AddContinued(sequence_, std::span(ids).subspan(kept.size()));
      }
      engine_.decider().Release(sequence_);
      sequence_ = -1;
    }
    return generation.Add({ids}, context_);
  }

  const ChatFlags& flags_;
  serve::Engine& engine_;
  const LoadedTokenizer& tokenizer_;
  const text::ChatTemplate& chat_;
  GenerateOptions options_;
  int64_t context_;
  int32_t sequence_ = -1;
  std::vector<text::ChatMessage> messages_;
  Rates rates_;
  std::vector<Output> answers_;
};

void PrintStats(const Rates& rates) {
  const auto rate = [](int64_t tokens, double seconds) {
    return seconds > 0 ? static_cast<double>(tokens) / seconds : 0.0;
  };
  fmt::print(stderr, "prefill {}, {:.1f} tokens/s; decode {}, {:.1f} tokens/s\n",
             Counted(rates.prefill_tokens, "token"), rate(rates.prefill_tokens, rates.prefill_s),
             Counted(rates.decode_tokens, "token"), rate(rates.decode_tokens, rates.decode_s));
}

// A slash and letters alone: meant as a command, not for the model.
bool LooksLikeCommand(const std::string& line) {
  return line.size() > 1 && line[0] == '/' &&
         std::all_of(line.begin() + 1, line.end(), [](char c) { return c >= 'a' && c <= 'z'; });
}

Result<> Talk(Conversation& conversation, serve::Engine& engine, double deadline_s) {
  const double heartbeat_s = std::min(3.0, deadline_s / 4);
  const bool person = ::isatty(STDIN_FILENO) != 0;
  if (person) {
    fmt::print(stderr, "/reset starts anew, /stats shows rates, /exit ends\n");
  }
  LineReader reader;
  std::string line;
  while (true) {
    if (person) {
      fmt::print(stderr, "{}> {}", ColourOnStderr() ? "\x1b[1m" : "",
                 ColourOnStderr() ? "\x1b[0m" : "");
      std::fflush(stderr);
    }
    PENSTOCK_TRY_ASSIGN(const bool more,
                        reader.Next(line, heartbeat_s, [&] { return engine.Heartbeat(); }));
    if (!more || line == "/exit" || line == "/quit") {
      return {};
    }
    if (line == "/reset") {
      conversation.Reset();
    } else if (line == "/stats") {
      PrintStats(conversation.rates());
    } else if (LooksLikeCommand(line)) {
      fmt::print(stderr, "no command {}; /reset starts anew, /stats shows rates, /exit ends\n",
                 TerminalText(line));
    } else if (!line.empty()) {
      const Result<> said = conversation.Say(line);
      if (!said.ok() && said.error().code != ErrorCode::kInvalidArgument) {
        return said;
      }
      if (!said.ok()) {
        fmt::print(stderr, "{}\n", TerminalText(said.error().message));
      }
    }
    if (Interrupted()) {
      return {};
    }
  }
}

Result<> ChatBody(const ChatFlags& flags, const serve::ModelBundle& bundle,
                  serve::RunOptions options, std::unique_ptr<comm::Channel> channel) {
  SetupWatch watch(0, [&flags] {
    fmt::print(stderr, "{}interrupted before the conversation\n",
               ::isatty(STDERR_FILENO) != 0 ? "\r\x1b[K" : "");
    if (flags.model.common.json) {
      PrintJson({{"model", flags.model.model}, {"outputs", Json::array()}});
    }
  });
  PENSTOCK_TRY_ASSIGN(const weights::TokenizerMaterial material, bundle.files->Tokenizer());
  PENSTOCK_TRY_ASSIGN(const LoadedTokenizer tokenizer, LoadTokenizer(material));
  PENSTOCK_TRY_ASSIGN(const text::ChatTemplate* chat, PickTemplate(tokenizer, flags.template_name));
  if (!flags.trace_file.empty()) {  // asked before the work, not after it
    PENSTOCK_TRY(CheckWritable(flags.trace_file));
  }
  options.keep_trace = !flags.trace_file.empty();
  GenerateOptions generate;
  generate.ignore_eos = flags.ignore_eos;
  generate.max_new = flags.max_new;
  generate.stops = flags.stops;
  generate.end_ids = EndIds(bundle, &tokenizer.tokenizer);
  PENSTOCK_TRY_ASSIGN(generate.sampling,
                      SamplingFrom(flags.sampling.Given(), bundle.files->generation_config()));
  PENSTOCK_TRY_ASSIGN(const int64_t context,
                      serve::ContextOf(bundle.model.config, options.context));
  serve::RunDemand demand;
  demand.positions = context;
  demand.longest_prompt = std::min<int64_t>(context, 512);
  demand.logprobs = generate.sampling.logprobs;
  demand.penalties = generate.sampling.penalizes();
  PENSTOCK_TRY_ASSIGN(
      const auto engine,
      serve::Engine::Start(bundle, options, demand, std::move(channel), LoadProgressBar()));
  watch.Over();
  Conversation conversation(flags, *engine, tokenizer, *chat, generate, context);
  PENSTOCK_TRY(Talk(conversation, *engine, options.deadline_s));
  PENSTOCK_TRY_ASSIGN(const serve::RunReport report, engine->Stop());
  if (!flags.trace_file.empty()) {
    PENSTOCK_TRY(trace::WriteChromeTraceFile(TimelineOf(report, "chat"), flags.trace_file));
  }
  if (flags.model.common.json) {
    Json json;
    json["model"] = flags.model.model;
    Foretold unknown;  // nobody knows beforehand what will be said
    unknown.why = "a conversation has no plan";
    AddRunJson(json, *engine, report, conversation.rates(), unknown);
    json["outputs"] = Json::array();
    for (const Output& answer : conversation.answers()) {
      json["outputs"].push_back(OutputJson(answer));
    }
    PrintJson(json);
  }
  return {};
}

}  // namespace

void AddChat(Verb& app, int& status) {
  auto flags = std::make_shared<ChatFlags>();
  Verb* verb = app.AddVerb("chat", "A conversation that keeps its keys and values");
  AddModelSection(*verb, flags->model);
  verb->Heading("Conversation");
  AddInteger(*verb, "-n", flags->max_new, "Most tokens of an answer", 1, int64_t{1} << 40)
      ->TypeName("TOKENS")
      ->ShowDefault();
  verb->AddOption("--stop", flags->stops, "End an answer before this text")->TypeName("TEXT");
  verb->AddFlag("--ignore-eos", flags->ignore_eos, "Go on after an end token");
  verb->AddOption("--system", flags->system, "A system message")->TypeName("TEXT");
  verb->AddOption("--template", flags->template_name,
                  "The chat template's name, instead of the model's own")
      ->TypeName("NAME");
  AddSamplingFlags(*verb, flags->sampling);
  AddPipelineSections(*verb, flags->model);
  verb->Heading("Output");
  AddLogprobsFlag(*verb, flags->sampling);
  verb->AddOption("--trace", flags->trace_file, "Write what ran as a Chrome/Perfetto trace")
      ->TypeName("FILE");
  verb->Remark("/reset starts anew, /stats shows rates, /exit ends; lines may be piped in.");
  verb->Examples({"penstock chat -m model.gguf --stages 2",
                  "echo \"Name three rivers.\" | penstock chat -m model.gguf"});
  verb->Callback([verb, flags, &status] {
    status = RunModelVerb(*verb, flags->model,
                          [&](const serve::ModelBundle& bundle, const serve::RunOptions& options,
                              std::unique_ptr<comm::Channel> channel) {
                            return ChatBody(*flags, bundle, options, std::move(channel));
                          });
  });
}

}  // namespace penstock::cli
