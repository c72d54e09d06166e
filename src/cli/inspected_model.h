// A model opened by its headers for `inspect`: a file, a folder, a config.json, or a name of
// configs/models.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hw/precision.h"
#include "model/config.h"

namespace penstock::cli {

// Activations and state are counted at 16 bits a value.
inline constexpr int64_t kInspectedElementBytes = 2;

struct Inspected {
  std::string name;
  model::Model model;
  std::vector<int64_t> tensor_bytes;          // by tensor id
  std::string stored;                         // "as stored", "at 16 bits"
  hw::Precision held = hw::Precision::kBf16;  // by an engine that runs it
};

// Errors: those of opening and building, kNotFound (no such name, with the nearest).
Result<Inspected> OpenInspected(const std::string& name, model::GraphUse use);

}  // namespace penstock::cli
