// Configurations of GGUF architectures with latent attention: deepseek2, kimi-linear, kimi-k3.

#pragma once

#include <string_view>

#include "base/json_reader.h"
#include "base/result.h"
#include "weights/gguf_set.h"

namespace penstock::weights {

// True for the architectures above.
bool IsLatentArchitecture(std::string_view architecture);

// Adds to `config`, which has the common sizes, everything else but token ids. Source of the keys:
// llama.cpp's converter and loader. Errors: kCorruptData (a key missing or out of range, naming
// it), kUnsupported (a router that is not DeepSeek-V3's, a key of the architecture that is not
// known).
Result<> TranslateLatentConfig(const GgufSet& set, std::string_view architecture, Json& config);

}  // namespace penstock::weights
