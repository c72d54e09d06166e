#include "support/changed_model.h"

#include <cstring>
#include <fstream>

#include "base/check.h"
#include "base/file.h"
#include "base/json.h"

namespace penstock::testing {

ChangedModel::ChangedModel(const std::string& folder, const Change& change) {
  auto config = ReadJsonFile(folder + "/config.json");
  auto file = ReadFile(folder + "/model.safetensors");
  PENSTOCK_CHECK(config.ok() && file.ok(), folder.c_str());
  uint64_t length = 0;
  std::memcpy(&length, file.value().data(), 8);
  auto header = ParseJson(file.value().substr(8, length), "header");
  PENSTOCK_CHECK(header.ok(), folder.c_str());
  std::string bytes = file.value().substr(8 + length);
  change(config.value(), header.value(), bytes);
  std::string text = header.value().dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  length = text.size();
  std::string prefix(8, '\0');
  std::memcpy(prefix.data(), &length, 8);
  std::ofstream(folder_.path() + "/config.json") << config.value().dump();
  std::ofstream(folder_.path() + "/model.safetensors", std::ios::binary) << prefix << text << bytes;
}

}  // namespace penstock::testing
