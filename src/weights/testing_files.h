// For tests: bytes of GGUF and safetensors files, right or wrong on purpose, and reading of .npy
// goldens.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "weights/gguf.h"

namespace penstock::weights::testing {

class Bytes {
 public:
  template <class T>
  Bytes& Put(T value) {
    const size_t at = data_.size();
    data_.resize(at + sizeof(T));
    std::memcpy(data_.data() + at, &value, sizeof(T));
    return *this;
  }

  Bytes& Text(std::string_view text) {
    data_.append(text);
    return *this;
  }

  // A 64-bit length and the text.
  Bytes& String(std::string_view text) { return Put<uint64_t>(text.size()).Text(text); }

  Bytes& Fill(size_t count, char byte = 0) {
    data_.append(count, byte);
    return *this;
  }

  const std::string& data() const { return data_; }

 private:
  std::string data_;
};

inline std::span<const std::byte> AsBytes(std::string_view text) {
  return std::as_bytes(std::span<const char>(text.data(), text.size()));
}

// Builds a GGUF file piece by piece. Every number that a header states can be overridden with a
// wrong one.
class GgufBuilder {
 public:
  uint32_t version = 3;
  int64_t tensor_count_offset = 0;  // added to the counts that are written
  int64_t key_count_offset = 0;
  uint64_t alignment = 32;

  // A key with its type and the bytes of its value.
  GgufBuilder& Raw(std::string_view key, uint32_t type, std::string_view value) {
    keys_.String(key).Put<uint32_t>(type).Text(value);
    ++key_count_;
    return *this;
  }

  GgufBuilder& Uint(std::string_view key, uint32_t value) {
    return Raw(key, 4, Bytes().Put(value).data());
  }

  GgufBuilder& Float(std::string_view key, float value) {
    return Raw(key, 6, Bytes().Put(value).data());
  }

  GgufBuilder& Bool(std::string_view key, bool value) {
    return Raw(key, 7, Bytes().Put<uint8_t>(value ? 1 : 0).data());
  }

  GgufBuilder& Text(std::string_view key, std::string_view value) {
    return Raw(key, 8, Bytes().String(value).data());
  }

  GgufBuilder& Strings(std::string_view key, const std::vector<std::string>& values) {
    Bytes bytes;
    bytes.Put<uint32_t>(8).Put<uint64_t>(values.size());
    for (const std::string& value : values) {
      bytes.String(value);
    }
    return Raw(key, 9, bytes.data());
  }

  // `shape` in GGUF's order (columns first). `offset` -1: where it belongs.
  GgufBuilder& Tensor(std::string_view name, const std::vector<uint64_t>& shape, uint32_t type,
                      std::string_view data, int64_t offset = -1) {
    index_.String(name).Put<uint32_t>(static_cast<uint32_t>(shape.size()));
    for (const uint64_t size : shape) {
      index_.Put(size);
    }
    index_.Put(type).Put<uint64_t>(offset < 0 ? data_.size() : static_cast<uint64_t>(offset));
    data_.append(data);
    data_.resize((data_.size() + alignment - 1) / alignment * alignment);
    ++tensor_count_;
    return *this;
  }

  GgufBuilder& Floats(std::string_view name, const std::vector<uint64_t>& shape,
                      const std::vector<float>& values) {
    return Tensor(name, shape, 0,
                  {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
  }

  std::string Build() const {
    Bytes file;
    file.Text("GGUF").Put(version).Put<uint64_t>(
        static_cast<uint64_t>(tensor_count_ + tensor_count_offset));
    file.Put<uint64_t>(static_cast<uint64_t>(key_count_ + key_count_offset))
        .Text(keys_.data())
        .Text(index_.data());
    file.Fill((alignment - file.data().size() % alignment) % alignment).Text(data_);
    return file.data();
  }

 private:
  Bytes keys_;
  Bytes index_;
  std::string data_;
  int64_t key_count_ = 0;
  int64_t tensor_count_ = 0;
};

// Header length, header, data.
inline std::string Safetensors(std::string_view header, std::string_view data = "") {
  return Bytes().Put<uint64_t>(header.size()).Text(header).Text(data).data();
}

// A folder of its own that is removed with the object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name =
        (std::filesystem::temp_directory_path() / "penstock-weights-XXXXXX").string();
    PENSTOCK_CHECK(::mkdtemp(name.data()) != nullptr, "a temporary folder");
    path_ = name;
  }

  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::string& path() const { return path_; }

  // Writes a file and returns its path.
  std::string Write(const std::string& name, std::string_view content) const {
    std::string path = path_ + "/" + name;
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }

 private:
  std::string path_;
};

inline std::string ReadAll(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// The float32 elements of a version 1 .npy file in C order.
inline std::vector<float> ReadNpy(const std::string& path) {
  const std::string file = ReadAll(path);
  PENSTOCK_CHECK(file.size() > 10 && file.compare(0, 6, "\x93NUMPY") == 0, path.c_str());
  const auto header =
      static_cast<size_t>(static_cast<uint8_t>(file[8]) + 256 * static_cast<uint8_t>(file[9]));
  PENSTOCK_CHECK(
      file.find("'<f4'") < 10 + header && file.find("'fortran_order': False") < 10 + header,
      path.c_str());
  std::vector<float> values((file.size() - 10 - header) / sizeof(float));
  std::memcpy(values.data(), file.data() + 10 + header, values.size() * sizeof(float));
  return values;
}

}  // namespace penstock::weights::testing
