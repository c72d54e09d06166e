#include "cli/sampling_flags.h"

#include "cli/model_flags.h"

namespace penstock::cli {

SamplingFlags SamplingFlagValues::Given() const {
  SamplingFlags given;
  const auto take = [this](const char* name, auto& target, auto value) {
    if (verb->Count(name) > 0) {
      target = value;
    }
  };
  take("--temperature", given.temperature, temperature);
  take("--top-p", given.top_p, top_p);
  take("--min-p", given.min_p, min_p);
  take("--repeat-penalty", given.repeat_penalty, repeat_penalty);
  take("--presence-penalty", given.presence_penalty, presence_penalty);
  take("--frequency-penalty", given.frequency_penalty, frequency_penalty);
  take("--top-k", given.top_k, top_k);
  take("--seed", given.seed, seed);
  take("--logprobs", given.logprobs, logprobs);
  given.greedy = greedy;
  return given;
}

void AddSamplingFlags(Verb& verb, SamplingFlagValues& values) {
  values.verb = &verb;
  verb.Heading("Sampling");
  verb.AddOption("--temperature,--temp", values.temperature,
                 "0 is greedy (default: the model's generation_config, else greedy)")
      ->TypeName("T");
  verb.AddOption("--top-p", values.top_p,
                 "Keep the likeliest tokens that make up this probability, 1: all")
      ->TypeName("P");
  AddInteger(verb, "--top-k", values.top_k, "Keep this many of the likeliest tokens, 0: all", 0,
             INT32_MAX)
      ->TypeName("K");
  verb.AddOption("--min-p", values.min_p,
                 "Keep tokens at least this likely relative to the likeliest, 0: all")
      ->TypeName("P");
  verb.AddOption("--repeat-penalty,--repetition-penalty", values.repeat_penalty,
                 "Weakens tokens that occurred, 1: off")
      ->TypeName("X");
  verb.AddOption("--presence-penalty", values.presence_penalty,
                 "Subtracted from logits of tokens that occurred, 0: off")
      ->TypeName("X");
  verb.AddOption("--frequency-penalty", values.frequency_penalty,
                 "Subtracted per occurrence, 0: off")
      ->TypeName("X");
  AddInteger(verb, "--seed", values.seed, "Seed of the draws", 0, INT64_MAX)
      ->TypeName("S")
      ->ShowDefault();
  verb.AddFlag("--greedy", values.greedy, "Always the likeliest token");
  verb.Heading(kFlagsHeading);
}

void AddLogprobsFlag(Verb& verb, SamplingFlagValues& values) {
  AddInteger(verb, "--logprobs", values.logprobs,
             "Log probabilities of each token and of the N likeliest, in --json", 0, 1000)
      ->TypeName("N");
}

}  // namespace penstock::cli
