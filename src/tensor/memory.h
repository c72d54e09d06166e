// Accounted memory of one rank: every large allocation belongs to a category and a rank's account.
//
// Peaks are high-water marks of bytes handed out, never reservations.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <string_view>

#include "base/result.h"

namespace penstock {

enum class MemoryCategory : uint8_t {
  kWeights,
  kKv,           // state kept per sequence: keys and values, latent caches, recurrent states
  kActivations,  // values that flow between layers, and those saved for backward
  kGradients,
  kOptimizer,
  kWorkspace,  // scratch inside one action
  kMessages,   // buffers of messages in flight
};
inline constexpr size_t kMemoryCategories = 7;

// JSON key of a category without its unit: "weights", "kv", ...
std::string_view MemoryCategoryName(MemoryCategory category);

// Bytes per category and in total.
struct MemoryFigures {
  std::array<int64_t, kMemoryCategories> bytes{};
  int64_t total = 0;

  int64_t& operator[](MemoryCategory c) { return bytes[static_cast<size_t>(c)]; }

  int64_t operator[](MemoryCategory c) const { return bytes[static_cast<size_t>(c)]; }
};

// One rank's account. Thread-safe. Must outlive the Buffers that it handed out.
class MemoryAccount {
 public:
  explicit MemoryAccount(int64_t limit_bytes = std::numeric_limits<int64_t>::max())
      : limit_bytes_(limit_bytes) {}

  MemoryAccount(const MemoryAccount&) = delete;
  MemoryAccount& operator=(const MemoryAccount&) = delete;

  // Errors: kOutOfMemory with bytes needed, in use and the limit.
  Result<> Take(MemoryCategory category, int64_t bytes);
  void Give(MemoryCategory category, int64_t bytes);

  MemoryFigures current() const;
  // Each category's own peak; `total` is the peak of the sum (at one moment), at most the sum of
  // the peaks.
  MemoryFigures peak() const;

  int64_t limit_bytes() const { return limit_bytes_; }

 private:
  friend class Buffer;
  class Piece;
  // The next `bytes` of the current piece of huge pages, or of a new one, at `data`; what keeps the
  // piece alive. Null if the system has none.
  std::shared_ptr<void> Carve(int64_t bytes, std::byte*& data);

  mutable std::mutex mutex_;
  int64_t limit_bytes_;
  MemoryFigures current_;
  MemoryFigures peak_;
  std::weak_ptr<Piece> piece_;
};

// 64-byte aligned host memory that belongs to an account. Movable. Contents are not initialized.
class Buffer {
 public:
  Buffer() = default;
  // Errors: kOutOfMemory (the account's limit, or the system). bytes = 0 gives an empty buffer.
  static Result<Buffer> Allocate(MemoryAccount& account, MemoryCategory category, int64_t bytes);

  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  std::byte* data() { return data_; }

  const std::byte* data() const { return data_; }

  int64_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  int64_t size_ = 0;
  MemoryAccount* account_ = nullptr;
  MemoryCategory category_ = MemoryCategory::kWorkspace;
  std::shared_ptr<void> piece_;  // holds the memory, if it was carved from a larger piece
};

// Bytes that a process may use: the smaller of available memory and the control group's limit.
int64_t AvailableMemoryBytes();

}  // namespace penstock
