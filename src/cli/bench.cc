// penstock bench: rates of prefill and decode for several numbers of sequences, as medians with
// their spread.

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>

#include "base/json.h"
#include "base/rng.h"
#include "base/units.h"
#include "cli/generate.h"
#include "cli/model_flags.h"
#include "cli/run_report.h"
#include "cli/setup_watch.h"
#include "cli/verbs.h"

namespace penstock::cli {
namespace {

struct BenchFlags {
  ModelFlags model;
  int64_t prompt_tokens = 512;
  int64_t generate = 64;
  std::string sequences = "1,4,16";
  int64_t repeat = 5;
};

struct Spread {
  double median = 0;
  double low = 0;
  double high = 0;
};

Spread SpreadOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  const double median = n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
  return {median, values.front(), values.back()};
}

Json SpreadJson(const Spread& spread) {
  return {{"median", spread.median}, {"min", spread.low}, {"max", spread.high}};
}

// Prompts of random ids, the same for every run of the same flags; ids that end a text don't
// matter, they are ignored.
std::vector<Prompt> RandomPrompts(int64_t count, int64_t tokens, int64_t vocabulary) {
  std::vector<Prompt> prompts(static_cast<size_t>(count));
  for (size_t s = 0; s < prompts.size(); ++s) {
    for (int64_t i = 0; i < tokens; ++i) {
      const auto words = Philox({static_cast<uint32_t>(i), static_cast<uint32_t>(s), 0, 0}, 0xBE4C);
      prompts[s].tokens.push_back(
          static_cast<int32_t>(words[0] % static_cast<uint32_t>(vocabulary)));
    }
  }
  return prompts;
}

struct Samples {
  std::vector<double> prefill_s, prefill_rate, decode_s, decode_rate, ttft_s, tpot_s;
};

Result<Rates> OneRepeat(serve::Engine& engine, const std::vector<Prompt>& prompts,
                        const GenerateOptions& options) {
  Generation generation(engine, nullptr, options, nullptr);
  for (const Prompt& prompt : prompts) {
    PENSTOCK_TRY(generation.Add(prompt));
  }
  PENSTOCK_TRY(generation.Run());
  for (size_t i = 0; i < prompts.size(); ++i) {
    engine.decider().Release(generation.engine_sequence(i));
  }
  if (Interrupted()) {
    return InterruptedError();
  }
  return generation.rates();
}

void Keep(Samples& samples, const Rates& rates) {
  samples.prefill_s.push_back(rates.prefill_s);
  samples.ttft_s.push_back(rates.ttft_s);
  if (rates.prefill_s > 0) {
    samples.prefill_rate.push_back(static_cast<double>(rates.prefill_tokens) / rates.prefill_s);
  }
  if (rates.decode_s > 0) {
    samples.decode_s.push_back(rates.decode_s);
    samples.decode_rate.push_back(static_cast<double>(rates.decode_tokens) / rates.decode_s);
  }
  if (rates.tpot_s) {
    samples.tpot_s.push_back(*rates.tpot_s);
  }
}

void AddSpreads(Json& run, const Samples& samples) {
  const auto put = [&run](const char* section, const char* key, const std::vector<double>& values) {
    if (!values.empty()) {
      const Spread spread = SpreadOf(values);
      run[section][key] = spread.median;
      run[section][std::string(key) + "_spread"] = SpreadJson(spread);
    }
  };
  put("prefill", "seconds_s", samples.prefill_s);
  put("prefill", "tokens_per_s", samples.prefill_rate);
  put("decode", "seconds_s", samples.decode_s);
  put("decode", "tokens_per_s", samples.decode_rate);
  if (!samples.ttft_s.empty()) {
    run["ttft_s"] = SpreadOf(samples.ttft_s).median;
  }
  if (!samples.tpot_s.empty()) {
    run["tpot_s"] = SpreadOf(samples.tpot_s).median;
  }
}

std::string RateCell(const std::vector<double>& values) {
  if (values.empty()) {
    return "-";
  }
  const Spread s = SpreadOf(values);
  return fmt::format("{:.1f} ({:.1f} to {:.1f})", s.median, s.low, s.high);
}

Result<Json> RunOne(const BenchFlags& flags, const serve::ModelBundle& bundle,
                    const serve::RunOptions& options, int64_t sequences,
                    std::unique_ptr<comm::Channel> channel) {
  SetupWatch loading(ExitStatus(ErrorCode::kInterrupted), [] {
    fmt::print(stderr, "penstock bench: {}\n", InterruptedError().message);
  });
  serve::RunDemand demand;
  demand.sequences = sequences;
  demand.positions = options.context > 0 ? options.context : flags.prompt_tokens + flags.generate;
  demand.longest_prompt = flags.prompt_tokens;
  PENSTOCK_TRY_ASSIGN(
      const auto engine,
      serve::Engine::Start(bundle, options, demand, std::move(channel), LoadProgressBar()));
  loading.Over();
  const std::vector<Prompt> prompts =
      RandomPrompts(sequences, flags.prompt_tokens, bundle.model.config.vocabulary);
  const Foretold foretold =
      Foretell(bundle, *engine,
               std::vector<plan::Request>(static_cast<size_t>(sequences),
                                          {flags.prompt_tokens, flags.generate}));
  GenerateOptions generate;
  generate.ignore_eos = true;
  generate.max_new = std::min<int64_t>(flags.generate, 4);
  PENSTOCK_TRY(OneRepeat(*engine, prompts, generate));  // warm-up
  generate.max_new = flags.generate;
  Samples samples;
  Rates last;
  for (int64_t i = 0; i < flags.repeat; ++i) {
    PENSTOCK_TRY_ASSIGN(last, OneRepeat(*engine, prompts, generate));
    Keep(samples, last);
  }
  PENSTOCK_TRY_ASSIGN(const serve::RunReport report, engine->Stop());
  Json run;
  run["sequences"] = sequences;
  AddRunJson(run, *engine, report, last, foretold);
  AddSpreads(run, samples);
  if (!flags.model.common.json) {
    fmt::print("{:>9}  {:>6}  {:>30}  {:>30}  {:>10}\n", sequences, engine->setup().groups,
               RateCell(samples.prefill_rate), RateCell(samples.decode_rate),
               FormatSeconds(run["ttft_s"].get<double>()));
    if (foretold.forecast) {
      fmt::print("{:>17}  {:>30.1f}  {:>30.1f}  {:>10}\n", "planned",
                 foretold.forecast->prefill_tokens_per_s(),
                 foretold.forecast->decode_tokens_per_s(),
                 FormatSeconds(foretold.forecast->prefill_s));
    }
    std::fflush(stdout);
  }
  return run;
}

Result<std::vector<int32_t>> SequenceCounts(const BenchFlags& flags) {
  PENSTOCK_TRY_ASSIGN(std::vector<int32_t> counts, ParseIds(flags.sequences, "--sequences"));
  if (counts.empty() || *std::min_element(counts.begin(), counts.end()) < 1) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[cli.bench] --sequences: got '{}', wanted numbers from 1 on",
                     flags.sequences);
  }
  return counts;
}

Result<> BenchBody(const Verb& verb, const BenchFlags& flags, const serve::ModelBundle& bundle,
                   const serve::RunOptions& options, std::unique_ptr<comm::Channel> channel) {
  PENSTOCK_TRY_ASSIGN(const std::vector<int32_t> counts, SequenceCounts(flags));
  PENSTOCK_TRY_ASSIGN(const int64_t context,
                      serve::ContextOf(bundle.model.config, options.context));
  if (flags.prompt_tokens + flags.generate > context) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[cli.bench] {} and {} to generate need {} positions, but the context has {}",
                     Counted(flags.prompt_tokens, "prompt token"), flags.generate,
                     flags.prompt_tokens + flags.generate, context);
  }
  Json json;
  json["model"] = flags.model.model;
  json["prompt_tokens"] = flags.prompt_tokens;
  json["generate"] = flags.generate;
  json["repeat"] = flags.repeat;
  json["runs"] = Json::array();
  if (!flags.model.common.json) {
    fmt::print(
        "tokens/s, median (lowest to highest) of {} repeats; {} prompt tokens, {} "
        "generated\n\n{:>9}  {:>6}  {:>30}  {:>30}  {:>10}\n",
        flags.repeat, flags.prompt_tokens, flags.generate, "sequences", "groups", "prefill",
        "decode", "TTFT");
  }
  for (const int32_t sequences : counts) {
    if (!json["runs"].empty()) {
      PENSTOCK_TRY_ASSIGN(channel, NextChannel(verb, options.deadline_s));
    }
    PENSTOCK_TRY_ASSIGN(Json run, RunOne(flags, bundle, options, sequences, std::move(channel)));
    json["runs"].push_back(std::move(run));
  }
  if (flags.model.common.json) {
    PrintJson(json);
  }
  return {};
}

}  // namespace

void AddBench(Verb& app, int& status) {
  auto flags = std::make_shared<BenchFlags>();
  Verb* verb = app.AddVerb("bench", "Measure prefill and decode rates: medians and spread");
  AddModelSection(*verb, flags->model);
  verb->Heading("Work");
  AddInteger(*verb, "--prompt-tokens", flags->prompt_tokens, "Tokens of each prompt", 1,
             int64_t{1} << 30)
      ->TypeName("N")
      ->ShowDefault();
  AddInteger(*verb, "--generate", flags->generate, "Tokens to generate", 1, int64_t{1} << 30)
      ->TypeName("N")
      ->ShowDefault();
  verb->AddOption("--sequences", flags->sequences, "Numbers of sequences to measure")
      ->TypeName("LIST")
      ->ShowDefault();
  AddInteger(*verb, "--repeat", flags->repeat, "Repeats; medians are of them", 1, 10000)
      ->TypeName("N")
      ->ShowDefault();
  AddPipelineSections(*verb, flags->model);
  verb->Examples({"penstock bench -m model.gguf --stages 2 --sequences 1,16 --repeat 5"});
  verb->Callback([verb, flags, &status] {
    const auto counts = SequenceCounts(*flags);  // a bad list is refused by the body
    status = RunModelVerb(
        *verb, flags->model,
        [&](const serve::ModelBundle& bundle, const serve::RunOptions& options,
            std::unique_ptr<comm::Channel> channel) {
          return BenchBody(*verb, *flags, bundle, options, std::move(channel));
        },
        counts.ok() ? static_cast<int>(counts->size()) : 1);
  });
}

}  // namespace penstock::cli
