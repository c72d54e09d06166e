// A bounded cursor over little-endian bytes that strangers wrote.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace penstock::weights {

// Every read says whether the bytes were there; after a failed read the position is that of the
// failure.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  size_t position() const { return position_; }

  size_t remaining() const { return bytes_.size() - position_; }

  // T is an integer or floating-point type.
  template <class T>
  bool Read(T* value) {
    if (remaining() < sizeof(T)) {
      return false;
    }
    std::memcpy(value, bytes_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return true;
  }

  // `length` bytes as a view into the file.
  bool ReadView(uint64_t length, std::string_view* view) {
    if (remaining() < length) {
      return false;
    }
    *view = {reinterpret_cast<const char*>(bytes_.data()) + position_, static_cast<size_t>(length)};
    position_ += static_cast<size_t>(length);
    return true;
  }

  // A 64-bit length and as many bytes.
  bool ReadString(std::string_view* text) {
    uint64_t length = 0;
    return Read(&length) && ReadView(length, text);
  }

  bool Skip(uint64_t length) {
    std::string_view ignored;
    return ReadView(length, &ignored);
  }

 private:
  std::span<const std::byte> bytes_;
  size_t position_ = 0;
};

}  // namespace penstock::weights
