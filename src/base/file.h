// Files: whole small ones, and large ones mapped read-only.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"

namespace penstock {

// A read-only memory map. Pages are read when touched; DropPages gives them back to the system.
// Movable, not copyable. Thread-safe for reading. A file that shrinks while mapped raises SIGBUS,
// as with every map.
class MappedFile {
 public:
  // Errors: kNotFound (no such file, a folder, or no permission), kCorruptData (empty file).
  static Result<MappedFile> Open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const std::string& path() const { return path_; }

  std::span<const std::byte> bytes() const { return {data_, size_}; }

  // Tells the system that this range is not needed any more (it is read again if touched). Whole
  // pages inside only.
  void DropPages(size_t offset, size_t length) const;

  // Starts reading a range ahead of its use.
  void Prefetch(size_t offset, size_t length) const;

 private:
  MappedFile(std::string path, const std::byte* data, size_t size)
      : path_(std::move(path)), data_(data), size_(size) {}

  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// Whole file as text. Errors: kNotFound, kInvalidArgument (larger than `limit_bytes`).
Result<std::string> ReadFile(const std::string& path, size_t limit_bytes = size_t{1} << 30);

// Writes through a temporary name beside `path` and renames, so that a reader sees the old file or
// the new one. A link keeps pointing where it does; a device or a pipe (/dev/stdout) is written as
// it is. Errors: kNotFound (no such folder, no permission), kInvalidArgument (a folder), kInternal
// (the disk is full or fails).
Result<> WriteFileAtomically(const std::string& path, std::string_view content);

// Whether a file could be written there, for asking before long work; makes and changes nothing.
// Errors: as above.
Result<> CheckWritable(const std::string& path);

bool FileExists(const std::string& path);
bool IsFolder(const std::string& path);

}  // namespace penstock
