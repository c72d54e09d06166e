// Memory of values, saved activations and their gradients: pieces that come and go action by
// action. What is handed out is in the rank's account (category activations); pieces that come back
// are kept for the next of about that size, so that the system is asked only in the first step.

#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "base/result.h"
#include "tensor/memory.h"

namespace penstock::runtime {

class BlockPool;

// A piece of memory, 64-byte aligned, returned on destruction. Movable. Its pool outlives it.
class Block {
 public:
  Block() = default;

  Block(Block&& other) noexcept { *this = std::move(other); }

  Block& operator=(Block&& other) noexcept;

  ~Block() { Release(); }

  bool held() const { return pool_ != nullptr; }

  void* data() { return raw_.data(); }

  int64_t bytes() const { return bytes_; }

  void Release();

 private:
  friend class BlockPool;
  BlockPool* pool_ = nullptr;
  Buffer raw_;
  int64_t bytes_ = 0;  // in the account
};

// Not thread-safe. Must outlive its blocks.
class BlockPool {
 public:
  // Dry: accounts without memory, for planning; data() of blocks is null.
  BlockPool(MemoryAccount& account, bool dry) : account_(account), dry_(dry) {}

  // Contents are not initialized. Errors: kOutOfMemory.
  Result<Block> Take(int64_t bytes);

  // Bytes handed out now.
  int64_t current() const { return current_; }

 private:
  friend class Block;
  void Return(Block& block);

  MemoryAccount& account_;
  bool dry_;
  int64_t current_ = 0;
  MemoryAccount raw_account_;            // of real pieces, handed out or kept
  std::multimap<int64_t, Buffer> free_;  // by size
};

}  // namespace penstock::runtime
