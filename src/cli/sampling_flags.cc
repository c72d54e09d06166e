#include "cli/sampling_flags.h"

#include "cli/model_flags.h"

namespace penstock::cli {

SamplingFlags SamplingFlagValues::Given() const {
  SamplingFlags given;
  const auto take = [this](const char* name, auto& target, auto value) {
    if (verb->count(name) > 0) {
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

void AddSamplingFlags(CLI::App& verb, SamplingFlagValues& values) {
  values.verb = &verb;
  verb.add_option("--temperature,--temp", values.temperature,
                  "0 is greedy (default: the model's generation_config, else greedy)")
      ->type_name("T");
  verb.add_option("--top-p", values.top_p,
                  "Keep the likeliest tokens that make up this probability")
      ->type_name("P");
  AddInteger(verb, "--top-k", values.top_k, "Keep this many of the likeliest tokens, 0: all", 0,
             INT32_MAX)
      ->type_name("K");
  verb.add_option("--min-p", values.min_p,
                  "Keep tokens at least this likely relative to the likeliest")
      ->type_name("P");
  verb.add_option("--repeat-penalty,--repetition-penalty", values.repeat_penalty,
                  "Weakens tokens that occurred, 1: off")
      ->type_name("X");
  verb.add_option("--presence-penalty", values.presence_penalty,
                  "Subtracted from logits of tokens that occurred, 0: off")
      ->type_name("X");
  verb.add_option("--frequency-penalty", values.frequency_penalty,
                  "Subtracted per occurrence, 0: off")
      ->type_name("X");
  AddInteger(verb, "--seed", values.seed, "Seed of the draws", 0, INT64_MAX)->type_name("S");
  AddInteger(verb, "--logprobs", values.logprobs,
             "Log probabilities of each token and the N likeliest, in --json", 0, 1000)
      ->type_name("N");
  verb.add_flag("--greedy", values.greedy, "Always the likeliest token");
}

}  // namespace penstock::cli
