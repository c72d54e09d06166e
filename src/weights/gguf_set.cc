#include "weights/gguf_set.h"

#include <cctype>
#include <utility>

#include "base/units.h"
#include "weights/dequantize.h"

namespace penstock::weights {
namespace {

constexpr int64_t kMaxParts = 99999;  // five digits in the name

// "DIR/NAME-00002-of-00003.gguf" taken apart.
struct PartName {
  std::string prefix;  // "DIR/NAME"
  int64_t number = 0;  // from 1
  int64_t count = 0;

  std::string Path(int64_t part) const {
    return fmt::format("{}-{:05}-of-{:05}.gguf", prefix, part, count);
  }
};

std::optional<int64_t> FiveDigits(std::string_view text) {
  int64_t number = 0;
  for (const char c : text) {
    if (std::isdigit(static_cast<unsigned char>(c)) == 0) {
      return std::nullopt;
    }
    number = number * 10 + (c - '0');
  }
  return text.size() == 5 ? std::optional<int64_t>(number) : std::nullopt;
}

std::optional<PartName> ParsePartName(std::string_view path) {
  constexpr std::string_view kExample = "-00001-of-00003.gguf";
  if (path.size() <= kExample.size()) {
    return std::nullopt;
  }
  const std::string_view tail = path.substr(path.size() - kExample.size());
  const auto number = FiveDigits(tail.substr(1, 5));
  const auto count = FiveDigits(tail.substr(10, 5));
  if (tail[0] != '-' || tail.substr(6, 4) != "-of-" || tail.substr(15) != ".gguf" || !number ||
      !count) {
    return std::nullopt;
  }
  return PartName{std::string(path.substr(0, path.size() - kExample.size())), *number, *count};
}

struct SplitKeys {
  int64_t number = 0;  // from 0
  int64_t count = 1;
  std::optional<int64_t> tensors;
};

Result<SplitKeys> ReadSplitKeys(const GgufMetadata& metadata) {
  SplitKeys keys;
  PENSTOCK_TRY_ASSIGN(const auto count, metadata.MaybeInt("split.count", 0, kMaxParts));
  if (!count.has_value() || *count <= 1) {
    return keys;
  }
  keys.count = *count;
  PENSTOCK_TRY_ASSIGN(keys.number, metadata.Int("split.no", 0, keys.count - 1));
  PENSTOCK_TRY_ASSIGN(keys.tensors, metadata.MaybeInt("split.tensors.count", 0, INT64_MAX));
  return keys;
}

// The name and the keys of the part that the user opened.
Result<PartName> CheckFirstPart(const std::string& path, const SplitKeys& keys) {
  const auto name = ParsePartName(path);
  if (!name.has_value()) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        "[weights.gguf] {}: this is part {} of a split set of {}, but its name does not end in "
        "-{:05}-of-{:05}.gguf, so the other parts can't be found\nKeep the names of the parts; "
        "open the first one.",
        path, keys.number + 1, keys.count, keys.number + 1, keys.count);
  }
  if (name->count != keys.count || name->number != keys.number + 1) {
    return MakeError(ErrorCode::kCorruptData,
                     "[weights.gguf] {}: the name says part {} of {}, the file says part {} of {} "
                     "(split.no, split.count)",
                     path, name->number, name->count, keys.number + 1, keys.count);
  }
  if (keys.number != 0) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        "[weights.gguf] {}: part {} of a split set of {}, wanted the first part: open {}", path,
        name->number, name->count, name->Path(1));
  }
  return *name;
}

Result<> CheckAllPartsExist(const PartName& name) {
  std::string missing;
  int64_t count = 0;
  for (int64_t part = 2; part <= name.count; ++part) {
    if (!FileExists(name.Path(part))) {
      if (++count <= 5) {
        missing += (missing.empty() ? "" : ", ") + name.Path(part);
      }
    }
  }
  if (count > 5) {
    missing += fmt::format(" and {} more", count - 5);
  }
  if (count > 0) {
    return MakeError(ErrorCode::kNotFound,
                     "[weights.gguf] {}: {} of the {} parts of this split set {} missing: {}",
                     name.Path(1), count, name.count, count == 1 ? "is" : "are", missing);
  }
  return {};
}

}  // namespace

Result<> GgufSet::AddFile(std::shared_ptr<const FileBytes> file, GgufHeader header) {
  const auto number = static_cast<int32_t>(files_.size());
  for (StoredTensor& tensor : header.tensors) {
    tensor.file = number;
    const auto [place, fresh] = index_.emplace(tensor.name, tensors_.size());
    if (!fresh) {
      return MakeError(
          ErrorCode::kCorruptData,
          "[weights.gguf] {}: tensor {} stands in another part of the split set too ({})",
          file->path(), tensor.name,
          files_[static_cast<size_t>(tensors_[place->second].file)]->path());
    }
    tensors_.push_back(std::move(tensor));
  }
  files_.push_back(std::move(file));
  return {};
}

Result<GgufSet> GgufSet::FromFile(std::shared_ptr<const FileBytes> file) {
  PENSTOCK_TRY_ASSIGN(GgufHeader header, ParseGguf(file->bytes(), file->path()));
  PENSTOCK_TRY_ASSIGN(const SplitKeys keys, ReadSplitKeys(header.metadata));
  if (keys.count > 1) {
    return MakeError(ErrorCode::kUnsupported,
                     "[weights.gguf] {}: a part of a split set, wanted a whole file", file->path());
  }
  GgufSet set;
  set.metadata_ = header.metadata;
  PENSTOCK_TRY(set.AddFile(std::move(file), std::move(header)));
  return set;
}

Result<GgufSet> GgufSet::Open(const std::string& path) {
  PENSTOCK_TRY_ASSIGN(std::shared_ptr<const FileBytes> file, FileBytes::Map(path));
  PENSTOCK_TRY_ASSIGN(GgufHeader header, ParseGguf(file->bytes(), path));
  PENSTOCK_TRY_ASSIGN(const SplitKeys keys, ReadSplitKeys(header.metadata));
  GgufSet set;
  set.metadata_ = header.metadata;
  PENSTOCK_TRY(set.AddFile(std::move(file), std::move(header)));
  if (keys.count <= 1) {
    return set;
  }
  PENSTOCK_TRY_ASSIGN(const PartName name, CheckFirstPart(path, keys));
  PENSTOCK_TRY(CheckAllPartsExist(name));
  for (int64_t part = 2; part <= keys.count; ++part) {
    const std::string part_path = name.Path(part);
    PENSTOCK_TRY_ASSIGN(std::shared_ptr<const FileBytes> part_file, FileBytes::Map(part_path));
    PENSTOCK_TRY_ASSIGN(GgufHeader part_header, ParseGguf(part_file->bytes(), part_path));
    PENSTOCK_TRY_ASSIGN(const SplitKeys part_keys, ReadSplitKeys(part_header.metadata));
    if (part_keys.number != part - 1 || part_keys.count != keys.count ||
        part_keys.tensors != keys.tensors) {
      return MakeError(ErrorCode::kCorruptData,
                       "[weights.gguf] {}: says it is part {} of a split set of {}, wanted part {} "
                       "of {} with the same "
                       "split.tensors.count: a file of another set?",
                       part_path, part_keys.number + 1, part_keys.count, part, keys.count);
    }
    PENSTOCK_TRY(set.AddFile(std::move(part_file), std::move(part_header)));
  }
  if (keys.tensors.has_value() && *keys.tensors != static_cast<int64_t>(set.tensors_.size())) {
    return MakeError(ErrorCode::kCorruptData,
                     "[weights.gguf] {}: the split set holds {}, wanted {} (split.tensors.count)",
                     path, Counted(set.tensors_.size(), "tensor"), *keys.tensors);
  }
  return set;
}

const StoredTensor* GgufSet::Find(std::string_view name) const {
  const auto found = index_.find(std::string(name));
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

int64_t GgufSet::file_bytes() const {
  int64_t total = 0;
  for (const auto& file : files_) {
    total += static_cast<int64_t>(file->bytes().size());
  }
  return total;
}

Result<std::vector<float>> GgufSet::Floats(std::string_view name, int64_t max_count) const {
  const StoredTensor* tensor = Find(name);
  if (tensor == nullptr) {
    return MakeError(ErrorCode::kNotFound, "[weights.gguf] {}: no tensor {}", path(), name);
  }
  if (tensor->elements > max_count) {
    return MakeError(ErrorCode::kCorruptData,
                     "[weights.gguf] {}: tensor {} {}, wanted at most {} elements", path(), name,
                     tensor->ShapeText(), max_count);
  }
  if (!tensor->type.has_value() || !CanDequantize(*tensor->type)) {
    return MakeError(ErrorCode::kUnsupported,
                     "[weights.gguf] {}: tensor {} has type {}, wanted one of {}", path(), name,
                     tensor->type_name, DequantizableTypes());
  }
  std::vector<float> values(static_cast<size_t>(tensor->elements));
  DequantizeRow(*tensor->type, file(tensor->file)->bytes().subspan(tensor->offset, tensor->bytes),
                values);
  if (!AllFinite(values)) {
    return MakeError(ErrorCode::kCorruptData, "[weights.gguf] {}: tensor {} holds NaN or infinity",
                     path(), name);
  }
  return values;
}

}  // namespace penstock::weights
