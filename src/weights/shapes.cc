#include "weights/shapes.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "base/check.h"
#include "weights/dequantize.h"

namespace penstock::weights {
namespace {

// Of a vector's shape: a single row or column is the vector, whichever dimensions of 1 surround it.
std::vector<int64_t> WithoutOnes(std::span<const int64_t> shape) {
  std::vector<int64_t> rest;
  std::copy_if(shape.begin(), shape.end(), std::back_inserter(rest),
               [](int64_t n) { return n != 1; });
  return rest;
}

std::span<const int64_t> WithoutLeadingOnes(std::span<const int64_t> shape) {
  while (shape.size() > 1 && shape.front() == 1) {
    shape = shape.subspan(1);
  }
  return shape;
}

}  // namespace

Result<Rows> RowsOf(const StoredTensor& tensor, const std::string& path, std::string_view name,
                    std::span<const int64_t> shape, const TensorPart& part) {
  PENSTOCK_CHECK(!shape.empty() && shape.size() <= 4, "a vector or a matrix");
  // What the stored tensor would have to look like.
  std::vector<int64_t> wanted(shape.begin(), shape.end());
  wanted.front() *= part.parts;
  std::span<const int64_t> got = tensor.shape;
  const bool sliced = part.slice >= 0;
  const bool fits = (!sliced || (got.size() == wanted.size() + 1 && part.slice < got.front()));
  if (sliced && fits) {
    got = got.subspan(1);
  }
  const auto stored = WithoutLeadingOnes(got);
  const auto asked = WithoutLeadingOnes(wanted);
  const bool equal = std::equal(stored.begin(), stored.end(), asked.begin(), asked.end()) ||
                     (shape.size() == 1 && WithoutOnes(stored) == WithoutOnes(asked));
  if (!fits || !equal) {
    const std::string which =
        name == tensor.name ? "" : fmt::format(" (stored as {})", tensor.name);
    const std::string what =
        sliced ? fmt::format("[more than {}, {}]", part.slice, fmt::join(wanted, ", "))
               : ShapeText(wanted);
    return MakeError(ErrorCode::kCorruptData,
                     "[weights.shape] {}: tensor {}{}: got shape {}, wanted {}", path, name, which,
                     tensor.ShapeText(), what);
  }
  Rows rows;
  rows.columns = shape.back();
  for (const int64_t n : shape.first(shape.size() - 1)) {
    rows.count *= n;
  }
  rows.begin = (sliced ? part.slice * rows.count * part.parts : 0) + part.part * rows.count;
  return rows;
}

Result<> CheckLoadable(const StoredTensor& tensor, const std::string& path) {
  if (!tensor.type.has_value() || !CanDequantize(*tensor.type)) {
    return MakeError(ErrorCode::kUnsupported,
                     "[weights.type] {}: tensor {} has type {}, weights can be {}", path,
                     tensor.name, tensor.type_name, DequantizableTypes());
  }
  return {};
}

}  // namespace penstock::weights
