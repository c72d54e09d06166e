#include "weights/safetensors.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "base/json.h"

namespace penstock::weights {
namespace {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // as the format's own library
constexpr size_t kMaxDimensions = 8;

struct SafetensorsType {
  std::string_view name;
  int bits;
  std::optional<DType> type;
};

constexpr SafetensorsType kTypes[] = {
    {"F32", 32, DType::kF32},
    {"F16", 16, DType::kF16},
    {"BF16", 16, DType::kBF16},
    {"F64", 64, DType::kF64},
    {"I8", 8, DType::kI8},
    {"U8", 8, DType::kU8},
    {"I16", 16, DType::kI16},
    {"I32", 32, DType::kI32},
    {"I64", 64, DType::kI64},
    {"BOOL", 8, std::nullopt},
    {"U16", 16, std::nullopt},
    {"U32", 32, std::nullopt},
    {"U64", 64, std::nullopt},
    {"C64", 64, std::nullopt},
    {"F8_E5M2", 8, std::nullopt},
    {"F8_E4M3", 8, std::nullopt},
    {"F8_E8M0", 8, std::nullopt},
    {"F8_E4M3FNUZ", 8, std::nullopt},
    {"F8_E5M2FNUZ", 8, std::nullopt},
    {"F6_E2M3", 6, std::nullopt},
    {"F6_E3M2", 6, std::nullopt},
    {"F4", 4, std::nullopt},
};

const SafetensorsType* FindType(std::string_view name) {
  const auto* const found =
      std::find_if(std::begin(kTypes), std::end(kTypes),
                   [name](const SafetensorsType& type) { return type.name == name; });
  return found == std::end(kTypes) ? nullptr : found;
}

std::string TypeNames() {
  std::string names;
  for (const SafetensorsType& type : kTypes) {
    names += (names.empty() ? "" : ", ") + std::string(type.name);
  }
  return names;
}

// One entry as the JSON states it.
struct Entry {
  std::string name;
  std::optional<std::string> dtype;
  std::optional<std::vector<int64_t>> shape;
  std::optional<std::vector<int64_t>> offsets;
};

// Takes the header's JSON event by event, so that a name that stands twice is seen and nothing deep
// is built. Returning false ends the parse; `problem` then says why.
class HeaderHandler {
 public:
  std::vector<Entry> entries;
  std::map<std::string, std::string> metadata;
  std::string problem;

  bool start_object(size_t) {
    ++depth_;
    if (depth_ == 1) {
      return true;
    }
    if (depth_ == 2 && !in_array_) {
      if (name_ == "__metadata__") {
        in_metadata_ = true;
        return true;
      }
      entries.push_back({.name = name_});
      return true;
    }
    return Unexpected("an object");
  }

  bool end_object() {
    --depth_;
    in_metadata_ = false;
    return true;
  }

  bool key(std::string& text) {
    if (depth_ == 1) {
      name_ = text;
      if (!names_.insert(text).second) {
        problem = fmt::format("the name {} stands twice", text);
        return false;
      }
      return true;
    }
    member_ = text;
    if (!in_metadata_ && member_ != "dtype" && member_ != "shape" && member_ != "data_offsets") {
      problem = fmt::format(
          "tensor {}: unknown member \"{}\", wanted dtype, shape and data_offsets", name_, member_);
      return false;
    }
    return true;
  }

  bool start_array(size_t) {
    if (depth_ != 2 || in_metadata_ || in_array_ ||
        (member_ != "shape" && member_ != "data_offsets")) {
      return Unexpected("an array");
    }
    in_array_ = true;
    auto& list = List();
    if (list.has_value()) {
      problem = fmt::format("tensor {}: {} stands twice", name_, member_);
      return false;
    }
    list.emplace();
    return true;
  }

  bool end_array() {
    in_array_ = false;
    return true;
  }

  bool string(std::string& text) {
    if (depth_ == 2 && in_metadata_) {
      metadata[member_] = text;
      return true;
    }
    if (depth_ != 2 || in_array_ || member_ != "dtype" || entries.back().dtype.has_value()) {
      return Unexpected("a string");
    }
    entries.back().dtype = text;
    return true;
  }

  bool number_unsigned(uint64_t number) {
    if (!in_array_ || number > static_cast<uint64_t>(INT64_MAX)) {
      return Unexpected(fmt::format("the number {}", number));
    }
    auto& list = *List();
    if (list.size() >= kMaxDimensions) {
      problem =
          fmt::format("tensor {}: more than {} numbers in {}", name_, kMaxDimensions, member_);
      return false;
    }
    list.push_back(static_cast<int64_t>(number));
    return true;
  }

  bool number_integer(int64_t number) { return Unexpected(fmt::format("the number {}", number)); }

  bool number_float(double, const std::string& text) {
    return Unexpected(fmt::format("the number {}", text));
  }

  bool boolean(bool) { return Unexpected("true or false"); }

  bool null() { return Unexpected("null"); }

  bool binary(std::vector<uint8_t>&) { return Unexpected("binary data"); }

  template <class Exception>
  bool parse_error(size_t position, const std::string&, const Exception&) {
    problem = fmt::format("not valid JSON at byte {} of the header", position);
    return false;
  }

 private:
  std::optional<std::vector<int64_t>>& List() {
    return member_ == "shape" ? entries.back().shape : entries.back().offsets;
  }

  bool Unexpected(std::string_view what) {
    problem = depth_ == 0 ? fmt::format("{} instead of an object", what)
              : depth_ == 1
                  ? fmt::format("tensor {}: {} instead of an object", name_, what)
                  : fmt::format("tensor {}: {} for {}, wanted {}", name_, what, member_,
                                in_metadata_         ? "a string"
                                : member_ == "dtype" ? "the name of a type"
                                                     : "a list of integers from 0 to 2^63 - 1");
    return false;
  }

  int depth_ = 0;
  bool in_metadata_ = false;
  bool in_array_ = false;
  std::string name_;
  std::string member_;
  std::unordered_set<std::string> names_;
};

template <class... Args>
Error Corrupt(const std::string& path, fmt::format_string<Args...> format, Args&&... args) {
  return MakeError(ErrorCode::kCorruptData, "[weights.safetensors] {}: {}", path,
                   fmt::format(format, std::forward<Args>(args)...));
}

// Elements of a shape; nothing when they do not fit 63 bits.
std::optional<int64_t> Elements(const std::vector<int64_t>& shape) {
  int64_t elements = 1;
  for (const int64_t size : shape) {
    if (size != 0 && elements > INT64_MAX / size) {
      return std::nullopt;
    }
    elements *= size;
  }
  return elements;
}

// Checks one entry by itself; its offset still counts from the start of the data.
Result<StoredTensor> Check(const Entry& entry, uint64_t data_bytes, const std::string& path) {
  if (!entry.dtype || !entry.shape || !entry.offsets) {
    return Corrupt(path, "tensor {}: no {}", entry.name,
                   !entry.dtype   ? "dtype"
                   : !entry.shape ? "shape"
                                  : "data_offsets");
  }
  const SafetensorsType* type = FindType(*entry.dtype);
  if (type == nullptr) {
    return MakeError(ErrorCode::kUnsupported,
                     "[weights.safetensors] {}: tensor {} has dtype \"{}\", wanted one of {}", path,
                     entry.name, entry.dtype->substr(0, 64), TypeNames());
  }
  if (entry.offsets->size() != 2 || (*entry.offsets)[0] > (*entry.offsets)[1] ||
      static_cast<uint64_t>((*entry.offsets)[1]) > data_bytes) {
    return Corrupt(path,
                   "tensor {}: data_offsets are {}, wanted [begin, end] within the {} bytes of "
                   "data: truncated, or the header is wrong",
                   entry.name, ShapeText(*entry.offsets), data_bytes);
  }
  const auto elements = Elements(*entry.shape);
  if (!elements.has_value() || *elements > INT64_MAX / type->bits) {
    return Corrupt(path, "tensor {}: shape {} has too many elements", entry.name,
                   ShapeText(*entry.shape));
  }
  StoredTensor tensor;
  tensor.name = entry.name;
  tensor.type = type->type;
  tensor.type_name =
      type->type.has_value() ? std::string(DTypeName(*type->type)) : std::string(type->name);
  tensor.shape = *entry.shape;
  tensor.elements = *elements;
  tensor.offset = static_cast<uint64_t>((*entry.offsets)[0]);
  tensor.bytes = static_cast<uint64_t>((*entry.offsets)[1]) - tensor.offset;
  const int64_t bits = *elements * type->bits;
  if (bits % 8 != 0 || static_cast<uint64_t>(bits / 8) != tensor.bytes) {
    return Corrupt(path, "tensor {}: {} {} takes {} bytes, but its data_offsets {} span {}",
                   entry.name, type->name, tensor.ShapeText(), (bits + 7) / 8,
                   ShapeText(*entry.offsets), tensor.bytes);
  }
  if (type->bits > 8 && tensor.offset % static_cast<uint64_t>(type->bits / 8) != 0) {
    return Corrupt(path, "tensor {}: offset {} is misaligned, wanted a multiple of {} for {}",
                   entry.name, tensor.offset, type->bits / 8, type->name);
  }
  return tensor;
}

// The tensors, sorted by place, must follow each other without gap up to the end.
Result<> CheckCover(const std::vector<StoredTensor>& tensors, uint64_t data_bytes,
                    const std::string& path) {
  uint64_t expected = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const StoredTensor& tensor = tensors[i];
    if (tensor.offset < expected) {
      return Corrupt(path, "tensor {} at {} overlaps {}, which ends at {}", tensor.name,
                     tensor.offset, tensors[i - 1].name, expected);
    }
    if (tensor.offset > expected) {
      return Corrupt(path,
                     "tensor {} begins at {}, wanted {}: {} bytes before it belong to nothing",
                     tensor.name, tensor.offset, expected, tensor.offset - expected);
    }
    expected = tensor.offset + tensor.bytes;
  }
  if (expected != data_bytes) {
    return Corrupt(path, "{} bytes after the last tensor belong to nothing", data_bytes - expected);
  }
  return {};
}

}  // namespace

Result<SafetensorsHeader> ParseSafetensors(std::span<const std::byte> bytes,
                                           const std::string& path) {
  uint64_t length = 0;
  if (bytes.size() < sizeof length) {
    return Corrupt(path, "{} bytes, wanted at least 8: truncated", bytes.size());
  }
  std::memcpy(&length, bytes.data(), sizeof length);
  if (length > kMaxHeaderBytes || length > bytes.size() - sizeof length) {
    return Corrupt(path,
                   "a header of {} bytes in a file of {}, wanted at most {}: truncated, or not a "
                   "safetensors file",
                   length, bytes.size(),
                   std::min<uint64_t>(kMaxHeaderBytes, bytes.size() - sizeof length));
  }
  const auto* text = reinterpret_cast<const char*>(bytes.data()) + sizeof length;
  HeaderHandler handler;
  bool good = false;
  try {
    good = Json::sax_parse(text, text + length, &handler);
  } catch (const std::exception& e) {
    return Corrupt(path, "the header can't be read ({})", e.what());
  }
  if (!good) {
    return Corrupt(path, "{}", handler.problem);
  }
  SafetensorsHeader header;
  header.metadata = std::move(handler.metadata);
  const uint64_t data_begin = sizeof length + length;
  const uint64_t data_bytes = bytes.size() - data_begin;
  for (const Entry& entry : handler.entries) {
    PENSTOCK_TRY_ASSIGN(StoredTensor tensor, Check(entry, data_bytes, path));
    header.tensors.push_back(std::move(tensor));
  }
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const StoredTensor& a, const StoredTensor& b) {
              return std::tie(a.offset, a.bytes, a.name) < std::tie(b.offset, b.bytes, b.name);
            });
  PENSTOCK_TRY(CheckCover(header.tensors, data_bytes, path));
  for (StoredTensor& tensor : header.tensors) {
    tensor.offset += data_begin;
  }
  return header;
}

}  // namespace penstock::weights
