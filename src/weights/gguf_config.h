// GGUF metadata as a Hugging Face configuration.
//
// Source of the keys: the GGUF specification, gguf-py's constants, llama.cpp's converter and
// loader.

#pragma once

#include <string>
#include <string_view>

#include "base/json_reader.h"
#include "base/result.h"
#include "weights/gguf_set.h"

namespace penstock::weights {

// How the files of one general.architecture differ from the folder of that family.
struct GgufArchitecture {
  std::string_view name;
  bool permuted_heads = false;  // rows of q and k are stored pairwise
  bool norms_plus_one = false;  // norm weights are stored as 1 + w
  bool sandwich_norms = false;
};

// Errors: kUnsupported, naming the architecture and those that are supported; kCorruptData without
// one.
Result<const GgufArchitecture*> FindGgufArchitecture(const GgufMetadata& metadata);

// "llama, qwen2, ...".
std::string SupportedGgufArchitectures();

// config.json of the model: model_type, sizes, RoPE, windows, soft caps, token ids; also
// `head_dim`, always. RoPE divisors that the file holds as a tensor (rope_freqs.weight: Llama 3's
// scaling is worked in already) come as `rope_scaling` of type `factors`, with the list under that
// name. Errors: kCorruptData (keys missing or out of range), kUnsupported (a feature of no family
// here).
Result<Json> TranslateGgufConfig(const GgufSet& set);

// generation_config.json: token ids that end a text, and general.sampling.* where present.
Result<Json> TranslateGgufGeneration(const GgufMetadata& metadata);

}  // namespace penstock::weights
