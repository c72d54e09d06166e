// A hash map from 64-bit keys to 32-bit values for the millions of messages of a schedule: open
// addressing, no deletion.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace penstock::schedule {

class FlatMap {
 public:
  // Room for `expected` entries without growing.
  explicit FlatMap(size_t expected = 0) {
    size_t capacity = 16;
    while (capacity < 2 * expected)
      capacity *= 2;
    slots_.resize(capacity);
  }

  // The value of `key`, inserted as `fresh` when it is not there.
  int32_t& FindOrInsert(uint64_t key, int32_t fresh) {
    if (2 * (size_ + 1) > slots_.size())
      Grow();
    Slot& slot = slots_[Probe(key)];
    if (!slot.used) {
      slot = {key, fresh, true};
      ++size_;
    }
    return slot.value;
  }

  // `missing` when there is none.
  int32_t Find(uint64_t key, int32_t missing) const {
    const Slot& slot = slots_[Probe(key)];
    return slot.used ? slot.value : missing;
  }

  size_t size() const { return size_; }

 private:
  struct Slot {
    uint64_t key = 0;
    int32_t value = 0;
    bool used = false;
  };

  size_t Probe(uint64_t key) const {
    uint64_t h = key * 0x9e3779b97f4a7c15U;  // Fibonacci hashing (Knuth, vol. 3, 6.4)
    h ^= h >> 32;
    size_t at = static_cast<size_t>(h) & (slots_.size() - 1);
    while (slots_[at].used && slots_[at].key != key)
      at = (at + 1) & (slots_.size() - 1);
    return at;
  }

  void Grow() {
    std::vector<Slot> old(slots_.size() * 2);
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.used)
        slots_[Probe(slot.key)] = slot;
    }
  }

  std::vector<Slot> slots_;
  size_t size_ = 0;
};

}  // namespace penstock::schedule
