// Tensors that a file has and that its model would be wrong without, but that the graph does not
// read: biases of matrices that it reads, and norms of queries and keys.

#pragma once

#include "base/result.h"
#include "model/graph.h"
#include "weights/model_files.h"

namespace penstock::weights {

// A GGUF file with one is refused, as llama.cpp does: its metadata has no key that could say that
// the tensor is to be ignored. Of a folder it is said in a warning, and the model runs without it,
// as in transformers, where config.json decides. Errors: kUnsupported naming the tensor. Routed
// experts are not looked through. Cost: one look-up per tensor of the graph.
Result<> CheckNothingLeftOut(const ModelFiles& files, const model::Graph& graph);

}  // namespace penstock::weights
