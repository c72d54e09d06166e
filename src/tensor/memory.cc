#include "tensor/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <utility>

#include "base/file.h"
#include "base/units.h"

namespace penstock {
namespace {

// Under the address sanitizer every buffer has its own allocation, so that overruns are found.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kCarve = false;
#else
constexpr bool kCarve = true;
#endif
constexpr int64_t kCarveFrom = 16384;

int64_t ReadLimit(const char* path) {
  const auto text = ReadFile(path, 4096);
  int64_t value = INT64_MAX;
  if (text.ok()) {
    int64_t number = 0;
    const auto [end, code] = std::from_chars(text->data(), text->data() + text->size(), number);
    if (code == std::errc() && number > 0) {
      value = number;
    }
  }
  return value;
}

}  // namespace

std::string_view MemoryCategoryName(MemoryCategory category) {
  constexpr std::array<std::string_view, kMemoryCategories> kNames = {
      "weights", "kv", "activations", "gradients", "optimizer", "workspace", "messages"};
  return kNames[static_cast<size_t>(category)];
}

Result<> MemoryAccount::Take(MemoryCategory category, int64_t bytes) {
  PENSTOCK_CHECK(bytes >= 0, "an allocation has a size");
  const std::lock_guard lock(mutex_);
  if (bytes > limit_bytes_ - current_.total) {
    return MakeError(
        ErrorCode::kOutOfMemory,
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

// Memory for weights, keys, gradients and moments is carved from large pieces on huge pages:
// reading them with 4 KB pages costs a fifth of the bandwidth. A piece's address space is reserved
// whole, but the system provides pages only as they are written. A piece ends with its last buffer.
class MemoryAccount::Piece {
 public:
  static constexpr int64_t kBytes = int64_t{64} << 20;
  static constexpr int64_t kPage = int64_t{2} << 20;

  static std::shared_ptr<Piece> Reserve(int64_t bytes) {
    const int64_t size = (std::max(bytes, kBytes) + kPage - 1) / kPage * kPage;
    // One page more, to begin at a multiple of a huge page.
    void* raw = mmap(nullptr, static_cast<size_t>(size + kPage), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED) {
      return nullptr;
    }
    auto piece = std::make_shared<Piece>();
    piece->raw_ = raw;
    piece->size_ = size;
    const auto address = reinterpret_cast<uintptr_t>(raw);
    const uintptr_t start = (address + kPage - 1) / kPage * kPage;
    piece->data_ = static_cast<std::byte*>(raw) + (start - address);
    (void)madvise(piece->data_, static_cast<size_t>(size), MADV_HUGEPAGE);
    return piece;
  }

  Piece() = default;
  Piece(const Piece&) = delete;
  Piece& operator=(const Piece&) = delete;

  ~Piece() { munmap(raw_, static_cast<size_t>(size_ + kPage)); }

  // The next `bytes`, or null if they don't fit.
  std::byte* Carve(int64_t bytes) {
    if (bytes > size_ - used_) {
      return nullptr;
    }
    return data_ + std::exchange(used_, used_ + bytes);
  }

 private:
  void* raw_ = nullptr;
  std::byte* data_ = nullptr;
  int64_t size_ = 0;
  int64_t used_ = 0;
};

std::shared_ptr<void> MemoryAccount::Carve(int64_t bytes, std::byte*& data) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Piece> piece = piece_.lock();
  data = piece == nullptr ? nullptr : piece->Carve(bytes);
  if (data == nullptr) {
    piece = Piece::Reserve(bytes);
    if (piece == nullptr) {
      return nullptr;
    }
    data = piece->Carve(bytes);
    piece_ = piece;
  }
  return piece;
}

Result<Buffer> Buffer::Allocate(MemoryAccount& account, MemoryCategory category, int64_t bytes) {
  Buffer buffer;
  if (bytes == 0) {
    return buffer;
  }
  PENSTOCK_TRY(account.Take(category, bytes));
  constexpr int64_t kAlignment = 64;
  const int64_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  std::byte* data = nullptr;
  const bool lasting = category == MemoryCategory::kWeights || category == MemoryCategory::kKv ||
                       category == MemoryCategory::kGradients ||
                       category == MemoryCategory::kOptimizer;
  if (kCarve && rounded >= kCarveFrom && lasting) {
    buffer.piece_ = account.Carve(rounded, data);
  } else {
    data = static_cast<std::byte*>(std::aligned_alloc(kAlignment, static_cast<size_t>(rounded)));
  }
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
      category_(other.category_),
      piece_(std::move(other.piece_)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(account_, other.account_);
  std::swap(category_, other.category_);
  std::swap(piece_, other.piece_);
  return *this;
}

Buffer::~Buffer() {
  if (data_ != nullptr) {
    if (piece_ == nullptr) {
      std::free(data_);
    }
    account_->Give(category_, size_);
  }
}

int64_t AvailableMemoryBytes() {
  int64_t available = INT64_MAX;
  if (const auto text = ReadFile("/proc/meminfo", 1 << 16); text.ok()) {
    const size_t at = text->find("MemAvailable:");
    if (at != std::string::npos) {
      available = std::atoll(text->c_str() + at + 13) * 1024;
    }
  }
  const int64_t limit = std::min(ReadLimit("/sys/fs/cgroup/memory.max"),
                                 ReadLimit("/sys/fs/cgroup/memory/memory.limit_in_bytes"));
  return std::min(available, limit);
}

}  // namespace penstock
