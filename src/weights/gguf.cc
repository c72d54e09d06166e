#include "weights/gguf.h"

#include <algorithm>
#include <array>
#include <bit>
#include <unordered_set>
#include <utility>

#include "base/units.h"
#include "weights/byte_reader.h"
#include "weights/gguf_types.h"

namespace penstock::weights {
namespace {

constexpr std::string_view kMagic = "GGUF";
constexpr size_t kMaxKeyBytes = 65535;           // specification
constexpr size_t kMaxNameBytes = 1024;           // ggml itself allows 64
constexpr uint32_t kMaxDimensions = 4;           // specification
constexpr int kMaxArrayDepth = 4;                // arrays within arrays; no key in use has any
constexpr size_t kSmallestKeyValue = 8 + 4 + 1;  // empty key, type, one byte
constexpr size_t kSmallestTensor = 8 + 4 + 8 + 4 + 8;  // empty name, one dimension, type, offset

// Text from a file, made fit for a message: no control characters, not long.
std::string Shown(std::string_view text) {
  std::string shown;
  for (const char c : text.substr(0, 80)) {
    shown += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  }
  return text.size() > 80 ? shown + "..." : shown;
}

class Parser {
 public:
  Parser(std::span<const std::byte> bytes, const std::string& path)
      : path_(path), bytes_(bytes), reader_(bytes) {
    header_.metadata = GgufMetadata(path);
  }

  Result<GgufHeader> Parse() {
    uint64_t tensors = 0;
    uint64_t keys = 0;
    PENSTOCK_TRY(ReadStart(&tensors, &keys));
    for (uint64_t i = 0; i < keys; ++i) {
      PENSTOCK_TRY(ReadKeyValue(i, keys));
    }
    PENSTOCK_TRY(ReadAlignment());
    for (uint64_t i = 0; i < tensors; ++i) {
      PENSTOCK_TRY(ReadTensor(i, tensors));
    }
    PENSTOCK_TRY(CheckLayout());
    return std::move(header_);
  }

 private:
  Error Truncated(std::string_view what) const {
    return MakeError(ErrorCode::kCorruptData,
                     "[weights.gguf] {}: the file ends within {} (byte {} of {}): truncated, or a "
                     "length is wrong",
                     path_, what, reader_.position(), bytes_.size());
  }

  template <class... Args>
  Error Corrupt(fmt::format_string<Args...> format, Args&&... args) const {
    return MakeError(ErrorCode::kCorruptData, "[weights.gguf] {}: {}", path_,
                     fmt::format(format, std::forward<Args>(args)...));
  }

  Result<> ReadStart(uint64_t* tensors, uint64_t* keys) {
    std::string_view magic;
    if (!reader_.ReadView(4, &magic) || magic != kMagic) {
      return Corrupt("not a GGUF file: it does not start with \"GGUF\"");
    }
    if (!reader_.Read(&header_.version)) {
      return Truncated("the version");
    }
    if (header_.version != 0 && (header_.version & 0xffffU) == 0) {
      return MakeError(ErrorCode::kUnsupported,
                       "[weights.gguf] {}: a big-endian GGUF file, wanted little-endian", path_);
    }
    if (header_.version != 2 && header_.version != 3) {
      return MakeError(ErrorCode::kUnsupported, "[weights.gguf] {}: GGUF version {}, wanted 2 or 3",
                       path_, header_.version);
    }
    if (!reader_.Read(tensors) || !reader_.Read(keys)) {
      return Truncated("the counts");
    }
    // Each entry takes some bytes: a count that can't fit is a lie, found before anything is
    // reserved for it.
    if (*keys > reader_.remaining() / kSmallestKeyValue) {
      return Corrupt("{} in {} bytes, wanted at most {}", Counted(*keys, "metadata key"),
                     bytes_.size(), reader_.remaining() / kSmallestKeyValue);
    }
    if (*tensors > reader_.remaining() / kSmallestTensor) {
      return Corrupt("{} in {} bytes, wanted at most {}", Counted(*tensors, "tensor"),
                     bytes_.size(), reader_.remaining() / kSmallestTensor);
    }
    return {};
  }

  Result<> ReadKeyValue(uint64_t index, uint64_t count) {
    std::string_view key;
    if (!reader_.ReadString(&key)) {
      return Truncated(fmt::format("metadata key {} of {}", index + 1, count));
    }
    if (key.empty() || key.size() > kMaxKeyBytes) {
      return Corrupt("metadata key {} of {} has {} bytes, wanted 1 to {}", index + 1, count,
                     key.size(), kMaxKeyBytes);
    }
    GgufValue value;
    PENSTOCK_TRY_ASSIGN(value.type, ReadType(key));
    const size_t begin = reader_.position();
    if (value.type == GgufType::kArray) {
      PENSTOCK_TRY(ReadArray(key, &value));
    } else {
      PENSTOCK_TRY(SkipValues(key, value.type, 1));
      value.data = bytes_.subspan(begin, reader_.position() - begin);
    }
    if (value.type == GgufType::kBool && static_cast<uint8_t>(value.data[0]) > 1) {
      return Corrupt("metadata {}: a bool of {}, wanted 0 or 1", Shown(key),
                     static_cast<uint8_t>(value.data[0]));
    }
    if (!header_.metadata.Add(key, value)) {
      return Corrupt("metadata key {} stands twice", Shown(key));
    }
    return {};
  }

  Result<GgufType> ReadType(std::string_view key) {
    uint32_t number = 0;
    if (!reader_.Read(&number)) {
      return Truncated(fmt::format("metadata {}", Shown(key)));
    }
    if (number > static_cast<uint32_t>(GgufType::kFloat64)) {
      return Corrupt("metadata {}: value type {}, wanted 0 to 12", Shown(key), number);
    }
    return static_cast<GgufType>(number);
  }

  // Elements of a type that is no array.
  Result<> SkipValues(std::string_view key, GgufType type, uint64_t count) {
    const size_t size = GgufTypeBytes(type);
    if (size > 0) {
      if (count > reader_.remaining() / size || !reader_.Skip(count * size)) {
        return Truncated(
            fmt::format("metadata {} ({} x {})", Shown(key), count, GgufTypeName(type)));
      }
      return {};
    }
    if (count > reader_.remaining() / 8) {
      return Truncated(fmt::format("metadata {} ({} strings)", Shown(key), count));
    }
    std::string_view text;
    for (uint64_t i = 0; i < count; ++i) {
      if (!reader_.ReadString(&text)) {
        return Truncated(fmt::format("metadata {} (string {} of {})", Shown(key), i + 1, count));
      }
    }
    return {};
  }

  // Nested arrays are walked with a stack of the arrays still open, never by recursion.
  Result<> ReadArray(std::string_view key, GgufValue* value) {
    std::array<uint64_t, kMaxArrayDepth> open{};  // elements left per level
    int depth = 0;
    open[0] = 1;
    bool outermost = true;
    size_t begin = 0;
    while (true) {
      if (open[static_cast<size_t>(depth)] == 0) {
        if (depth == 0) {
          break;
        }
        --depth;
        continue;
      }
      --open[static_cast<size_t>(depth)];
      PENSTOCK_TRY_ASSIGN(const GgufType element, ReadType(key));
      uint64_t count = 0;
      if (!reader_.Read(&count)) {
        return Truncated(fmt::format("metadata {}", Shown(key)));
      }
      if (outermost) {
        outermost = false;
        value->element = element;
        value->count = count;
        begin = reader_.position();
      }
      if (element != GgufType::kArray) {
        PENSTOCK_TRY(SkipValues(key, element, count));
        continue;
      }
      if (depth + 1 >= kMaxArrayDepth) {
        return Corrupt("metadata {}: arrays nested deeper than {}", Shown(key), kMaxArrayDepth - 1);
      }
      if (count > reader_.remaining() / 12) {
        return Truncated(fmt::format("metadata {} ({} arrays)", Shown(key), count));
      }
      open[static_cast<size_t>(++depth)] = count;
    }
    value->data = bytes_.subspan(begin, reader_.position() - begin);
    return {};
  }

  Result<> ReadAlignment() {
    PENSTOCK_TRY_ASSIGN(const auto alignment,
                        header_.metadata.MaybeInt("general.alignment", 1, int64_t{1} << 31));
    if (alignment.has_value()) {
      header_.alignment = static_cast<uint64_t>(*alignment);
    }
    if (!std::has_single_bit(header_.alignment)) {
      return Corrupt("general.alignment is {}, wanted a power of two", header_.alignment);
    }
    return {};
  }

  Result<> ReadTensor(uint64_t index, uint64_t count) {
    std::string_view name;
    uint32_t dimensions = 0;
    const std::string what = fmt::format("tensor {} of {} in the index", index + 1, count);
    if (!reader_.ReadString(&name)) {
      return Truncated(what);
    }
    if (name.empty() || name.size() > kMaxNameBytes) {
      return Corrupt("{}: a name of {} bytes, wanted 1 to {}", what, name.size(), kMaxNameBytes);
    }
    if (!reader_.Read(&dimensions)) {
      return Truncated(what);
    }
    if (dimensions < 1 || dimensions > kMaxDimensions) {
      return Corrupt("tensor {}: {} dimensions, wanted 1 to {}", Shown(name), dimensions,
                     kMaxDimensions);
    }
    StoredTensor tensor;
    tensor.name = std::string(name);
    tensor.elements = 1;
    uint64_t columns = 1;
    for (uint32_t i = 0; i < dimensions; ++i) {
      uint64_t size = 0;
      if (!reader_.Read(&size)) {
        return Truncated(what);
      }
      if (size < 1 || size > static_cast<uint64_t>(INT64_MAX / tensor.elements)) {
        return Corrupt(
            "tensor {}: dimension {} is {}; wanted at least 1, and fewer than 2^63 elements in all",
            Shown(name), i, size);
      }
      columns = i == 0 ? size : columns;
      tensor.elements *= static_cast<int64_t>(size);
      tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(size));
    }
    uint32_t number = 0;
    if (!reader_.Read(&number) || !reader_.Read(&tensor.offset)) {
      return Truncated(what);
    }
    PENSTOCK_TRY(SetType(number, columns, &tensor));
    if (!names_.insert(name).second) {
      return Corrupt("tensor {} stands twice in the index", Shown(name));
    }
    header_.tensors.push_back(std::move(tensor));
    return {};
  }

  Result<> SetType(uint32_t number, uint64_t columns, StoredTensor* tensor) {
    const GgmlType* type = FindGgmlType(number);
    if (type == nullptr) {
      return MakeError(ErrorCode::kUnsupported,
                       "[weights.gguf] {}: tensor {} has quantization type number {}, which is not "
                       "known; supported: {}",
                       path_, Shown(tensor->name), number, LoadableGgufTypes());
    }
    if (columns % static_cast<uint64_t>(type->block_elements) != 0) {
      return Corrupt("tensor {} {}: rows of {}, wanted a multiple of {} (blocks of {})",
                     Shown(tensor->name), tensor->ShapeText(), Counted(columns, "element"),
                     type->block_elements, type->name);
    }
    const int64_t blocks = tensor->elements / type->block_elements;
    if (blocks > INT64_MAX / type->block_bytes) {
      return Corrupt("tensor {} {}: more than 2^63 bytes", Shown(tensor->name),
                     tensor->ShapeText());
    }
    tensor->type = type->type;
    tensor->type_name =
        type->type.has_value() ? std::string(DTypeName(*type->type)) : std::string(type->name);
    tensor->bytes = static_cast<uint64_t>(blocks * type->block_bytes);
    return {};
  }

  uint64_t Aligned(uint64_t position) const {
    return (position + header_.alignment - 1) / header_.alignment * header_.alignment;
  }

  // Makes offsets absolute and checks that the data follow each other, each at the next aligned
  // place, up to the end.
  Result<> CheckLayout() {
    const uint64_t size = bytes_.size();
    const uint64_t begin = Aligned(reader_.position());
    if (!header_.tensors.empty() && begin > size) {
      return Truncated("the padding before the tensors' data");
    }
    header_.data_begin = begin;
    uint64_t expected = 0;  // from data_begin
    for (StoredTensor& tensor : header_.tensors) {
      if (tensor.offset % header_.alignment != 0) {
        return Corrupt("tensor {}: offset {} is misaligned, wanted a multiple of {}",
                       Shown(tensor.name), tensor.offset, header_.alignment);
      }
      if (tensor.offset < expected) {
        return Corrupt("tensor {}: offset {} overlaps the tensor before it, wanted {}",
                       Shown(tensor.name), tensor.offset, expected);
      }
      if (tensor.offset > expected) {
        return Corrupt("tensor {}: offset {} leaves a gap, wanted {}", Shown(tensor.name),
                       tensor.offset, expected);
      }
      if (tensor.bytes > size - begin || tensor.offset > size - begin - tensor.bytes) {
        return Corrupt(
            "tensor {} {} {}: {} bytes at {} reach past the end of the file ({} bytes): truncated, "
            "or the index is wrong",
            Shown(tensor.name), tensor.type_name, tensor.ShapeText(), tensor.bytes,
            begin + tensor.offset, size);
      }
      expected = Aligned(tensor.offset + tensor.bytes);
      tensor.offset += begin;
    }
    const uint64_t end = header_.tensors.empty()
                             ? reader_.position()
                             : header_.tensors.back().offset + header_.tensors.back().bytes;
    return CheckEnd(end, std::min<uint64_t>(Aligned(end), size));
  }

  // Nothing but padding may follow the last tensor.
  Result<> CheckEnd(uint64_t end, uint64_t padded) const {
    for (const uint64_t position : {end, padded}) {
      const std::string_view rest(reinterpret_cast<const char*>(bytes_.data()) + position,
                                  bytes_.size() - position);
      if (rest.starts_with(kMagic)) {
        return Corrupt(
            "another GGUF file begins at byte {}: the parts of a split set must not be joined; "
            "keep them as "
            "separate files and open the first (...-00001-of-0000N.gguf)",
            position);
      }
    }
    if (padded < bytes_.size()) {
      return Corrupt(
          "{} bytes after the last tensor belong to nothing: the tensor count is wrong, or "
          "something was appended",
          bytes_.size() - padded);
    }
    return {};
  }

  const std::string& path_;
  std::span<const std::byte> bytes_;
  ByteReader reader_;
  GgufHeader header_;
  std::unordered_set<std::string_view> names_;
};

}  // namespace

Result<GgufHeader> ParseGguf(std::span<const std::byte> bytes, const std::string& path) {
  return Parser(bytes, path).Parse();
}

std::string_view LoadableGgufTypes() {
  return "F32, F16, BF16, F64, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, MXFP4";
}

}  // namespace penstock::weights
