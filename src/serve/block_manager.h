// KV blocks: which pages a sequence has, in each pool, and which slot in a pool of states of fixed
// size. Decided once, by the decider; stages only read the tables.
//
// A sequence's pages and slots begin with its first position and only grow: nothing goes back to an
// earlier position, which a recurrent state could not do.

#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "runtime/state_pools.h"

namespace penstock::serve {

// Not thread-safe. Deterministic: the lowest free block is given first.
class BlockManager {
 public:
  // `blocks[i]` pages in pool i. `step_rows`: most rows of one sequence that one step adds.
  BlockManager(const runtime::StatePools& pools, std::vector<int64_t> blocks, int64_t step_rows);

  // Sets pages aside for a sequence of up to `tokens` positions, so that it can't starve later.
  // Errors: kOutOfMemory with the pages needed and free.
  Result<> Reserve(int32_t sequence, int64_t tokens);

  // Gives everything of the sequence back.
  void Release(int32_t sequence);

  // Makes sure that positions [first, first + rows) have pages and gives back those that fell out
  // of every window. REQUIRES: reserved, within the reservation, positions ascending from call to
  // call.
  void Extend(int32_t sequence, int64_t first, int64_t rows);

  // Block tables per pool; -1: fell out of the window.
  const std::vector<std::vector<int32_t>>& tables(int32_t sequence) const;

  int64_t free_blocks(size_t pool) const { return pools_[pool].unreserved; }

 private:
  struct Pool {
    int64_t window = 0;
    int64_t unreserved = 0;
    std::vector<int32_t> free;  // a heap, lowest first
  };

  struct Held {
    bool used = false;
    std::vector<int64_t> reserved;             // per pool
    std::vector<std::vector<int32_t>> tables;  // per pool
    std::vector<int64_t> dropped;              // per pool: leading entries that are -1
  };

  std::vector<Pool> pools_;
  std::vector<Held> sequences_;
  int64_t step_rows_;
};

}  // namespace penstock::serve
