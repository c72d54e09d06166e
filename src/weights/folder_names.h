// The spellings under which Hugging Face folders keep one canonical tensor.

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "weights/shapes.h"

namespace penstock::weights {

struct FolderPlace {
  std::string name;
  TensorPart part;
};

// Where the tensor may be, best first; the first one is the canonical name itself. Others: without
// "model." in front (base models), inside a multimodal model ("language_model."), experts stacked
// into one tensor as transformers 5 keeps them (experts.gate_up_proj [experts, 2 inner, width],
// experts.down_proj [experts, width, inner]).
std::vector<FolderPlace> FolderPlaces(std::string_view canonical);

}  // namespace penstock::weights
