#include "weights/folder_names.h"

#include <charconv>
#include <optional>

namespace penstock::weights {
namespace {

constexpr std::string_view kModel = "model.";

// The stacked tensors that may hold one expert's matrix.
void AddStacked(std::string_view canonical, std::vector<FolderPlace>* places) {
  constexpr std::string_view kExperts = ".experts.";
  const size_t at = canonical.find(kExperts);
  if (at == std::string_view::npos) {
    return;
  }
  const std::string_view block =
      canonical.substr(0, at);  // model.layers.3.mlp or model.layers.3.block_sparse_moe
  std::string_view rest = canonical.substr(at + kExperts.size());
  int64_t expert = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), expert);
  if (error != std::errc() || expert < 0) {
    return;
  }
  rest.remove_prefix(static_cast<size_t>(end - rest.data()));
  TensorPart part{.slice = expert};
  std::string_view stacked = "gate_up_proj";
  if (rest == ".w1.weight" || rest == ".gate_proj.weight") {
    part.parts = 2;
  } else if (rest == ".w3.weight" || rest == ".up_proj.weight") {
    part.parts = 2;
    part.part = 1;
  } else if (rest == ".w2.weight" || rest == ".down_proj.weight") {
    stacked = "down_proj";
  } else {
    return;
  }
  places->push_back({fmt::format("{}.experts.{}", block, stacked), part});
}

// transformers 5 calls Mixtral's block `mlp` as well.
void AddMixtralAsMlp(std::vector<FolderPlace>* places) {
  constexpr std::string_view kBlock = ".block_sparse_moe.";
  const size_t count = places->size();
  for (size_t i = 0; i < count; ++i) {
    FolderPlace place = (*places)[i];
    if (const size_t at = place.name.find(kBlock); at != std::string::npos) {
      place.name.replace(at, kBlock.size(), ".mlp.");
      places->push_back(std::move(place));
    }
  }
}

}  // namespace

std::vector<FolderPlace> FolderPlaces(std::string_view canonical) {
  std::vector<FolderPlace> places = {{std::string(canonical), {}}};
  AddStacked(canonical, &places);
  AddMixtralAsMlp(&places);
  const size_t count = places.size();
  for (size_t i = 0; i < count; ++i) {
    const FolderPlace place = places[i];
    places.push_back({"language_model." + place.name, place.part});
    if (place.name.starts_with(kModel)) {
      const std::string base = place.name.substr(kModel.size());
      places.push_back({base, place.part});
      places.push_back({fmt::format("model.language_model.{}", base), place.part});
    }
  }
  return places;
}

}  // namespace penstock::weights
