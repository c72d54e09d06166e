// The header of one GGUF file: metadata and tensor index. Nothing of the tensors' data is touched.
//
// Versions 2 and 3, little-endian. Source: the GGUF specification (ggml/docs/gguf.md) and what
// llama.cpp's reader demands (tensor data contiguous and in the order of the index). Everything is
// a view into the bytes: no count of the header makes us allocate more than the bytes that are
// there can hold.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "weights/stored_tensor.h"

namespace penstock::weights {

enum class GgufType : uint32_t {
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kUint64,
  kInt64,
  kFloat64,
};

std::string_view GgufTypeName(GgufType type);

// Bytes of one value; 0 for strings and arrays.
size_t GgufTypeBytes(GgufType type);

// One metadata value, still in the file.
struct GgufValue {
  GgufType type = GgufType::kUint8;
  GgufType element = GgufType::kUint8;  // of an array; kArray: nested, which no key that we read is
  uint64_t count = 1;                   // elements of an array
  std::span<const std::byte> data;      // the value, or the array's elements
};

// Metadata by key, with typed reads. Each error names the file, the key, what was found and what is
// legal. Integers of any width are taken where they fit. Views point into the file.
class GgufMetadata {
 public:
  explicit GgufMetadata(std::string path = "") : path_(std::move(path)) {}

  // False when the key stands there already.
  bool Add(std::string_view key, const GgufValue& value) {
    return values_.emplace(key, value).second;
  }

  size_t size() const { return values_.size(); }

  const std::string& path() const { return path_; }

  bool Has(std::string_view key) const { return Find(key) != nullptr; }

  const GgufValue* Find(std::string_view key) const;

  // Ascending.
  std::vector<std::string_view> KeysThatBeginWith(std::string_view prefix) const;

  // Absent keys are errors (kCorruptData).
  Result<int64_t> Int(std::string_view key, int64_t low, int64_t high) const;
  Result<double> Number(std::string_view key) const;  // finite
  Result<bool> Bool(std::string_view key) const;
  Result<std::string_view> String(std::string_view key) const;

  // Absent keys give nothing.
  Result<std::optional<int64_t>> MaybeInt(std::string_view key, int64_t low, int64_t high) const;
  Result<std::optional<double>> MaybeNumber(std::string_view key) const;
  Result<std::optional<bool>> MaybeBool(std::string_view key) const;
  Result<std::optional<std::string_view>> MaybeString(std::string_view key) const;

  // Arrays; absent keys give empty ones. Booleans count as 0 and 1. At most `max_count` elements.
  Result<std::vector<int64_t>> IntsOr(std::string_view key, int64_t low, int64_t high,
                                      size_t max_count) const;
  Result<std::vector<float>> FloatsOr(std::string_view key, size_t max_count) const;
  Result<std::vector<std::string_view>> StringsOr(std::string_view key, size_t max_count) const;

 private:
  Error Wrong(std::string_view key, std::string_view wanted) const;
  Error Missing(std::string_view key, std::string_view wanted) const;
  Result<const GgufValue*> Array(std::string_view key, std::string_view wanted,
                                 size_t max_count) const;

  std::string path_;
  std::unordered_map<std::string_view, GgufValue> values_;
};

struct GgufHeader {
  uint32_t version = 0;
  uint64_t alignment = 32;
  GgufMetadata metadata;
  std::vector<StoredTensor> tensors;  // in file order; offsets count from the start of the file
  uint64_t data_begin = 0;
};

// Parses and checks a whole header: magic, version, bounds of every count and length, duplicate
// keys and tensors, dimensions, alignment, and that the tensors' data fill the file in order
// without gap, overlap or remainder. `bytes` must outlive the result. Types that ggml has and we
// can't load stay in the index without `type`. Errors: kCorruptData (with the byte position),
// kUnsupported (version, byte order, a type number that is not known). Cost: linear in the header.
Result<GgufHeader> ParseGguf(std::span<const std::byte> bytes, const std::string& path);

// "F32, F16, BF16, Q4_0, ...": the types that can be loaded, for messages.
std::string_view LoadableGgufTypes();

}  // namespace penstock::weights
