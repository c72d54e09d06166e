// Which rows of a stored tensor a wanted shape means, or why it can't be.

#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "weights/stored_tensor.h"

namespace penstock::weights {

// A part of a stored tensor: slice `slice` of its outermost dimension (-1: all of it), and of that
// the run `part` of `parts` equal runs of rows.
struct TensorPart {
  int64_t slice = -1;
  int32_t part = 0;
  int32_t parts = 1;
};

struct Rows {
  int64_t begin = 0;  // rows before it in the stored tensor
  int64_t count = 1;
  int64_t columns = 0;
};

// `shape` is [n] (one row), [outputs, inputs], or one of up to four dimensions whose last one is a
// row. Dimensions of 1 in front make no difference; around a vector, none does.
// Errors: kCorruptData naming the canonical name, the stored tensor, its file, got and wanted.
Result<Rows> RowsOf(const StoredTensor& tensor, const std::string& path, std::string_view name,
                    std::span<const int64_t> shape, const TensorPart& part);

// Errors: kUnsupported, naming the type and those that can be loaded.
Result<> CheckLoadable(const StoredTensor& tensor, const std::string& path);

}  // namespace penstock::weights
