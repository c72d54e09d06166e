#include "weights/left_out.h"

#include <string>
#include <unordered_set>
#include <vector>

#include "base/log.h"
#include "base/units.h"

namespace penstock::weights {
namespace {

constexpr std::string_view kWeight = ".weight";

// What could stand beside a weight of this name and act on the same values.
std::vector<std::string> Companions(std::string_view weight) {
  const std::string_view stem = weight.substr(0, weight.size() - kWeight.size());
  std::vector<std::string> names = {fmt::format("{}.bias", stem)};
  constexpr std::string_view kQuery = "self_attn.q_proj";
  constexpr std::string_view kFused = "self_attn.qkv_proj";
  if (stem.ends_with(kQuery) || stem.ends_with(kFused)) {
    const std::string_view block = stem.substr(0, stem.rfind('.') + 1);
    for (const std::string_view norm : {"q_norm.weight", "k_norm.weight"}) {
      names.push_back(fmt::format("{}{}", block, norm));
    }
  }
  return names;
}

std::vector<std::string> LeftOut(const ModelFiles& files, const model::Graph& graph) {
  std::unordered_set<std::string_view> read;
  for (const model::WeightTensor& tensor : graph.tensors) {
    read.insert(tensor.name);
  }
  std::vector<std::string> left;
  for (const model::WeightTensor& tensor : graph.tensors) {
    if (tensor.routed_expert || !tensor.name.ends_with(kWeight)) {
      continue;
    }
    for (std::string& name : Companions(tensor.name)) {
      if (!read.contains(name) && files.Has(name)) {
        left.push_back(std::move(name));
      }
    }
  }
  return left;
}

}  // namespace

Result<> CheckNothingLeftOut(const ModelFiles& files, const model::Graph& graph) {
  const std::vector<std::string> left = LeftOut(files, graph);
  if (left.empty()) {
    return {};
  }
  const std::string more =
      left.size() > 1 ? fmt::format(" and {} more like it", left.size() - 1) : std::string();
  if (files.kind() == ModelKind::kGguf) {
    return MakeError(ErrorCode::kUnsupported,
                     "[weights.left_out] {}: holds {}{}, which this architecture is not known to "
                     "have; wanted a file without",
                     files.path(), left.front(), more);
  }
  LogWarning("{}: {}{} is in its files, but config.json asks for none: the model runs without",
             files.path(), left.front(), more);
  return {};
}

}  // namespace penstock::weights
