#include "serve/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <unordered_map>

#include "base/rng.h"

namespace penstock::serve {
namespace {

struct Candidate {
  int32_t token;
  float logit;
  double weight;  // exp(logit - largest)
};

bool Likelier(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}

std::vector<float> Penalized(std::span<const float> logits, const SamplingParams& params,
                             std::span<const int32_t> history) {
  std::vector<float> out(logits.begin(), logits.end());
  std::unordered_map<int32_t, int> counts;
  for (const int32_t token : history) {
    ++counts[token];
  }
  for (const auto& [token, count] : counts) {
    if (token < 0 || static_cast<size_t>(token) >= out.size()) {
      continue;
    }
    float& logit = out[static_cast<size_t>(token)];
    logit = logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
    logit -= params.presence_penalty + params.frequency_penalty * static_cast<float>(count);
  }
  return out;
}

int32_t ArgMax(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// Candidates sorted by likelihood, cut by top-k, top-p and min-p.
std::vector<Candidate> Candidates(std::span<const float> logits, const SamplingParams& params) {
  const float largest = *std::max_element(logits.begin(), logits.end());
  std::vector<Candidate> all(logits.size());
  double sum = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const float scaled = logits[i] / params.temperature;
    all[i] = {
        static_cast<int32_t>(i), logits[i],
        std::exp(static_cast<double>(scaled) - static_cast<double>(largest / params.temperature))};
    sum += all[i].weight;
  }
  const bool cuts = params.top_k > 0 || params.top_p < 1.0F || params.min_p > 0.0F;
  if (!cuts) {
    return all;
  }
  size_t keep = all.size();
  if (params.top_k > 0 && static_cast<size_t>(params.top_k) < keep) {
    keep = static_cast<size_t>(params.top_k);
    std::partial_sort(all.begin(), all.begin() + static_cast<int64_t>(keep), all.end(), Likelier);
    all.resize(keep);
    sum = std::accumulate(all.begin(), all.end(), 0.0,
                          [](double s, const Candidate& c) { return s + c.weight; });
  } else {
    std::sort(all.begin(), all.end(), Likelier);
  }
  if (params.top_p < 1.0F) {
    double mass = 0;
    for (size_t i = 0; i < keep; ++i) {
      mass += all[i].weight;
      if (mass >= static_cast<double>(params.top_p) * sum) {
        keep = i + 1;
        break;
      }
    }
  }
  while (keep > 1 && all[keep - 1].weight < static_cast<double>(params.min_p) * all[0].weight) {
    --keep;
  }
  all.resize(keep);
  return all;
}

int32_t Draw(const std::vector<Candidate>& candidates, const SamplingParams& params,
             int32_t sequence, int64_t position) {
  const uint64_t key =
      MixKey(MixKey(params.seed, 0x73616D706C65ULL), static_cast<uint64_t>(sequence));
  const auto words =
      Philox({static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), 0, 0}, key);
  double sum = 0;
  for (const Candidate& candidate : candidates) {
    sum += candidate.weight;
  }
  double target = UniformDouble(words[0], words[1]) * sum;
  for (const Candidate& candidate : candidates) {
    target -= candidate.weight;
    if (target < 0) {
      return candidate.token;
    }
  }
  // Rounding left a crumb: the last candidate with any weight.
  for (size_t i = candidates.size(); i-- > 0;) {
    if (candidates[i].weight > 0) {
      return candidates[i].token;
    }
  }
  return candidates.front().token;
}

double LogSum(std::span<const float> logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) {
    sum += std::exp(static_cast<double>(logit) - largest);
  }
  return largest + std::log(sum);
}

void AddLogprobs(std::span<const float> logits, int32_t count, Sampled& sampled) {
  const double log_sum = LogSum(logits);
  sampled.logprob =
      static_cast<float>(static_cast<double>(logits[static_cast<size_t>(sampled.token)]) - log_sum);
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto keep = std::min(static_cast<size_t>(count), logits.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<int64_t>(keep), order.end(),
                    [&](int32_t a, int32_t b) {
                      const float x = logits[static_cast<size_t>(a)];
                      const float y = logits[static_cast<size_t>(b)];
                      return x != y ? x > y : a < b;
                    });
  for (size_t i = 0; i < keep; ++i) {
    sampled.top.push_back(
        {order[i],
         static_cast<float>(static_cast<double>(logits[static_cast<size_t>(order[i])]) - log_sum)});
  }
}

}  // namespace

Result<> CheckSampling(const SamplingParams& params) {
  const auto wrong = [](std::string_view what, double got, std::string_view wanted) {
    return MakeError(ErrorCode::kInvalidArgument, "[serve.sampling] {}: got {:.6g}, wanted {}",
                     what, got, wanted);
  };
  if (!(params.temperature >= 0 && params.temperature <= 1000)) {
    return wrong("--temperature", params.temperature, "0 (greedy) to 1000");
  }
  if (!(params.top_p > 0 && params.top_p <= 1)) {
    return wrong("--top-p", params.top_p, "more than 0, at most 1");
  }
  if (!(params.min_p >= 0 && params.min_p < 1)) {
    return wrong("--min-p", params.min_p, "0 to less than 1");
  }
  if (params.top_k < 0) {
    return wrong("--top-k", params.top_k, "0 (all) or more");
  }
  if (!(params.repetition_penalty > 0 && params.repetition_penalty <= 100)) {
    return wrong("--repeat-penalty", params.repetition_penalty,
                 "more than 0, at most 100 (1: off)");
  }
  if (!(std::abs(params.presence_penalty) <= 100)) {
    return wrong("--presence-penalty", params.presence_penalty, "-100 to 100 (0: off)");
  }
  if (!(std::abs(params.frequency_penalty) <= 100)) {
    return wrong("--frequency-penalty", params.frequency_penalty, "-100 to 100 (0: off)");
  }
  return {};
}

Sampled Sample(std::span<const float> logits, const SamplingParams& params,
               std::span<const int32_t> history, int32_t sequence, int64_t position) {
  std::vector<float> penalized;
  std::span<const float> used = logits;
  if (params.penalizes()) {
    penalized = Penalized(logits, params, history);
    used = penalized;
  }
  Sampled sampled;
  if (params.temperature <= 0) {
    sampled.token = ArgMax(used);
  } else {
    sampled.token = Draw(Candidates(used, params), params, sequence, position);
  }
  if (params.logprobs >= 0) {
    AddLogprobs(logits, params.logprobs, sampled);
  }
  return sampled;
}

double LogProbability(std::span<const float> logits, int32_t token) {
  return static_cast<double>(logits[static_cast<size_t>(token)]) - LogSum(logits);
}

}  // namespace penstock::serve
