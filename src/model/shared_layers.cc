#include "model/shared_layers.h"

#include <numeric>

#include "base/units.h"

namespace penstock::model {

Result<std::vector<int64_t>> ReadWeightOwners(const JsonReader& config,
                                              const DecoderConfig& decoder) {
  constexpr std::string_view kKey = "shared_layers";
  std::vector<int64_t> owners(static_cast<size_t>(decoder.layers));
  std::iota(owners.begin(), owners.end(), int64_t{0});
  if (!config.Has(kKey)) {
    return owners;
  }
  PENSTOCK_TRY_ASSIGN(const std::vector<int64_t> listed,
                      config.IntsOr(kKey, 0, decoder.layers - 1));
  if (listed.size() != owners.size()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "[model.config] {}: {}: got {}, wanted one per decoder layer ({})",
                     config.where(), kKey, Counted(listed.size(), "entry", "entries"),
                     decoder.layers);
  }
  for (size_t i = 0; i < listed.size(); ++i) {
    const int64_t owner = listed[i];
    if (owner > static_cast<int64_t>(i) || listed[static_cast<size_t>(owner)] != owner) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "[model.config] {}: {}: layer {} would use the weights of layer {}, which "
                       "{}; wanted itself or an earlier layer that has its own",
                       config.where(), kKey, i, owner,
                       owner > static_cast<int64_t>(i) ? "comes later" : "has none of its own");
    }
  }
  return listed;
}

}  // namespace penstock::model
