#include "serve/block_manager.h"

#include <algorithm>
#include <functional>

namespace penstock::serve {
namespace {

using runtime::kBlockTokens;

int32_t TakeLowest(std::vector<int32_t>& free) {
  std::pop_heap(free.begin(), free.end(), std::greater<>());
  const int32_t block = free.back();
  free.pop_back();
  return block;
}

void GiveBack(std::vector<int32_t>& free, int32_t block) {
  free.push_back(block);
  std::push_heap(free.begin(), free.end(), std::greater<>());
}

}  // namespace

BlockManager::BlockManager(const runtime::StatePools& pools, std::vector<int64_t> blocks,
                           int64_t step_rows)
    : step_rows_(step_rows) {
  PENSTOCK_CHECK(pools.windows.size() == blocks.size(), "one count per pool");
  for (size_t i = 0; i < blocks.size(); ++i) {
    Pool& pool = pools_.emplace_back();
    pool.window = pools.windows[i];
    pool.unreserved = blocks[i];
    for (int64_t b = 0; b < blocks[i]; ++b) {
      pool.free.push_back(static_cast<int32_t>(b));  // ascending is a heap
    }
  }
}

Result<> BlockManager::Reserve(int32_t sequence, int64_t tokens) {
  if (static_cast<size_t>(sequence) >= sequences_.size()) {
    sequences_.resize(static_cast<size_t>(sequence) + 1);
  }
  Held& held = sequences_[static_cast<size_t>(sequence)];
  PENSTOCK_CHECK(!held.used, "a sequence reserves once");
  std::vector<int64_t> need;
  for (const Pool& pool : pools_) {
    need.push_back(runtime::BlocksPerSequence(pool.window, tokens, step_rows_));
    if (need.back() > pool.unreserved) {
      return MakeError(ErrorCode::kOutOfMemory,
                       "[serve.blocks] sequence {} of {} tokens needs {} {}, {} are free", sequence,
                       tokens, need.back(),
                       pool.window == runtime::kSlotPool
                           ? "state slot"
                           : fmt::format("KV blocks of {} tokens", kBlockTokens),
                       pool.unreserved);
    }
  }
  for (size_t i = 0; i < pools_.size(); ++i) {
    pools_[i].unreserved -= need[i];
  }
  held = {true, need, std::vector<std::vector<int32_t>>(pools_.size()),
          std::vector<int64_t>(pools_.size(), 0)};
  return {};
}

void BlockManager::Release(int32_t sequence) {
  Held& held = sequences_[static_cast<size_t>(sequence)];
  if (!held.used) {
    return;
  }
  for (size_t i = 0; i < pools_.size(); ++i) {
    for (const int32_t block : held.tables[i]) {
      if (block >= 0) {
        GiveBack(pools_[i].free, block);
      }
    }
    pools_[i].unreserved += held.reserved[i];
  }
  held = Held();
}

void BlockManager::Extend(int32_t sequence, int64_t first, int64_t rows) {
  Held& held = sequences_[static_cast<size_t>(sequence)];
  PENSTOCK_CHECK(held.used, "the sequence has a reservation");
  for (size_t i = 0; i < pools_.size(); ++i) {
    Pool& pool = pools_[i];
    std::vector<int32_t>& table = held.tables[i];
    if (pool.window == runtime::kSlotPool) {
      if (table.empty()) {
        PENSTOCK_CHECK(!pool.free.empty(), "reservations keep slots free");
        table.push_back(TakeLowest(pool.free));
      }
      continue;
    }
    const int64_t oldest_seen =
        pool.window == 0 ? 0 : std::max<int64_t>(0, first - pool.window + 1);
    for (; held.dropped[i] < oldest_seen / kBlockTokens &&
           held.dropped[i] < static_cast<int64_t>(table.size());
         ++held.dropped[i]) {
      int32_t& block = table[static_cast<size_t>(held.dropped[i])];
      GiveBack(pool.free, block);
      block = -1;
    }
    while (static_cast<int64_t>(table.size()) * kBlockTokens < first + rows) {
      PENSTOCK_CHECK(!pool.free.empty(), "reservations keep pages free");
      table.push_back(TakeLowest(pool.free));
    }
  }
}

const std::vector<std::vector<int32_t>>& BlockManager::tables(int32_t sequence) const {
  return sequences_[static_cast<size_t>(sequence)].tables;
}

}  // namespace penstock::serve
