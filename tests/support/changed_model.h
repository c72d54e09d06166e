// A model folder with one safetensors file, copied with changes: what a reader says to files that
// contradict each other.

#pragma once

#include <functional>
#include <string>

#include "base/json_reader.h"
#include "support/process.h"

namespace penstock::testing {

class ChangedModel {
 public:
  // Changes config.json, the header of tensors, and their bytes, to which more may be appended.
  using Change = std::function<void(Json& config, Json& tensors, std::string& bytes)>;

  // REQUIRES: a good folder.
  ChangedModel(const std::string& folder, const Change& change);

  const std::string& path() const { return folder_.path(); }

 private:
  TemporaryFolder folder_;
};

}  // namespace penstock::testing
