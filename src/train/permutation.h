// A permutation of 0..n-1 as a function: no table, no state, the same wherever and whenever it is
// asked. A Feistel network of eight rounds over the smallest even number of bits that holds n, with
// Philox as the round function, and cycle walking for what falls outside (Black and Rogaway, 2002).

#pragma once

#include <cstdint>

namespace penstock::train {

class Permutation {
 public:
  // REQUIRES: n >= 1.
  Permutation(uint64_t n, uint64_t key);

  // A bijection of [0, n). At most four walks expected. REQUIRES: index < n.
  uint64_t operator()(uint64_t index) const;

  uint64_t size() const { return n_; }

 private:
  uint64_t Encrypt(uint64_t index) const;

  uint64_t n_;
  uint64_t key_;
  int half_bits_ = 1;
};

}  // namespace penstock::train
