// The families: one builder per file, one row per model_type in config.cc.

#pragma once

#include <string_view>

#include "base/json_reader.h"
#include "base/result.h"
#include "model/config.h"

namespace penstock::model {

// Builds the graph from the object that holds the text model's keys. `model_type` is the row's.
using FamilyBuilder = Result<Model> (*)(const JsonReader& config, std::string_view model_type);

Result<Model> BuildLlama(const JsonReader& config, std::string_view model_type);
Result<Model> BuildQwen(const JsonReader& config, std::string_view model_type);
Result<Model> BuildQwen3Moe(const JsonReader& config, std::string_view model_type);
Result<Model> BuildMixtral(const JsonReader& config, std::string_view model_type);
Result<Model> BuildPhi3(const JsonReader& config, std::string_view model_type);
Result<Model> BuildDeepseek(const JsonReader& config, std::string_view model_type);
Result<Model> BuildKimi(const JsonReader& config, std::string_view model_type);
Result<Model> BuildGemma(const JsonReader& config, std::string_view model_type);

// Counted, not run: their graphs hold CountedOp.
Result<Model> BuildGpt2(const JsonReader& config, std::string_view model_type);
Result<Model> BuildGptOss(const JsonReader& config, std::string_view model_type);
Result<Model> BuildGrok(const JsonReader& config, std::string_view model_type);
Result<Model> BuildNemotron(const JsonReader& config, std::string_view model_type);
Result<Model> BuildPalm(const JsonReader& config, std::string_view model_type);

}  // namespace penstock::model
