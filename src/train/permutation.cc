#include "train/permutation.h"

#include <bit>

#include "base/check.h"
#include "base/rng.h"

namespace penstock::train {

constexpr uint32_t kRounds = 8;

Permutation::Permutation(uint64_t n, uint64_t key) : n_(n), key_(key) {
  PENSTOCK_CHECK(n >= 1 && n <= uint64_t{1} << 62, "a permutation has elements");
  const int bits = n == 1 ? 1 : std::bit_width(n - 1);
  half_bits_ = (bits + 1) / 2;
}

uint64_t Permutation::Encrypt(uint64_t index) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = index >> half_bits_;
  uint64_t right = index & mask;
  for (uint32_t round = 0; round < kRounds; ++round) {
    const auto words = Philox(
        {static_cast<uint32_t>(right), static_cast<uint32_t>(right >> 32), round, 0x70657266U},
        key_);
    const uint64_t mixed = (uint64_t{words[1]} << 32 | words[0]) & mask;
    const uint64_t next = left ^ mixed;
    left = right;
    right = next;
  }
  return left << half_bits_ | right;
}

uint64_t Permutation::operator()(uint64_t index) const {
  PENSTOCK_CHECK(index < n_, "an index of the permutation");
  do {
    index = Encrypt(index);
  } while (index >= n_);
  return index;
}

}  // namespace penstock::train
