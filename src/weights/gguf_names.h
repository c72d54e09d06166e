// From canonical tensor names (those of the Hugging Face folder) to the places where a GGUF file
// keeps them.
//
// Source of the correspondence: gguf-py's tensor name map and llama.cpp's converter.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::weights {

enum class GgufHeads : uint8_t {
  kNone,
  kQuery,
  kKey
};  // whose heads the rows are, for those that Llama's kind permutes

struct GgufPlace {
  std::string name;     // stored tensor
  int64_t expert = -1;  // not -1: this slice of the outermost dimension
  int32_t part = 0;     // of `parts` equal runs of rows
  int32_t parts = 1;
  GgufHeads heads = GgufHeads::kNone;
  bool norm = false;
};

// Where the tensor may be, best first; empty when no GGUF file of this kind has it.
// `sandwich_norms`: a layer has norms before and after both halves (Gemma 2 and 3), which changes
// what post_attention_layernorm is.
std::vector<GgufPlace> GgufPlaces(std::string_view canonical, bool sandwich_norms);

}  // namespace penstock::weights
