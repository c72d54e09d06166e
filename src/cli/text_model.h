// The text side of a model for the command line: tokenizer, chat template, ids that end a text,
// sampling defaults.

#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "serve/engine.h"
#include "serve/sampling.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"
#include "train/tokenizer_source.h"
#include "weights/model_files.h"

namespace penstock::cli {

using train::LoadedTokenizer;
using train::LoadTokenizer;

// The template to use: `name` when given, else the model's own, recognised whole. Errors:
// kUnsupported listing the names.
Result<const text::ChatTemplate*> PickTemplate(const LoadedTokenizer& tokenizer,
                                               const std::string& name);

// Ids that end a sequence: the configuration's, the generation configuration's and the tokenizer's.
std::set<int32_t> EndIds(const serve::ModelBundle& bundle, const text::Tokenizer* tokenizer);

// Flags that were given win over the model's generation_config, which wins over greedy.
struct SamplingFlags {
  std::optional<double> temperature, top_p, min_p, repeat_penalty, presence_penalty,
      frequency_penalty;
  std::optional<int64_t> top_k, seed, logprobs;
  bool greedy = false;
};

Result<serve::SamplingParams> SamplingFrom(const SamplingFlags& flags,
                                           const Json& generation_config);

}  // namespace penstock::cli
