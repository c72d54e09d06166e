// The model of configs/train/tiny (its tokenizer of bytes, its family), smaller: for tests that
// train.

#pragma once

#include <filesystem>
#include <string>

#include "base/file.h"
#include "base/json.h"
#include "support/model_maker.h"

namespace penstock::testing {

// A folder of a model `hidden` wide with heads of 8, one of them for keys and values; keys of
// `more` come on top.
inline void WriteByteModel(const std::string& folder, int hidden, int intermediate,
                           const Json& more = Json::object()) {
  const std::string tiny = std::string(PENSTOCK_SOURCE_DIR) + "/configs/train/tiny/";
  std::filesystem::create_directories(folder);
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
    std::filesystem::copy_file(tiny + name, folder + "/" + name);
  }
  Json json = ParseJson(ReadFile(tiny + "config.json").value(), "config.json").value();
  json["hidden_size"] = hidden;
  json["intermediate_size"] = intermediate;
  json["num_attention_heads"] = hidden / 8;
  json["num_key_value_heads"] = 1;
  json["head_dim"] = 8;
  json.update(more);
  WriteText(folder + "/config.json", DumpJson(json));
}

}  // namespace penstock::testing
