// penstock eval: loss and perplexity of a training configuration's model on its text.

#include <fmt/core.h>

#include <cmath>

#include "base/json.h"
#include "base/units.h"
#include "cli/model_flags.h"
#include "cli/setup_watch.h"
#include "cli/train_flags.h"
#include "cli/verbs.h"
#include "train/eval_run.h"

namespace penstock::cli {
namespace {

Result<> Run(const TrainFlags& flags, std::unique_ptr<comm::Channel> channel) {
  PENSTOCK_TRY_ASSIGN(const train::TrainConfig config, ReadConfig(flags));
  PENSTOCK_TRY_ASSIGN(const train::TrainOptions options, ToTrainOptions(flags));
  const bool speaks = channel == nullptr || channel->rank() == 0;
  const auto say = [] { fmt::print(stderr, "penstock eval: {}\n", InterruptedError().message); };
  const SetupWatch watch(ExitStatus(ErrorCode::kInterrupted),
                         speaks ? say : std::function<void()>());
  PENSTOCK_TRY_ASSIGN(const train::EvalOutcome outcome,
                      train::RunEvaluation(config, options, std::move(channel)));
  if (!speaks) {
    return {};
  }
  const double loss = outcome.result.loss();
  const std::vector<train::EvalTerm>& terms = outcome.result.terms;
  if (flags.common.json) {
    Json losses = Json::array();
    for (const train::EvalTerm& term : terms) {
      losses.push_back({{"name", term.name},
                        {"weight", term.weight},
                        {"loss", term.loss()},
                        {"tokens", term.targets}});
    }
    PrintJson({{"loss", loss},
               {"perplexity", std::exp(loss)},
               {"tokens", terms.front().targets},
               {"losses", losses},
               {"training_loss", outcome.result.weighted()},
               {"sequences", outcome.sequences},
               {"split", outcome.validation ? "validation" : "all"},
               {"weights", outcome.weights}});
    return {};
  }
  fmt::print("{} of {}: {} in {}\nloss {:.6f}, perplexity {:.4f}\n",
             outcome.validation ? "validation part" : "all text", outcome.weights,
             Counted(terms.front().targets, "target"), Counted(outcome.sequences, "sequence"), loss,
             std::exp(loss));
  if (terms.size() > 1) {
    for (const train::EvalTerm& term : terms) {
      fmt::print("  {:<12} loss {:.6f}, weight {:g}, {} targets\n", term.name, term.loss(),
                 term.weight, term.targets);
    }
    fmt::print("training loss {:.6f} (the losses by their weights)\n", outcome.result.weighted());
  }
  return {};
}

}  // namespace

void AddEval(Verb& app, int& status) {
  auto flags = std::make_shared<TrainFlags>();
  Verb* verb = app.AddVerb(
      "eval",
      "Loss and perplexity of a training configuration: its newest checkpoint, or its model");
  AddTrainFlags(*verb, *flags);
  verb->Examples({"penstock eval configs/train/tiny.toml"});
  verb->Callback([verb, flags, &status] {
    status = RunRankedVerb(*verb, flags->deadline_s, [&](std::unique_ptr<comm::Channel> channel) {
      return Run(*flags, std::move(channel));
    });
  });
}

}  // namespace penstock::cli
