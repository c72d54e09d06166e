// ModelFiles over a folder in Hugging Face layout.

#pragma once

#include <memory>
#include <string>

#include "weights/model_files.h"

namespace penstock::weights {

// Reads config.json, generation_config.json, and the headers of model.safetensors or of the shards
// that model.safetensors.index.json names. Errors as OpenModel.
Result<std::unique_ptr<ModelFiles>> OpenFolderModel(const std::string& path);

// tokenizer.json, tokenizer_config.json and chat_template.jinja of a folder, as far as they are
// there. Errors: kNotFound (no tokenizer.json).
Result<TokenizerMaterial> ReadFolderTokenizer(const std::string& path);

}  // namespace penstock::weights
