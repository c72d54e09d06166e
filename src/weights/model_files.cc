#include "weights/model_files.h"

#include "base/config_path.h"
#include "base/file.h"
#include "weights/folder_model.h"
#include "weights/gguf_model.h"

namespace penstock::weights {
namespace {

Result<> CheckExists(const std::string& path) {
  if (FileExists(path)) {
    return {};
  }
  return MakeError(ErrorCode::kNotFound,
                   "[weights.open] '{}': no such file or folder, wanted a .gguf file or a folder "
                   "with config.json{}",
                   path,
                   FindConfig("models", "json", path).ok()
                       ? "; this name is a configuration without weights, for inspect and plan"
                       : "");
}

}  // namespace

Result<std::unique_ptr<ModelFiles>> OpenModel(const std::string& path) {
  PENSTOCK_TRY(CheckExists(path));
  if (IsFolder(path)) {
    return OpenFolderModel(path);
  }
  if (path.ends_with(".safetensors")) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        "[weights.open] {}: a single safetensors file, wanted the folder with its config.json",
        path);
  }
  PENSTOCK_TRY_ASSIGN(GgufSet set, GgufSet::Open(path));
  return OpenGgufModel(std::move(set));
}

Result<TokenizerMaterial> OpenTokenizer(const std::string& path) {
  PENSTOCK_TRY(CheckExists(path));
  if (IsFolder(path)) {
    return ReadFolderTokenizer(path);
  }
  PENSTOCK_TRY_ASSIGN(const GgufSet set, GgufSet::Open(path));
  TokenizerMaterial material;
  material.source = path;
  PENSTOCK_TRY_ASSIGN(material.gguf, ReadGgufTokenizer(set.metadata()));
  material.chat_template = material.gguf->chat_template;
  return material;
}

}  // namespace penstock::weights
