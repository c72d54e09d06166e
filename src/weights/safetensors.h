// The header of one safetensors file: names, types, shapes and places of its tensors.
//
// Source: the format's description (github.com/huggingface/safetensors): 8 bytes of header length,
// a JSON object, then the data, which the tensors must fill exactly: no holes, no overlap, no
// remainder.

#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "weights/stored_tensor.h"

namespace penstock::weights {

struct SafetensorsHeader {
  std::vector<StoredTensor>
      tensors;  // in order of their data; offsets count from the start of the file
  std::map<std::string, std::string> metadata;  // __metadata__
};

// Parses and checks a whole header. Types that the format has and we can't load (fp8, complex, ...)
// stay without `type`. Errors: kCorruptData (truncated, a length that lies, JSON of another form, a
// name twice, sizes that disagree, overlap, gap, misalignment, remainder), kUnsupported (a type
// that the format does not have). Cost: linear in the header but for one sort; at most 100,000,000
// bytes of header are read.
Result<SafetensorsHeader> ParseSafetensors(std::span<const std::byte> bytes,
                                           const std::string& path);

}  // namespace penstock::weights
