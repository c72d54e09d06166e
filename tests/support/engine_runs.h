// Runs the engine in this process (ranks as threads), for tests that compare many layouts of one
// model.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "serve/engine.h"

namespace penstock::testing {

// Logits of every row of `tokens`, [tokens, vocabulary].
Result<std::vector<float>> EngineLogits(const serve::ModelBundle& bundle,
                                        const serve::RunOptions& options,
                                        const std::vector<int32_t>& tokens);

// What each prompt gives, all of them in one batch: `count` ids (end tokens are not looked at),
// sampled as `params` says (default: greedy).
Result<std::vector<std::vector<int32_t>>> EngineIds(
    const serve::ModelBundle& bundle, const serve::RunOptions& options,
    const std::vector<std::vector<int32_t>>& prompts, int64_t count,
    const serve::SamplingParams& params = {});

// "stages 3, groups 2, chunk 7, 2 threads".
std::string LayoutText(const serve::RunOptions& options);

// The file that scripts/fetch-model puts into the cache.
std::string SmolLm2Path();

// Folders of tests/golden/models that hold a model, by name.
std::vector<std::string> TinyModels();

// The whole path of one of them.
std::string TinyModelPath(const std::string& name);

}  // namespace penstock::testing
