// ModelFiles over a GGUF file or split set.

#pragma once

#include <memory>
#include <string>

#include "weights/gguf_set.h"
#include "weights/model_files.h"

namespace penstock::weights {

// Errors as OpenModel. A file without any tensor is taken for a vocabulary: any architecture,
// config() is null.
Result<std::unique_ptr<ModelFiles>> OpenGgufModel(GgufSet set);

}  // namespace penstock::weights
