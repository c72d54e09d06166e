#include "cli/text_model.h"

#include <algorithm>

#include "base/json.h"
#include "base/log.h"

namespace penstock::cli {
namespace {

// A number of the generation configuration, if it is there and is one.
std::optional<double> Configured(const Json& config, const char* key) {
  const JsonReader reader(config, "generation_config.json");
  const Json* value = reader.Find(key);
  if (value == nullptr || !value->is_number()) {
    return std::nullopt;
  }
  return value->get<double>();
}

}  // namespace

Result<const text::ChatTemplate*> PickTemplate(const LoadedTokenizer& tokenizer,
                                               const std::string& name) {
  return train::PickTemplate(tokenizer, name, "--template");
}

std::set<int32_t> EndIds(const serve::ModelBundle& bundle, const text::Tokenizer* tokenizer) {
  std::set<int32_t> ids;
  for (const int64_t id : bundle.model.config.eos) {
    ids.insert(static_cast<int32_t>(id));
  }
  const JsonReader reader(bundle.files->generation_config(), "generation_config.json");
  if (const auto more = reader.IntsOr("eos_token_id", 0, INT32_MAX); more.ok()) {
    for (const int64_t id : more.value()) {
      ids.insert(static_cast<int32_t>(id));
    }
  }
  if (tokenizer != nullptr) {
    ids.insert(tokenizer->end_ids().begin(), tokenizer->end_ids().end());
  }
  return ids;
}

Result<serve::SamplingParams> SamplingFrom(const SamplingFlags& flags,
                                           const Json& generation_config) {
  serve::SamplingParams params;
  const JsonReader reader(generation_config, "generation_config.json");
  const Json* do_sample = reader.Find("do_sample");
  const bool model_samples =
      do_sample != nullptr && do_sample->is_boolean() && do_sample->get<bool>();
  const bool cuts_given = flags.top_p || flags.min_p || flags.top_k;
  if (model_samples || cuts_given) {
    params.temperature =
        static_cast<float>(Configured(generation_config, "temperature").value_or(1.0));
  }
  if (model_samples) {
    params.top_k = static_cast<int32_t>(
        std::clamp(Configured(generation_config, "top_k").value_or(0), 0.0, 1e9));
    params.top_p = static_cast<float>(Configured(generation_config, "top_p").value_or(1.0));
    params.min_p = static_cast<float>(Configured(generation_config, "min_p").value_or(0.0));
  }
  params.repetition_penalty =
      static_cast<float>(Configured(generation_config, "repetition_penalty").value_or(1.0));
  const auto set = [](float& target, const std::optional<double>& flag) {
    if (flag) {
      target = static_cast<float>(*flag);
    }
  };
  set(params.temperature, flags.temperature);
  set(params.top_p, flags.top_p);
  set(params.min_p, flags.min_p);
  set(params.repetition_penalty, flags.repeat_penalty);
  set(params.presence_penalty, flags.presence_penalty);
  set(params.frequency_penalty, flags.frequency_penalty);
  if (flags.top_k) {
    params.top_k = static_cast<int32_t>(std::min<int64_t>(*flags.top_k, INT32_MAX));
  }
  params.seed = static_cast<uint64_t>(flags.seed.value_or(0));
  params.logprobs = static_cast<int32_t>(flags.logprobs.value_or(-1));
  if (flags.greedy) {
    if (flags.temperature.value_or(0) > 0 || cuts_given) {
      LogWarning("--greedy takes the likeliest token: {} without effect",
                 cuts_given ? "--top-k, --top-p and --min-p are" : "--temperature is");
    }
    params.temperature = 0;
  }
  PENSTOCK_TRY(serve::CheckSampling(params));
  return params;
}

}  // namespace penstock::cli
