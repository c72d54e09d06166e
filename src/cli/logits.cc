// penstock logits: every row of a prompt's logits, for comparison with other implementations.

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "base/file.h"
#include "base/json.h"
#include "cli/model_flags.h"
#include "cli/npy_file.h"
#include "cli/setup_watch.h"
#include "cli/verbs.h"

namespace penstock::cli {
namespace {

struct LogitsFlags {
  ModelFlags model;
  std::string tokens;
  std::string output;
};

Result<> LogitsBody(const LogitsFlags& flags, const serve::ModelBundle& bundle,
                    const serve::RunOptions& options, std::unique_ptr<comm::Channel> channel) {
  PENSTOCK_TRY_ASSIGN(const std::vector<int32_t> tokens, ParseIds(flags.tokens, "--tokens"));
  if (tokens.empty()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[cli.logits] --tokens holds no ids, wanted at least one");
  }
  if (flags.model.common.json && flags.output == "-") {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[cli.logits] --json and -o - both want standard output; name a file");
  }
  if (!flags.output.empty() && flags.output != "-") {
    PENSTOCK_TRY(CheckWritable(flags.output));
  }
  const auto rows = static_cast<int64_t>(tokens.size());
  serve::RunOptions run = options;
  if (run.context == 0) {
    run.context = bundle.model.config.context;  // a comparison uses what the model has
  }
  SetupWatch loading(ExitStatus(ErrorCode::kInterrupted), [] {
    fmt::print(stderr, "penstock logits: {}\n", InterruptedError().message);
  });
  serve::RunDemand demand;
  demand.mode = serve::HeadMode::kLogits;
  demand.positions = rows;
  demand.longest_prompt = rows;
  PENSTOCK_TRY_ASSIGN(
      const auto engine,
      serve::Engine::Start(bundle, run, demand, std::move(channel), LoadProgressBar()));
  loading.Over();
  PENSTOCK_TRY(engine->Admit(tokens, 0, {}));
  const int64_t vocabulary = bundle.model.graph.value(bundle.model.graph.logits).width;
  std::vector<float> logits(static_cast<size_t>(rows * vocabulary));
  bool more = true;
  while (more) {
    PENSTOCK_TRY_ASSIGN(more, engine->Advance([&](const serve::RowResult& row) {
      std::copy(row.logits.begin(), row.logits.end(), logits.begin() + row.position * vocabulary);
      return false;
    }));
    if (Interrupted()) {
      return InterruptedError();
    }
  }
  PENSTOCK_TRY(engine->Stop());
  if (!flags.output.empty()) {
    PENSTOCK_TRY(WriteNpy(flags.output, logits, rows, vocabulary));
  }
  if (flags.model.common.json) {
    Json json = {{"tokens", rows}, {"vocabulary", vocabulary}};
    if (flags.output.empty()) {
      json["logits"] = Json::array();
      for (int64_t r = 0; r < rows; ++r) {
        json["logits"].push_back(std::vector<float>(logits.begin() + r * vocabulary,
                                                    logits.begin() + (r + 1) * vocabulary));
      }
    } else {
      json["file"] = flags.output;
    }
    PrintJson(json);
  } else if (flags.output.empty()) {
    for (int64_t r = 0; r < rows; ++r) {
      const auto row = std::span(logits).subspan(static_cast<size_t>(r * vocabulary),
                                                 static_cast<size_t>(vocabulary));
      const auto best = std::max_element(row.begin(), row.end());
      fmt::print("row {:5d}  token {:7d}  largest {:12.6f} at {}\n", r,
                 tokens[static_cast<size_t>(r)], *best, best - row.begin());
    }
  } else if (flags.output != "-") {
    fmt::print("{} x {} logits in {}\n", rows, vocabulary, flags.output);
  }
  return {};
}

}  // namespace

void AddLogits(Verb& app, int& status) {
  auto flags = std::make_shared<LogitsFlags>();
  Verb* verb = app.AddVerb("logits", "Logits of every row of a prompt, in float32");
  AddModelSection(*verb, flags->model);
  verb->Heading("Input and output");
  verb->AddOption("--tokens", flags->tokens, "Token ids, taken literally")
      ->Required()
      ->TypeName("IDS");
  verb->AddOption("-o,--output", flags->output,
                  "A NumPy file [tokens, vocabulary], - for standard output")
      ->TypeName("FILE.npy");
  AddPipelineSections(*verb, flags->model);
  verb->Examples(
      {"penstock logits -m model --tokens 1,2,3 --stages 2 --weights f32 -o logits.npy"});
  verb->Callback([verb, flags, &status] {
    status = RunModelVerb(*verb, flags->model,
                          [&](const serve::ModelBundle& bundle, const serve::RunOptions& options,
                              std::unique_ptr<comm::Channel> channel) {
                            return LogitsBody(*flags, bundle, options, std::move(channel));
                          });
  });
}

}  // namespace penstock::cli
