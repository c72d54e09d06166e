// The safetensors header: whatever is accepted must lie inside the file, in order, without overlap.

#include <cstdint>
#include <span>

#include "base/check.h"
#include "weights/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto header = penstock::weights::ParseSafetensors(bytes, "fuzz.safetensors");
  if (header.ok()) {
    uint64_t end = 0;
    for (const auto& tensor : header->tensors) {
      PENSTOCK_CHECK(
          tensor.offset >= end && tensor.offset <= size && tensor.bytes <= size - tensor.offset,
          "inside");
      end = tensor.offset + tensor.bytes;
    }
    PENSTOCK_CHECK(header->tensors.empty() || end == size, "the data is covered");
  }
  return 0;
}
