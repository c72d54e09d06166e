// Megatron layout strings. The first byte is the number of ranks.

#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "schedule/layout.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) {
    return 0;
  }
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto layout = penstock::schedule::ParseLayout(text, data[0] % 16);
  if (!layout.ok()) {
    return 0;
  }
  int next = 0;
  int embeddings = 0;
  int losses = 0;
  for (const penstock::schedule::LayoutStage& stage : layout.value()) {
    embeddings += stage.embedding;
    losses += stage.loss;
    for (const int layer : stage.decoder_layers) {
      PENSTOCK_CHECK(layer == next++, "every layer once, in order");
    }
  }
  PENSTOCK_CHECK(embeddings == 1 && losses == 1, "one embedding and one loss");
  PENSTOCK_CHECK(layout->front().embedding && layout->back().loss, "at the ends");
  return 0;
}
