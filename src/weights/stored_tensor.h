// One tensor of a file, from its header alone; and the bytes of a file, mapped or in memory.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/result.h"
#include "tensor/dtype.h"

namespace penstock::weights {

struct StoredTensor {
  std::string name;       // as the file spells it
  std::string type_name;  // "f32", "q4_1"; for types that can't be loaded, the format's own name
  std::optional<DType> type;   // nothing: the file may hold it, but it can't be loaded
  std::vector<int64_t> shape;  // outermost dimension first, as Hugging Face writes it
  int64_t elements = 0;
  uint64_t offset = 0;  // from the start of its file
  uint64_t bytes = 0;
  int32_t file = 0;  // index of its file within the model

  std::string ShapeText() const;  // "[576, 1536]"
};

std::string ShapeText(std::span<const int64_t> shape);

// The bytes of one file and its name for messages. Shared by everything that reads from it.
class FileBytes {
 public:
  FileBytes() = default;
  FileBytes(const FileBytes&) = delete;
  FileBytes& operator=(const FileBytes&) = delete;

  // Errors: those of MappedFile::Open.
  static Result<std::shared_ptr<const FileBytes>> Map(const std::string& path);

  // Bytes that are in memory already (tests); they are copied.
  static std::shared_ptr<const FileBytes> Copy(std::string path, std::span<const std::byte> bytes);

  const std::string& path() const { return path_; }

  std::span<const std::byte> bytes() const { return bytes_; }

  void DropPages(size_t offset, size_t length) const {
    if (map_.has_value()) {
      map_->DropPages(offset, length);
    }
  }

  void Prefetch(size_t offset, size_t length) const {
    if (map_.has_value()) {
      map_->Prefetch(offset, length);
    }
  }

 private:
  std::string path_;
  std::optional<MappedFile> map_;
  std::vector<std::byte> copy_;
  std::span<const std::byte> bytes_;
};

}  // namespace penstock::weights
