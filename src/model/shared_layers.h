// The same weights at several depths (looped and ALBERT-like models): each decoder layer names the
// layer whose weights it uses. Every depth has keys and values of its own.

#pragma once

#include <cstdint>
#include <vector>

#include "base/json_reader.h"
#include "base/result.h"
#include "model/decoder.h"

namespace penstock::model {

// `shared_layers`: one number per decoder layer, the layer that owns its weights; [0, 1, 2, 3] is
// as good as absent. Errors: kInvalidArgument naming the entry (a wrong length; a later layer; a
// layer that itself uses another's weights).
Result<std::vector<int64_t>> ReadWeightOwners(const JsonReader& config,
                                              const DecoderConfig& decoder);

}  // namespace penstock::model
