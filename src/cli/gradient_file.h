// Gradients as a safetensors file, by the names and shapes of the model's own folder.

#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/graph.h"
#include "weights/model_files.h"

namespace penstock::cli {

// `gradients`: by canonical name; tensors of the graph that are not among them are zeros. Where a
// folder keeps several canonical tensors in one (stacked experts) or under another prefix, so does
// the file. Errors: kNotFound, kInternal.
Result<> WriteGradients(const std::string& path, const model::Graph& graph,
                        const weights::ModelFiles& files,
                        const std::map<std::string, std::vector<float>>& gradients);

}  // namespace penstock::cli
