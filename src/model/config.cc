#include "model/config.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/json.h"
#include "base/units.h"
#include "model/config_place.h"
#include "model/families/families.h"
#include "model/inventory.h"
#include "model/known_keys.h"
#include "model/variations.h"

namespace penstock::model {
namespace {

struct FamilyRow {
  std::string_view model_type;
  FamilyBuilder build;
};

// Sorted by model_type.
constexpr FamilyRow kFamilies[] = {
    {"deepseek_v3", BuildDeepseek},
    {"gemma2", BuildGemma},
    {"gemma3_text", BuildGemma},
    {"gpt2", BuildGpt2},
    {"gpt_oss", BuildGptOss},
    {"grok-1", BuildGrok},
    {"kimi_k3", BuildKimi},
    {"kimi_linear", BuildKimi},
    {"llama", BuildLlama},
    {"mistral", BuildLlama},
    {"mixtral", BuildMixtral},
    {"nemotron", BuildNemotron},
    {"palm", BuildPalm},
    {"phi3", BuildPhi3},
    {"qwen2", BuildQwen},
    {"qwen3", BuildQwen},
    {"qwen3_moe", BuildQwen3Moe},
};

const FamilyRow* FindFamily(std::string_view model_type) {
  const auto* row = std::find_if(std::begin(kFamilies), std::end(kFamilies),
                                 [&](const FamilyRow& r) { return r.model_type == model_type; });
  return row == std::end(kFamilies) ? nullptr : row;
}

Error UnknownFamily(const std::string& source, std::string_view model_type) {
  const std::vector<std::string_view> known = SupportedModelTypes();
  const std::string near = NearestName(model_type, known);
  return MakeError(ErrorCode::kUnsupported,
                   "[model.config] {}: model_type: got '{}', supported are {}{}", source,
                   model_type.substr(0, 60), fmt::join(known, ", "),
                   near.empty() ? "" : fmt::format("\nDid you mean '{}'?", near));
}

// A model with other modalities keeps the text model's keys in `text_config`; ids that end a text
// may stand outside.
Json Unwrapped(const Json& config) {
  Json text = config["text_config"];
  for (const char* key : {"bos_token_id", "eos_token_id", "tie_word_embeddings"}) {
    if (!text.contains(key) && config.contains(key)) {
      text[key] = config[key];
    }
  }
  return text;
}

int64_t CountParameters(const Graph& graph) {
  int64_t sum = 0;
  for (const WeightTensor& tensor : graph.tensors) {
    sum += Elements(tensor);
  }
  return sum;
}

Result<Model> Build(const Json& config, const std::string& source, GraphUse use) {
  if (!config.is_object()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[model.config] {}: got {}, wanted an object with model_type", source,
                     config.type_name());
  }
  const JsonReader outer(config, source);
  const Json* inner = outer.Find("text_config");
  const bool wrapped = inner != nullptr && inner->is_object();
  const Json text = wrapped ? Unwrapped(config) : Json();
  const JsonReader reader(wrapped ? text : config,
                          wrapped ? fmt::format("{}: text_config", source) : source);
  PENSTOCK_TRY_ASSIGN(const std::string model_type, reader.String("model_type"));
  const FamilyRow* family = FindFamily(model_type);
  if (family == nullptr) {
    return UnknownFamily(reader.where(), model_type);
  }
  if (wrapped) {
    PENSTOCK_TRY(RefuseVariationsOutside(outer));
  }
  PENSTOCK_TRY(RefuseNearVariations(reader));
  PENSTOCK_TRY(RefuseNearKeys(reader));
  PENSTOCK_TRY_ASSIGN(Model model, family->build(reader, family->model_type));
  model.config.model_type = model_type;
  if (use == GraphUse::kRun && model.graph.losses.size() > 1) {
    const int64_t all = CountParameters(model.graph);
    model.graph = WithoutAuxiliaryHeads(model.graph);
    model.config.auxiliary_parameters = all - CountParameters(model.graph);
  }
  return model;
}

}  // namespace

std::vector<std::string_view> SupportedModelTypes() {
  std::vector<std::string_view> types;
  for (const FamilyRow& row : kFamilies) {
    types.push_back(row.model_type);
  }
  return types;
}

Result<Model> BuildModel(const Json& config, const std::string& source, GraphUse use) {
  Result<Model> model = Build(config, source, use);
  if (!model.ok()) {
    return PlaceInFile(model.error(), source);
  }
  return model;
}

}  // namespace penstock::model
