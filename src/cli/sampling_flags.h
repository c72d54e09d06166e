// --temperature and its kin, as run and chat have them.

#pragma once

#include "cli/text_model.h"
#include "cli/verb.h"

namespace penstock::cli {

struct SamplingFlagValues {
  double temperature = 0, top_p = 1, min_p = 0, repeat_penalty = 1, presence_penalty = 0,
         frequency_penalty = 0;
  int64_t top_k = 0, seed = 0, logprobs = 0;
  bool greedy = false;
  Verb* verb = nullptr;

  // Those that stood on the command line.
  SamplingFlags Given() const;
};

// Those under the heading "Sampling", and --logprobs, which belongs to the output. A verb has both.
void AddSamplingFlags(Verb& verb, SamplingFlagValues& values);
void AddLogprobsFlag(Verb& verb, SamplingFlagValues& values);

}  // namespace penstock::cli
