// Choosing the next token from logits.
//
// Order, as in Hugging Face's generation: repetition and presence penalties, temperature, top-k,
// top-p, min-p, then one draw. Temperature 0 (or `greedy`) takes the largest logit, the lowest id
// among equals. The draw is keyed by (seed, sequence, position), so that it does not depend on the
// cut, on which other sequences share the batch, or on how many draws came before.

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"

namespace penstock::serve {

struct SamplingParams {
  float temperature = 0.0F;  // 0: greedy
  int32_t top_k = 0;         // 0: all
  float top_p = 1.0F;
  float min_p = 0.0F;
  float repetition_penalty = 1.0F;  // divides positive logits of tokens that occurred, multiplies
                                    // negative ones (Keskar et al. 2019)
  float presence_penalty = 0.0F;    // subtracted once from logits of tokens that occurred
  float frequency_penalty = 0.0F;   // subtracted per occurrence
  uint64_t seed = 0;
  int32_t logprobs = -1;  // -1: none; n: the chosen token's and those of the n likeliest

  bool penalizes() const {
    return repetition_penalty != 1.0F || presence_penalty != 0.0F || frequency_penalty != 0.0F;
  }
};

// Errors: kInvalidArgument naming the parameter and its range.
Result<> CheckSampling(const SamplingParams& params);

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;
};

struct Sampled {
  int32_t token = 0;
  float logprob = 0;  // of the model (before penalties and temperature); 0 when not asked for
  std::vector<TokenLogprob> top;  // likeliest first
};

// `history`: the sequence so far (prompt and generated). REQUIRES: logits are finite and not empty.
// Cost: O(vocabulary), plus a partial sort when top-k or top-p cut.
Sampled Sample(std::span<const float> logits, const SamplingParams& params,
               std::span<const int32_t> history, int32_t sequence, int64_t position);

// log softmax(logits)[token], summed in double in index order.
double LogProbability(std::span<const float> logits, int32_t token);

}  // namespace penstock::serve
