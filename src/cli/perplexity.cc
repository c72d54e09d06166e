// penstock perplexity: how well a model foretells a text.

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/file.h"
#include "base/json.h"
#include "base/units.h"
#include "cli/model_flags.h"
#include "cli/setup_watch.h"
#include "cli/standard_input.h"
#include "cli/text_model.h"
#include "cli/verbs.h"

namespace penstock::cli {
namespace {

struct PerplexityFlags {
  ModelFlags model;
  std::string file;
  std::string tokens;
};

Result<std::vector<int32_t>> TextTokens(const PerplexityFlags& flags,
                                        const serve::ModelBundle& bundle) {
  if (flags.file.empty()) {
    return ParseIds(flags.tokens, "--tokens");
  }
  PENSTOCK_TRY_ASSIGN(const weights::TokenizerMaterial material, bundle.files->Tokenizer());
  PENSTOCK_TRY_ASSIGN(const LoadedTokenizer loaded, LoadTokenizer(material));
  PENSTOCK_TRY_ASSIGN(const std::string text,
                      flags.file == "-" ? ReadStandardInput() : ReadFile(flags.file));
  return loaded.tokenizer.Encode(text);
}

// Longer texts are cut into pieces of the context, each read from its beginning; every token but a
// piece's first is scored.
std::vector<std::vector<int32_t>> Pieces(const std::vector<int32_t>& tokens, int64_t context) {
  std::vector<std::vector<int32_t>> pieces;
  for (size_t at = 0; at < tokens.size(); at += static_cast<size_t>(context)) {
    const size_t end = std::min(tokens.size(), at + static_cast<size_t>(context));
    pieces.emplace_back(tokens.begin() + static_cast<int64_t>(at),
                        tokens.begin() + static_cast<int64_t>(end));
  }
  return pieces;
}

Result<> PerplexityBody(const PerplexityFlags& flags, const serve::ModelBundle& bundle,
                        const serve::RunOptions& options, std::unique_ptr<comm::Channel> channel) {
  PENSTOCK_TRY_ASSIGN(const std::vector<int32_t> tokens, TextTokens(flags, bundle));
  if (tokens.size() < 2) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[cli.perplexity] the text has {}, wanted at least 2",
                     Counted(tokens.size(), "token"));
  }
  serve::RunOptions run = options;
  if (run.context == 0) {
    run.context = bundle.model.config.context;
  }
  const auto pieces = Pieces(tokens, run.context);
  SetupWatch loading(ExitStatus(ErrorCode::kInterrupted), [] {
    fmt::print(stderr, "penstock perplexity: {}\n", InterruptedError().message);
  });
  serve::RunDemand demand;
  demand.mode = serve::HeadMode::kScore;
  demand.sequences = static_cast<int64_t>(pieces.size());
  demand.positions = static_cast<int64_t>(pieces[0].size());
  demand.longest_prompt = demand.positions;
  PENSTOCK_TRY_ASSIGN(
      const auto engine,
      serve::Engine::Start(bundle, run, demand, std::move(channel), LoadProgressBar()));
  loading.Over();
  for (const std::vector<int32_t>& piece : pieces) {
    PENSTOCK_TRY(engine->Admit(piece, 0, {}));
  }
  // Kept per position and added in order, so that the sum does not depend on the order of the
  // results.
  std::vector<std::vector<double>> scores;
  for (const std::vector<int32_t>& piece : pieces) {
    scores.emplace_back(piece.size(), 0.0);
  }
  bool more = true;
  while (more) {
    PENSTOCK_TRY_ASSIGN(more, engine->Advance([&](const serve::RowResult& row) {
      scores[static_cast<size_t>(row.sequence)][static_cast<size_t>(row.position)] =
          row.sampled.logprob;
      return false;
    }));
    if (Interrupted()) {
      return InterruptedError();
    }
  }
  PENSTOCK_TRY(engine->Stop());
  double sum = 0;
  int64_t count = 0;
  for (const std::vector<double>& piece : scores) {
    for (size_t i = 0; i + 1 < piece.size(); ++i) {
      sum -= piece[i];
      ++count;
    }
  }
  const double mean = sum / static_cast<double>(std::max<int64_t>(count, 1));
  if (flags.model.common.json) {
    PrintJson({{"tokens", count}, {"nll_per_token", mean}, {"perplexity", std::exp(mean)}});
  } else {
    fmt::print("{} token{} scored, {:.6f} nats per token, perplexity {:.4f}\n", FormatCount(count),
               count == 1 ? "" : "s", mean, std::exp(mean));
  }
  return {};
}

}  // namespace

void AddPerplexity(Verb& app, int& status) {
  auto flags = std::make_shared<PerplexityFlags>();
  Verb* verb = app.AddVerb("perplexity", "How well a model foretells a text");
  AddModelSection(*verb, flags->model);
  verb->Heading("Text");
  Flag* file =
      verb->AddOption("--file", flags->file, "A text file, - for standard input")->TypeName("FILE");
  Flag* tokens = verb->AddOption("--tokens", flags->tokens, "Token ids, taken literally")
                     ->TypeName("IDS")
                     ->Excludes(file);
  AddPipelineSections(*verb, flags->model);
  verb->Examples({"penstock perplexity -m model.gguf --file text.txt --weights int8"});
  verb->Callback([verb, flags, file, tokens, &status] {
    if (file->Count() + tokens->Count() == 0) {
      status =
          Fail(*verb, MakeError(ErrorCode::kInvalidArgument,
                                "[cli.perplexity] nothing to read, wanted --file or --tokens"));
      return;
    }
    status = RunModelVerb(*verb, flags->model,
                          [&](const serve::ModelBundle& bundle, const serve::RunOptions& options,
                              std::unique_ptr<comm::Channel> channel) {
                            return PerplexityBody(*flags, bundle, options, std::move(channel));
                          });
  });
}

}  // namespace penstock::cli
