#include "weights/stored_tensor.h"

#include <utility>

namespace penstock::weights {

std::string ShapeText(std::span<const int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape.begin(), shape.end(), ", "));
}

std::string StoredTensor::ShapeText() const {
  return weights::ShapeText(shape);
}

Result<std::shared_ptr<const FileBytes>> FileBytes::Map(const std::string& path) {
  PENSTOCK_TRY_ASSIGN(MappedFile map, MappedFile::Open(path));
  auto file = std::make_shared<FileBytes>();
  file->path_ = path;
  file->map_.emplace(std::move(map));
  file->bytes_ = file->map_->bytes();
  return std::shared_ptr<const FileBytes>(std::move(file));
}

std::shared_ptr<const FileBytes> FileBytes::Copy(std::string path,
                                                 std::span<const std::byte> bytes) {
  auto file = std::make_shared<FileBytes>();
  file->path_ = std::move(path);
  file->copy_.assign(bytes.begin(), bytes.end());
  file->bytes_ = file->copy_;
  return file;
}

}  // namespace penstock::weights
