#include "cli/inspected_model.h"

#include <memory>
#include <utility>

#include "base/config_path.h"
#include "base/file.h"
#include "base/json.h"
#include "cli/engine_planning.h"
#include "model/inventory.h"
#include "weights/model_files.h"

namespace penstock::cli {
namespace {

// Ends in .gguf or .json, or is a folder: a path; else a name of configs/models.
bool LooksLikePath(const std::string& text) {
  return FileExists(text) || IsFolder(text) || text.find('/') != std::string::npos ||
         text.ends_with(".gguf") || text.ends_with(".json");
}

Result<Inspected> FromConfig(const std::string& path, model::GraphUse use) {
  PENSTOCK_TRY_ASSIGN(const Json config, ReadJsonFile(path));
  PENSTOCK_TRY_ASSIGN(model::Model built, model::BuildModel(config, path, use));
  Inspected out{path, std::move(built), {}, "at 16 bits"};
  for (const model::WeightTensor& tensor : out.model.graph.tensors) {
    out.tensor_bytes.push_back(model::Elements(tensor) * kInspectedElementBytes);
  }
  return out;
}

Result<Inspected> FromFiles(const std::string& path, model::GraphUse use) {
  PENSTOCK_TRY_ASSIGN(const std::unique_ptr<weights::ModelFiles> files, weights::OpenModel(path));
  if (files->config().is_null()) {
    return MakeError(ErrorCode::kUnsupported,
                     "[cli.inspect] {}: holds a vocabulary only, wanted a model", path);
  }
  PENSTOCK_TRY_ASSIGN(model::Model built, model::BuildModel(files->config(), path, use));
  Inspected out{path, std::move(built), {}, "as stored"};
  for (const model::WeightTensor& tensor : out.model.graph.tensors) {
    PENSTOCK_TRY_ASSIGN(const std::unique_ptr<MatrixSource> source,
                        files->Source(tensor.name, tensor.shape));
    out.tensor_bytes.push_back(source->rows() * RowBytes(source->type(), source->columns()));
  }
  if (const auto rule =
          runtime::WeightRule::Create(out.model.graph, *files, runtime::WeightChoice::kAuto);
      rule.ok()) {
    out.held = MainPrecision(out.model.graph, rule.value());
  }
  return out;
}

}  // namespace

Result<Inspected> OpenInspected(const std::string& name, model::GraphUse use) {
  if (LooksLikePath(name)) {
    return name.ends_with(".json") ? FromConfig(name, use) : FromFiles(name, use);
  }
  PENSTOCK_TRY_ASSIGN(const std::string path, FindConfig("models", "json", name));
  PENSTOCK_TRY_ASSIGN(Inspected out, FromConfig(path, use));
  out.name = name;
  return out;
}

}  // namespace penstock::cli
