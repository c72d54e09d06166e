#include "tensor/memory.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/units.h"

namespace penstock {

std::string_view MemoryCategoryName(MemoryCategory category) {
  constexpr std::array<std::string_view, kMemoryCategories> kNames = {
      "weights", "kv", "activations", "gradients", "optimizer", "workspace", "messages"};
  return kNames[static_cast<size_t>(category)];
}

Result<> MemoryAccount::Take(MemoryCategory category, int64_t bytes) {
  PENSTOCK_CHECK(bytes >= 0, "an allocation has a size");
  const std::lock_guard lock(mutex_);
  if (bytes > limit_bytes_ - current_.total) {
    return MakeError(ErrorCode::kOutOfMemory,
                     "[tensor.memory] {} needs {} bytes, but only {} of {} bytes are free on this rank",
                     MemoryCategoryName(category), bytes, std::max<int64_t>(0, limit_bytes_ - current_.total),
                     limit_bytes_);
  }
  current_[category] += bytes;
  current_.total += bytes;
  peak_[category] = std::max(peak_[category], current_[category]);
  peak_.total = std::max(peak_.total, current_.total);
  return {};
}

void MemoryAccount::Give(MemoryCategory category, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  current_[category] -= bytes;
  current_.total -= bytes;
  PENSTOCK_DCHECK(current_[category] >= 0, "more given back than taken");
}

MemoryFigures MemoryAccount::current() const {
  const std::lock_guard lock(mutex_);
  return current_;
}

MemoryFigures MemoryAccount::peak() const {
  const std::lock_guard lock(mutex_);
  return peak_;
}

Result<Buffer> Buffer::Allocate(MemoryAccount& account, MemoryCategory category, int64_t bytes) {
  Buffer buffer;
  if (bytes == 0) {
    return buffer;
  }
  PENSTOCK_TRY(account.Take(category, bytes));
  constexpr int64_t kAlignment = 64;
  const int64_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  auto* data = static_cast<std::byte*>(std::aligned_alloc(kAlignment, static_cast<size_t>(rounded)));
  if (data == nullptr) {
    account.Give(category, bytes);
    return MakeError(ErrorCode::kOutOfMemory, "[tensor.memory] the system has no {} for {}",
                     FormatBytes(static_cast<double>(bytes)), MemoryCategoryName(category));
  }
  buffer.data_ = data;
  buffer.size_ = bytes;
  buffer.account_ = &account;
  buffer.category_ = category;
  return buffer;
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      account_(std::exchange(other.account_, nullptr)),
      category_(other.category_) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(account_, other.account_);
  std::swap(category_, other.category_);
  return *this;
}

Buffer::~Buffer() {
  if (data_ != nullptr) {
    std::free(data_);
    account_->Give(category_, size_);
  }
}

}  // namespace penstock
