// GGUF: parse, translate, build the graph, read a row of each tensor that it wants, read the
// vocabulary.

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/json.h"
#include "model/config.h"
#include "weights/gguf_model.h"

namespace penstock::weights {
namespace {

// Building a graph costs time for each layer and expert that a file claims; a fuzzer learns nothing
// from many.
bool Small(const Json& config) {
  if (!config.is_object()) {
    return false;  // a vocabulary
  }
  for (const char* key : {"num_hidden_layers", "num_local_experts", "num_experts"}) {
    if (config.value(key, int64_t{0}) > 8) {
      return false;
    }
  }
  return true;
}

void ReadSomeRows(const ModelFiles& files) {
  const auto built = model::BuildModel(files.config(), "fuzz.gguf");
  if (!built.ok()) {
    return;
  }
  for (const model::WeightTensor& tensor : built->graph.tensors) {
    const auto source = files.Source(tensor.name, tensor.shape);
    if (!source.ok() || source.value()->columns() > (1 << 20)) {
      continue;
    }
    std::vector<float> row(static_cast<size_t>(source.value()->columns()));
    for (const int64_t which : {int64_t{0}, source.value()->rows() - 1}) {
      (void)source.value()->ReadRows(which, 1, row).ok();
    }
  }
}

void OneInput(std::span<const std::byte> bytes) {
  auto set = GgufSet::FromFile(FileBytes::Copy("fuzz.gguf", bytes));
  if (!set.ok()) {
    return;
  }
  for (const StoredTensor& tensor : set->tensors()) {
    PENSTOCK_CHECK(tensor.offset <= bytes.size() && tensor.bytes <= bytes.size() - tensor.offset,
                   "inside the file");
  }
  const auto files = OpenGgufModel(std::move(set).value());
  if (!files.ok()) {
    return;
  }
  (void)files.value()->Tokenizer().ok();
  if (Small(files.value()->config())) {
    ReadSomeRows(*files.value());
  }
}

}  // namespace
}  // namespace penstock::weights

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  penstock::weights::OneInput(std::as_bytes(std::span(data, size)));
  return 0;
}
