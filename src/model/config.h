// From a config.json to a layer graph: the facts that every family states, and the table of
// families.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_reader.h"
#include "base/result.h"
#include "model/graph.h"

namespace penstock::model {

// What callers need to know of a model beside its graph. No family below this point.
struct ModelConfig {
  std::string family;      // "llama": the builder's name
  std::string model_type;  // as in config.json: "mistral"
  int64_t vocabulary = 0;
  int64_t hidden = 0;
  int64_t layers = 0;        // decoder layers; units of a cut are layers + 2
  int64_t context = 0;       // positions that the model was made for (RoPE scaling included)
  std::vector<int64_t> bos;  // ids that begin a text; mostly none or one
  std::vector<int64_t> eos;  // each of these ends one
  bool tied = false;         // the head is the embedding's table
  int64_t window = 0;        // smallest sliding window of a layer; 0: none has one
  int64_t windowed_layers = 0;
  int64_t mtp_parameters = 0;  // of multi-token-prediction layers, which the graph does not hold
  int64_t auxiliary_parameters = 0;  // of heads for training, left out of a graph that is run
};

struct Model {
  ModelConfig config;
  Graph graph;
};

// What a graph is built for: kRun has the logits alone, kTrain also the auxiliary heads of the
// losses.
enum class GraphUse : uint8_t { kRun, kTrain };

// Reads a config.json (or its `text_config`, for a model wrapped with other modalities) and builds
// the graph of its family. `source` names the file in errors. Tensors have the names of the Hugging
// Face folder. Allocates little, whatever the config says: layers, experts and sizes are bounded.
// Errors: kUnsupported (an unknown family, or a key that changes the mathematics: named, with what
// is supported), kInvalidArgument (an impossible or missing value: the key, and what is legal).
Result<Model> BuildModel(const Json& config, const std::string& source,
                         GraphUse use = GraphUse::kRun);

// model_type strings that BuildModel takes, sorted.
std::vector<std::string_view> SupportedModelTypes();

}  // namespace penstock::model
