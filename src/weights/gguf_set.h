// A GGUF model: one file, or the files of a split set (NAME-00001-of-0000N.gguf), headers only.
//
// The first part carries the metadata; each part has its own tensors. Source of the keys and names:
// llama.cpp's gguf-split.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "weights/gguf.h"

namespace penstock::weights {

class GgufSet {
 public:
  // `path` is a whole file or the first part of a set, whose other parts lie beside it.
  // Errors: those of ParseGguf; a later part, a part that is missing or does not belong, a name
  // without its number: each says "split" and names the file to open or to look for.
  static Result<GgufSet> Open(const std::string& path);

  // One file whose bytes are in memory; a part of a split set is an error.
  static Result<GgufSet> FromFile(std::shared_ptr<const FileBytes> file);

  const std::string& path() const { return files_.front()->path(); }

  const GgufMetadata& metadata() const { return metadata_; }

  const std::vector<StoredTensor>& tensors() const { return tensors_; }

  const StoredTensor* Find(std::string_view name) const;

  bool Has(std::string_view name) const { return Find(name) != nullptr; }

  const std::shared_ptr<const FileBytes>& file(int32_t index) const {
    return files_[static_cast<size_t>(index)];
  }

  size_t file_count() const { return files_.size(); }

  int64_t file_bytes() const;

  // All elements of a small float tensor (RoPE factors).
  // Errors: kNotFound, kCorruptData (more than `max_count`, NaN), kUnsupported (its type).
  Result<std::vector<float>> Floats(std::string_view name, int64_t max_count) const;

 private:
  Result<> AddFile(std::shared_ptr<const FileBytes> file, GgufHeader header);

  std::vector<std::shared_ptr<const FileBytes>> files_;
  GgufMetadata metadata_;
  std::vector<StoredTensor> tensors_;
  std::unordered_map<std::string, size_t> index_;
};

}  // namespace penstock::weights
