#include "support/engine_runs.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "base/file.h"

namespace penstock::testing {
namespace {

const std::string kModels = std::string(PENSTOCK_SOURCE_DIR) + "/tests/golden/models/";

}  // namespace

Result<std::vector<float>> EngineLogits(const serve::ModelBundle& bundle,
                                        const serve::RunOptions& options,
                                        const std::vector<int32_t>& tokens) {
  serve::RunDemand demand;
  demand.mode = serve::HeadMode::kLogits;
  demand.positions = static_cast<int64_t>(tokens.size());
  demand.longest_prompt = demand.positions;
  PENSTOCK_TRY_ASSIGN(const auto engine,
                      serve::Engine::Start(bundle, options, demand, nullptr, nullptr));
  PENSTOCK_TRY(engine->Admit(tokens, 0, {}));
  const auto width = static_cast<size_t>(bundle.model.graph.value(bundle.model.graph.logits).width);
  std::vector<float> logits(tokens.size() * width);
  bool more = true;
  while (more) {
    PENSTOCK_TRY_ASSIGN(more, engine->Advance([&](const serve::RowResult& row) {
      std::copy(row.logits.begin(), row.logits.end(),
                logits.begin() + static_cast<int64_t>(width) * row.position);
      return false;
    }));
  }
  PENSTOCK_TRY(engine->Stop());
  return logits;
}

Result<std::vector<std::vector<int32_t>>> EngineIds(
    const serve::ModelBundle& bundle, const serve::RunOptions& options,
    const std::vector<std::vector<int32_t>>& prompts, int64_t count,
    const serve::SamplingParams& params) {
  serve::RunDemand demand;
  demand.sequences = static_cast<int64_t>(prompts.size());
  demand.penalties = params.penalizes();
  for (const std::vector<int32_t>& prompt : prompts) {
    const auto length = static_cast<int64_t>(prompt.size());
    demand.longest_prompt = std::max(demand.longest_prompt, length);
    demand.positions = std::max(demand.positions, length + count);
  }
  PENSTOCK_TRY_ASSIGN(const auto engine,
                      serve::Engine::Start(bundle, options, demand, nullptr, nullptr));
  for (const std::vector<int32_t>& prompt : prompts) {
    PENSTOCK_TRY(engine->Admit(prompt, count, params));
  }
  std::vector<std::vector<int32_t>> ids(prompts.size());
  bool more = true;
  while (more) {
    PENSTOCK_TRY_ASSIGN(more, engine->Advance([&](const serve::RowResult& row) {
      ids[static_cast<size_t>(row.sequence)].push_back(row.sampled.token);
      return false;
    }));
  }
  PENSTOCK_TRY(engine->Stop());
  return ids;
}

std::string LayoutText(const serve::RunOptions& options) {
  std::string text = options.cut.empty() ? fmt::format("stages {}", options.stages)
                                         : fmt::format("cut {}", fmt::join(options.cut, ","));
  return text + fmt::format(", groups {}, chunk {}, {} threads", options.groups,
                            options.prefill_chunk, options.threads);
}

std::string SmolLm2Path() {
  const char* folder = std::getenv("PENSTOCK_MODELS");
  const char* home = std::getenv("HOME");
  const std::string base =
      folder != nullptr ? folder
                        : std::string(home != nullptr ? home : "") + "/.cache/penstock/models";
  return base + "/SmolLM2-135M-Instruct.Q4_1.gguf";
}

std::vector<std::string> TinyModels() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kModels)) {
    if (FileExists(entry.path().string() + "/config.json")) {
      names.push_back(entry.path().filename().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string TinyModelPath(const std::string& name) {
  return kModels + name;
}

}  // namespace penstock::testing
