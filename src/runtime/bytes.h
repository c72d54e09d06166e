// Little-endian byte writer and bounds-checked reader, for plans and results that travel between
// ranks of one machine type.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace penstock::runtime {

class ByteWriter {
 public:
  template <class T>
  requires std::is_trivially_copyable_v<T>

  void Put(const T& value) {
    const auto* from = reinterpret_cast<const std::byte*>(&value);
    bytes_.insert(bytes_.end(), from, from + sizeof(T));
  }

  template <class T>
  requires std::is_trivially_copyable_v<T>

  void PutAll(std::span<const T> values) {
    Put(static_cast<uint32_t>(values.size()));
    const auto raw = std::as_bytes(values);
    bytes_.insert(bytes_.end(), raw.begin(), raw.end());
  }

  void PutText(const std::string& text) { PutAll(std::span<const char>(text)); }

  std::vector<std::byte> Take() && { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

// Every read says whether there was enough; after a failed one all fail.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <class T>
  requires std::is_trivially_copyable_v<T>

  bool Get(T& value) {
    if (bad_ || bytes_.size() < sizeof(T)) {
      bad_ = true;
      return false;
    }
    std::memcpy(&value, bytes_.data(), sizeof(T));
    bytes_ = bytes_.subspan(sizeof(T));
    return true;
  }

  // At most `limit` elements.
  template <class T>
  requires std::is_trivially_copyable_v<T>

  bool GetAll(std::vector<T>& values, uint64_t limit) {
    uint32_t count = 0;
    if (!Get(count) || count > limit || bytes_.size() / sizeof(T) < count) {
      bad_ = true;
      return false;
    }
    values.resize(count);
    if (count > 0) {
      std::memcpy(values.data(), bytes_.data(), count * sizeof(T));
    }
    bytes_ = bytes_.subspan(count * sizeof(T));
    return true;
  }

  bool GetText(std::string& text, uint64_t limit) {
    std::vector<char> letters;
    if (!GetAll(letters, limit)) {
      return false;
    }
    text.assign(letters.begin(), letters.end());
    return true;
  }

  bool done() const { return !bad_ && bytes_.empty(); }

  bool bad() const { return bad_; }

 private:
  std::span<const std::byte> bytes_;
  bool bad_ = false;
};

}  // namespace penstock::runtime
