#include "runtime/train_memory.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace penstock::runtime {
namespace {

constexpr int64_t kAlignment = 64;

// A kept piece serves a smaller request when it wastes at most a quarter of itself.
int64_t LargestThatServes(int64_t bytes) {
  return bytes + bytes / 3 + kAlignment;
}

}  // namespace

Block& Block::operator=(Block&& other) noexcept {
  if (this != &other) {
    Release();
    pool_ = std::exchange(other.pool_, nullptr);
    raw_ = std::move(other.raw_);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

void Block::Release() {
  if (pool_ != nullptr) {
    pool_->Return(*this);
    pool_ = nullptr;
    bytes_ = 0;
  }
}

Result<Block> BlockPool::Take(int64_t bytes) {
  const int64_t rounded = (std::max<int64_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
  PENSTOCK_TRY(account_.Take(MemoryCategory::kActivations, rounded));
  Block block;
  block.pool_ = this;
  block.bytes_ = rounded;
  current_ += rounded;
  if (dry_) {
    return block;
  }
  auto kept = free_.lower_bound(rounded);
  if (kept != free_.end() && kept->first <= LargestThatServes(rounded)) {
    // Of those as large the one that was given back last: it may still be in the cache.
    kept = std::prev(free_.upper_bound(kept->first));
    block.raw_ = std::move(kept->second);
    free_.erase(kept);
    return block;
  }
  auto fresh = Buffer::Allocate(raw_account_, MemoryCategory::kActivations, rounded);
  if (!fresh.ok()) {
    // What is kept in other sizes may make room.
    free_.clear();
    fresh = Buffer::Allocate(raw_account_, MemoryCategory::kActivations, rounded);
  }
  if (!fresh.ok()) {
    return std::move(fresh).error();
  }
  block.raw_ = std::move(fresh).value();
  return block;
}

void BlockPool::Return(Block& block) {
  account_.Give(MemoryCategory::kActivations, block.bytes_);
  current_ -= block.bytes_;
  if (!dry_) {
    const int64_t size = block.raw_.size();
    free_.emplace(size, std::move(block.raw_));
  }
}

}  // namespace penstock::runtime
